"""Canaries in sums over records: how far they move them, how their coins are guessed, and which defects that shows."""

import numpy as np
import pytest

from terrine.aggregation import records, sums
from terrine.aggregation.exchange import Exchange
from terrine.aggregation.gradient_rounds import NoisyGradientDescent, RoundSchedule, flatten_moments
from terrine.aggregation.mechanism import parse_mechanism
from terrine.aggregation.records import STEP, Records, Whitening
from terrine.aggregation.sums import Sums, mu_left
from terrine.privacy.auditing.audit import Charge
from terrine.privacy.auditing.canaries import Plan, Products, best_plan
from terrine.privacy.noise import ReplayNoise
from tests.noises import QuieterNoise, Silence

MU = mu_left(2.0, 1e-5)
KINDS = {"moments": {}, "gradients": {"rounds": 6}}
FEATURES, CLASSES = 24, 8


def mechanism(name: str) -> Sums:
    found = parse_mechanism({"mechanism": name, **KINDS[name]})
    assert isinstance(found, Sums)
    return found


def planted(name: str, canaries: int, features: int = FEATURES, findings: bool = False, mu: float = MU) -> Exchange:
    """Canaries behind a whitening of correlated features."""
    generator = np.random.default_rng(5)
    whitening = Whitening.fit(generator.normal(size=(200, features)) @ generator.normal(size=(features, features)))
    kind = mechanism(name)
    schedule = (kind.model_copy(update={"findings": CLASSES}) if findings else kind).schedule(mu)
    return Exchange.of_canaries(schedule, whitening, canaries, CLASSES, generator)


def released(name: str, exchange: Exchange, coins: np.ndarray, noise) -> dict[str, np.ndarray]:
    return mechanism(name).release(exchange.world(coins), MU, noise)


def in_one_row(schedule: RoundSchedule, numbers: np.ndarray, number: int, length: int) -> np.ndarray:
    """The numbers of a round over the standard deviation of their noise."""
    return numbers / np.concatenate([np.full(n, sigma) for n, sigma in schedule.noise(length, CLASSES, number)])


