"""Speed of the data-dependent accounting against a plain reference, and ε of compositions by three accountants.

    OMP_NUM_THREADS=1 PYTHONPATH=. python benchmarks/accounting.py [--repeats 5]

ε of Laplace noise and randomised response, alone and with Gaussian answers: without privacy loss distributions (the
smallest of pure sum, hybrid and Rényi bound), with them, and by dp-accounting's distributions on a fine lattice,
composed by hand because its accountant ignores how often randomised response is run.

Speed, measured on one core, on random histograms with a mixed consensus (agreement Beta(5, 1.5), the rest of the votes
spread over the other classes by a Dirichlet distribution):
- the data-dependent RDP curve of GNMax over 12,000 histograms of 150 classes and 298 orders;
- the smooth sensitivity of 1,000 answers of 5,000 teachers and 150 classes at one order.

The plain references work query after query and vote after vote, with the same formulas; they are timed on a few queries
and scaled up, and their results are compared with the fast ones on those.
"""

import math
import time
from collections.abc import Callable

import numpy as np
from cells import common_options, times
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy.special import log_ndtr, ndtri_exp

from terrine.privacy.accounting.data_dependent import gnmax_rdp, log_q_gnmax, summed
from terrine.privacy.accounting.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    compose,
    counts,
    vote_answer,
)
from terrine.privacy.accounting.local_sensitivity import AnswerPrice, answer_sensitivities, summed_answer_sensitivity
from terrine.privacy.accounting.loss_distribution import loss_epsilon
from terrine.privacy.accounting.pricing import price
from terrine.privacy.accounting.renyi import (
    convert,
    default_orders,
    pure_epsilon,
    rdp_of_event,
    reference_orders,
)
from terrine.privacy.accounting.sanitize import smooth_sensitivity

SIGMA, ORDER, BETA = 100.0, 20.0, 0.02