def directions(exchange: Exchange, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """D [canaries, numbers] and what was released less the middle, both over the noise: canary by canary, by the sums
    themselves."""
    schedule, (length, _) = exchange.schedule, arrays["labels"].shape
    rounds = [flatten_moments(arrays["second"], arrays["labels"]), *(g.ravel() for g in arrays.get("gradients", ()))]
    descent: NoisyGradientDescent = schedule.descent(length)
    moves, residuals = [], []
    for number, numbers in enumerate(rounds):
        broadcast, own = descent.broadcast, []
        for canary in range(exchange.canaries):
            only = np.arange(exchange.canaries) == canary
            one, other = (schedule.summing(world.subset(only))(broadcast) * STEP for world in exchange.worlds)
            own.append(in_one_row(schedule, one - other, number, length))
        middle = sum(schedule.summing(world)(broadcast) for world in exchange.worlds) * STEP / 2
        moves.append(np.array(own))
        residuals.append(in_one_row(schedule, numbers - middle, number, length))
        descent.receive(numbers)
    return np.concatenate(moves, axis=1), np.concatenate(residuals)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("findings", [False, True])
def test_canaries_move_the_sums_by_nearly_all_that_is_charged_and_never_by_more(name, findings):
    exchange = planted(name, 40, findings=findings)
    kind = mechanism(name).model_copy(update={"findings": CLASSES}) if findings else mechanism(name)
    arrays = kind.release(exchange.worlds[0], MU, ReplayNoise(0))
    moved = exchange.moved(arrays)
    assert np.all(moved <= 1)
    assert moved.mean() > (0.999 if name == "moments" else 0.75)
    charged = Charge.of([exchange.schedule.event], 1e-5).mu
    assert moved == pytest.approx(np.linalg.norm(directions(exchange, arrays)[0], axis=1) / charged, rel=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_guesses_are_the_posterior_of_a_linear_model_over_all_rounds(name, monkeypatch):
    monkeypatch.setattr(Products, "white", property(lambda self: self))
    exchange, coins = planted(name, 12), np.random.default_rng(1).random(12) < 0.5
    arrays = released(name, exchange, coins, ReplayNoise(3))
    design, residual = directions(exchange, arrays)
    covariance = np.linalg.inv(design @ design.T + 4 * np.eye(12))
    guess = exchange.guess(arrays)
    assert guess.evidence == pytest.approx(covariance @ design @ residual / np.diag(covariance), rel=1e-5, abs=1e-7)
    assert guess.information == pytest.approx(np.sqrt(1 / np.diag(covariance) - 4), rel=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_sums_are_the_middle_and_half_of_every_direction_by_its_coin(name):
    """Up to rounding of doubles, only these directions enter the sums."""
    exchange, coins = planted(name, 12), np.random.default_rng(1).random(12) < 0.5
    design, residual = directions(exchange, released(name, exchange, coins, Silence()))
    assert residual == pytest.approx((coins - 0.5) @ design, abs=1e-9)


def test_rounds_of_one_noise_are_combined_so_that_it_cancels_and_independent_ones_stay_as_they_are():
    generator = np.random.default_rng(2)
    left, right = (tuple(generator.normal(size=(2, 9, *shape))) for shape in ((30,), (5, 8)))
    noise = generator.normal(size=(5, 30, 8))
    white = Products(left, right, noise, 1.0).white
    assert np.linalg.norm(white.residual - noise) < 0.2 * np.linalg.norm(noise)
    rows = white.residual.reshape(5, -1)
    assert rows @ rows.T / rows.shape[1] == pytest.approx(np.eye(5), abs=1e-9)
    shared = Products(left, right, np.repeat(noise[:1], 5, axis=0) + 1e-3 * noise, 1.0).white
    assert (np.diag(shared.kernel) > 1e4 * np.diag(white.kernel)).all()


class Reused(ReplayNoise):
    """Draws the noise of one round, and gives it to every round of the same shape again."""

    def __init__(self, seed):
        super().__init__(seed)
        self.drawn = {}

    def gaussian(self, shape, sigma):
        return self.drawn.setdefault((shape, sigma), super().gaussian(shape, sigma))


def audited(name, noise_of_run, canaries=400, releases=4):
    """The lower bound on μ of some releases, what is charged, and how far a canary moved at most."""
    exchange = planted(name, canaries, features=120)
    rehearsal = mechanism(name).release(exchange.worlds[0], MU, ReplayNoise(0))
    plan = best_plan(exchange.guess(rehearsal).information, 0.95, releases)
    coins = np.random.default_rng(9).random((releases, canaries)) < 0.5
    evidence = [
        exchange.guess(released(name, exchange, own, noise_of_run(100 + number))).evidence
        for number, own in enumerate(coins)
    ]
    charge = Charge.of([exchange.schedule.event], 1e-5)
    epsilon, mu = plan.bound(charge, plan.right(np.stack(evidence), coins), 0.95)
    return epsilon, mu / charge.mu, exchange.moved(rehearsal).max()


def test_with_the_charge_at_two_the_bound_is_one_and_without_noise_three():
    for name in KINDS:
        epsilon, share, moved = audited(name, ReplayNoise, canaries=1000, releases=6)
        assert 1 <= epsilon <= 2
        assert max(share, moved) <= 1
        assert audited(name, lambda _: Silence())[0] > 3


@pytest.mark.parametrize("name", KINDS)
def test_half_the_noise_is_caught(name):
    assert audited(name, lambda seed: QuieterNoise(0.5, seed), canaries=1000)[1] > 1


def test_noise_that_rounds_share_is_caught():
    epsilon, share, _ = audited("gradients", Reused)
    assert share > 1
    assert epsilon > 3


def test_gradients_of_any_length_are_caught_by_how_far_they_move_and_by_what_is_guessed(monkeypatch):
    def unlimited(self, weights, clip):
        return clipped(self, weights, 1e9)

    clipped = records.Records._errors
    monkeypatch.setitem(KINDS, "gradients", {"rounds": 6, "clip": 0.2})
    monkeypatch.setattr(records.Records, "_errors", unlimited)
    _, share, moved = audited("gradients", ReplayNoise)
    assert moved > 3
    assert share > 1


@pytest.mark.parametrize("name", KINDS)
def test_records_that_are_counted_twice_are_caught(name, monkeypatch):
    """As where a record comes from two of the parts that a sum is taken of."""

    def summing(self, own):
        once = plain(self, own)
        return lambda broadcast: 2 * once(broadcast)

    plain = sums.RoundSchedule.summing
    exchange = planted(name, 1000, features=120)
    honest = RoundSchedule.summing
    releases, coins = [], np.random.default_rng(9).random((4, 1000)) < 0.5
    monkeypatch.setattr(RoundSchedule, "summing", summing)
    releases = [released(name, exchange, own, ReplayNoise(number)) for number, own in enumerate(coins)]
    monkeypatch.setattr(RoundSchedule, "summing", honest)
    guesses = [exchange.guess(arrays) for arrays in releases]
    plan = best_plan(guesses[0].information, 0.95, 4)
    charge = Charge.of([exchange.schedule.event], 1e-5)
    right = plan.right(np.stack([guess.evidence for guess in guesses]), coins)
    assert plan.bound(charge, right, 0.95)[1] > charge.mu


@pytest.mark.parametrize("name", KINDS)
def test_sound_sums_are_never_accused(name):
    """One release of 60 canaries, 30 times: at a confidence of 1 − 3e-11 each the chance that any is accused is below
    1e-9 for any seeds; at 95 % the bound says something in most of them, and with these seeds accuses none."""
    exchange, found = planted(name, 60, mu=2.0), []
    charge = Charge.of([exchange.schedule.event], 1e-5)
    for seed in range(30):
        coins = np.random.default_rng(seed).random(60) < 0.5
        guess = exchange.guess(mechanism(name).release(exchange.world(coins), 2.0, ReplayNoise(seed)))
        right = Plan(60, 60, 1).right(guess.evidence[None], coins[None])
        found += [Plan(60, 60, 1).bound(charge, right, confidence)[1] for confidence in (1 - 3e-11, 0.95)]
    assert max(found) <= charge.mu == pytest.approx(2.0)
    assert np.median(found[1::2]) > 0.2


def test_other_records_enter_the_middle_and_no_direction():
    generator = np.random.default_rng(3)
    exchange = planted("gradients", 20)
    vectors = records.on_grid(0.2 * generator.normal(size=(50, FEATURES + 1)) / 5)
    others = Records.of(vectors, generator.integers(CLASSES, size=50), np.arange(50), CLASSES)
    beside = tuple(
        Records(
            np.concatenate([others.vectors, world.vectors]),
            np.concatenate([others.labels, world.labels]),
            np.concatenate([others.weights, world.weights]),
            CLASSES,
        )
        for world in exchange.worlds
    )
    coins = generator.random(20) < 0.5
    among = Exchange(exchange.schedule, beside, 20)
    assert np.array_equal(among.world(coins).vectors[50:], exchange.world(coins).vectors)
    arrays = released("gradients", among, coins, Silence())
    assert np.array_equal(among.guess(arrays, noise=False).evidence > 0, coins)