def histograms(queries: int, teachers: int, classes: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    agreement = rng.beta(5, 1.5, queries)[:, None]
    others = rng.dirichlet(np.full(classes - 1, 0.2), queries)
    votes = rng.multinomial(teachers, np.concatenate((agreement, others * (1 - agreement)), axis=1))
    return rng.permuted(votes, axis=1)


def plain_log_q(counts: np.ndarray, sigma: float) -> float:
    winner = int(np.argmax(counts))
    gaps = np.delete(counts[winner] - counts, winner)
    terms = log_ndtr(-gaps / (math.sqrt(2) * sigma))
    return min(np.logaddexp.reduce(terms), math.log(1 - 1 / len(counts)))


def plain_curve(votes: np.ndarray, sigma: float, orders: np.ndarray) -> np.ndarray:
    total = np.zeros_like(orders)
    for histogram in votes:
        total += gnmax_rdp([plain_log_q(histogram, sigma)], sigma, orders)[0]
    return total


def plain_price(log_q: float, price: AnswerPrice) -> float:
    """Theorem 3 at one point, in ordinary arithmetic."""
    if log_q >= price.log_q0:
        return price.ceiling
    variance, order = price.sigma**2, price.order
    mu2 = price.sigma * math.sqrt(-log_q)
    log_keep = math.log1p(-math.exp(log_q))
    log_a = log_keep - math.log1p(-math.exp((log_q + mu2 / variance) * (1 - 1 / mu2)))
    log_b = (mu2 + 1) / variance - log_q / mu2
    high, low = log_keep + (order - 1) * log_a, log_q + (order - 1) * log_b
    if low > high:
        high, low = low, high
    return max(0.0, high + math.log1p(math.exp(low - high))) / (order - 1)


def plain_local_sensitivity(log_q: float, price: AnswerPrice) -> float:
    if price.log_q1 <= log_q <= price.log_q0:
        return price.plateau
    share = math.log(price.classes - 1)
    point, step = ndtri_exp(log_q - share), math.sqrt(2) / price.sigma
    here = plain_price(log_q, price)
    up = plain_price(min(0.0, share + log_ndtr(point + step)), price)
    return max(up - here, here - plain_price(share + log_ndtr(point - step), price))


def plain_sensitivity(counts: np.ndarray, price: AnswerPrice) -> np.ndarray:
    """Vote after vote: towards the runner-up while q < q1, from the largest of the rest while q > q0."""
    result = np.full(int(counts.sum()), price.plateau)
    counts = np.sort(counts)[::-1].copy()
    tail = -math.sqrt(2) * price.sigma

    def log_q() -> float:
        terms = log_ndtr((counts[0] - counts[1:]) / tail)
        return min(terms[0] + math.log(np.exp(terms - terms[0]).sum()), math.log(1 - 1 / len(counts)))

    here = log_q()
    doubt, distance = here < price.log_q1, 0
    while here < price.log_q1 if doubt else here > price.log_q0:
        result[distance] = plain_local_sensitivity(here, price)
        if not doubt and counts[1] == 0:
            break
        counts[0] += -1 if doubt else 1
        counts[1] += 1 if doubt else -1
        if not doubt:
            counts[1:] = np.sort(counts[1:])[::-1]
        elif counts[0] < counts[1]:
            break
        distance += 1
        here = log_q()
    return result


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median processor time: other programs on the machine do not count."""
    return float(np.median(times(work, repeats, time.process_time)))


def without_losses(event: Event, delta: float) -> float:
    """The smallest of the pure sum, Gaussian parts exactly and the others purely, and the Rényi bound."""
    orders = default_orders()
    gaussian = [RepeatedEvent(part, count) for part, count in counts(event).items() if isinstance(part, GaussianEvent)]
    others = [
        RepeatedEvent(part, count) for part, count in counts(event).items() if not isinstance(part, GaussianEvent)
    ]
    apart = price(compose(*gaussian), delta) + sum(map(pure_epsilon, others))
    return min(apart, convert(orders, rdp_of_event(event, orders), delta)[0])


def by_dp_accounting(event: Event, delta: float) -> float:
    parts = counts(event).items()
    # It rounds each loss of randomised response up to its lattice, as often as that is composed: hence a fine one.
    step = min([1e-4, *(part.epsilon / 20_000 for part, _ in parts if isinstance(part, RandomisedResponseEvent))])
    total = None
    for part, count in parts:
        if isinstance(part, LaplaceEvent):
            one = losses.from_laplace_mechanism(part.scale, part.sensitivity, value_discretization_interval=step)
            one = one.self_compose(count)
        elif isinstance(part, RandomisedResponseEvent):
            noise = part.categories / (math.exp(part.epsilon) + part.categories - 1)
            one = losses.from_randomized_response(noise, part.categories, value_discretization_interval=step)
            one = one.self_compose(count)
        else:
            assert isinstance(part, GaussianEvent)
            sigma = part.sigma / math.sqrt(count)
            one = losses.from_gaussian_mechanism(sigma, part.sensitivity, value_discretization_interval=step)
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


def compositions() -> list[tuple[str, Event]]:
    laplace, answer = LaplaceEvent(2.0, 20.0), vote_answer(40.0)
    return [
        *(
            (f"Laplace noise, L1 sensitivity 2, scale 20, {count:,} answers", RepeatedEvent(laplace, count))
            for count in (10, 100, 1000, 5000)
        ),
        *(
            (f"randomised response, ε = {epsilon:g} among 10, {count:,} ×", RepeatedEvent(response, count))
            for epsilon, count in ((1.0, 10), (0.5, 100), (0.1, 1000), (0.02, 10_000))
            for response in (RandomisedResponseEvent(epsilon, 10),)
        ),
        (
            "one label at ε = 0.5, 200 Gaussian answers",
            compose(RandomisedResponseEvent(0.5, 10), RepeatedEvent(answer, 200)),
        ),
        ("100 of these, and 200 Gaussian answers", compose(RepeatedEvent(laplace, 100), RepeatedEvent(answer, 200))),
    ]


def compare_accountants(delta: float = 1e-5) -> None:
    print(f"{f'ε at δ = {delta:g}':58}{'without':>10}{'with':>10}{'below':>8}{'dp-acc.':>10}{'ms':>7}{'dp ms':>8}")
    for name, event in compositions():
        loss_epsilon.cache_clear()
        start = time.process_time()
        now = price(event, delta)
        middle = time.process_time()
        theirs = by_dp_accounting(event, delta)
        spent = (middle - start) * 1e3, (time.process_time() - middle) * 1e3
        before = without_losses(event, delta)
        print(
            f"{name:58}{before:10.4f}{now:10.4f}{100 * (1 - now / before):6.1f} %{theirs:10.4f}"
            f"{spent[0]:7.0f}{spent[1]:8.0f}"
        )


def main() -> None:
    parser = common_options(__doc__, repeats=5)
    repeats = parser.parse_args().repeats
    compare_accountants()
    rows = []

    votes, orders, sample = histograms(12_000, 5_000, 150, seed=0), reference_orders(), 200
    fast = seconds(lambda: summed(gnmax_rdp, log_q_gnmax(votes, SIGMA), SIGMA, orders), repeats)
    plain = seconds(lambda: plain_curve(votes[:sample], SIGMA, orders), 1) * len(votes) / sample
    some = summed(gnmax_rdp, log_q_gnmax(votes[:sample], SIGMA), SIGMA, orders)
    error = float(np.max(np.abs(some / plain_curve(votes[:sample], SIGMA, orders) - 1)))
    rows.append(("curve, 12,000 × 150, 298 orders", fast, plain, error))

    votes, sample = histograms(1_000, 5_000, 150, seed=1), 20
    price = AnswerPrice(SIGMA, 150, ORDER)
    fast = seconds(lambda: smooth_sensitivity(summed_answer_sensitivity(votes, SIGMA, ORDER), BETA), repeats)
    start = time.process_time()
    reference = np.array([plain_sensitivity(counts, price) for counts in votes[:sample]])
    plain = (time.process_time() - start) * len(votes) / sample
    error = float(np.max(np.abs(answer_sensitivities(votes[:sample], SIGMA, ORDER) - reference)) / price.plateau)
    rows.append(("smooth sensitivity, 1,000 × 5,000 × 150", fast, plain, error))

    print(f"{'':42}{'seconds':>10}{'plain':>10}{'faster':>10}{'difference':>12}")
    for name, fast, plain, error in rows:
        print(f"{name:42}{fast:10.3f}{plain:10.1f}{plain / fast:9.0f}×{error:12.1e}")


if __name__ == "__main__":
    main()
