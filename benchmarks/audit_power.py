"""Power of canary audits on digits: lower bounds on ε at a charge of ε = 2, with and without noise.

    PYTHONPATH=. python benchmarks/audit_power.py [--out audit-power.jsonl]

Every row is one audit (`terrine audit --canaries M --shadows R`) of a run on scikit-learn's digits: linear teachers on
a random projection of the pixels, 1,008 queries of Gaussian noise, σ such that 1,008 answers cost ε ≤ 2 at δ = 1e-5,
confidence 95 %. If the numbers of canaries and teachers are equal, every vote depends on a coin. Moments and gradients
of the same features sum all records, at ε = 2 as well. The small cases repeat an audit of 60 canaries 200 times on
made-up votes or rows, with secure noise, and count the bounds above the charge.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, common_options, heading, row

from flows.stages import run_through
from tasks.auditing.canaries import audit_canaries
from tasks.config.params import validate
from tasks.runtime.run import Run
from terrine.aggregation.exchange import Exchange
from terrine.aggregation.mechanism import parse_mechanism
from terrine.aggregation.records import Whitening
from terrine.aggregation.votes import count_votes
from terrine.privacy.auditing.audit import mu_of_guesses
from terrine.privacy.auditing.canaries import Directions, Plan, guess_from_histograms
from terrine.privacy.noise import SecureNoise

SIGMA = 90.0
# teachers, canaries, shadow runs, mechanism
AUDITS = [
    (1000, 1000, 1, "histogram"),
    (1000, 1000, 4, "histogram"),
    (1000, 1000, 24, "histogram"),
    (250, 250, 24, "histogram"),
    (250, 60, 24, "histogram"),
    (1000, 1000, 1, "gnmax"),
    *(("–", 1000, shadows, name) for name in ("moments", "gradients") for shadows in (1, 4, 24)),
    ("–", 200, 24, "gradients"),
]
SMALL = {"votes": None, "moments": {}, "gradients": {"rounds": 6}}


def audited(teachers: Any, canaries: int, shadows: int, mechanism: str) -> dict[str, Any]:
    """Audit one run in a temporary folder."""
    sums = mechanism in SMALL
    values = {
        "data": {"public_benchmark": True, "name": "digits", "size": 8},
        "partition": {"teachers": 10 if sums else teachers},
        "queries": {"count": 1008, "batch": 12, "sources": {"gaussian": 1}},
        "backbone": {"projection": 60},
        "aggregation": {"mechanism": mechanism, "epsilon": 2, **({} if sums else {"sigma": SIGMA})},
        "student": {"kind": "sums" if sums else "linear"},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), "audited", validate(values))
        run_through(run, "dataset", "pretrain")
        found = audit_canaries(run, run_through, canaries, shadows)
    wanted = ("epsilon_at_least", "epsilon_charged", "epsilon_without_noise", "moved", "right", "guesses")
    return {name: found[name] for name in wanted}


def one_release(case: str) -> tuple[float, Callable[[int, np.ndarray], np.ndarray]]:
    """The μ that one release of 60 canaries costs, and a function that releases and returns the evidence of coins."""
    noise = SecureNoise()
    if case == "votes":
        queries, classes, sigma = 120, 5, 8.0

        def of_votes(number: int, coins: np.ndarray) -> np.ndarray:
            generator = np.random.default_rng(number)
            one, other = generator.integers(classes, size=(2, queries, len(coins)))
            rest = count_votes(generator.integers(classes, size=(queries, 7)), classes)
            released = rest + count_votes(np.where(coins, one, other), classes) + noise.gaussian(rest.shape, sigma)
            return guess_from_histograms(Directions(one, other, rest), released, sigma).evidence

        return math.sqrt(2 * queries) / sigma, of_votes
    mechanism: Any = parse_mechanism({"mechanism": case, **SMALL[case]})
    mu, whitening, generator = 2.0, Whitening(np.zeros(24), np.eye(24), 0.5), np.random.default_rng(0)
    schedule = mechanism.schedule(mu)
    exchange = Exchange.of_canaries(schedule, whitening, 60, 4, generator)

    def of_sums(number: int, coins: np.ndarray) -> np.ndarray:
        return exchange.guess(mechanism.release(exchange.world(coins), mu, noise)).evidence

    return mu, of_sums


def small_case(case: str, repetitions: int = 200, canaries: int = 60) -> dict[str, Any]:
    """Count how often a sound release is accused, with the secure source."""
    (charged, evidence), mus = one_release(case), []
    for number in range(repetitions):
        coins = np.random.default_rng((1, number)).random(canaries) < 0.5
        right = Plan(canaries, canaries, 1).right(evidence(number, coins)[None], coins[None])
        mus.append(mu_of_guesses(right, canaries, canaries, 0.95))
    return {
        "mu_charged": charged,
        "median mu": float(np.median(mus)),
        "largest mu": max(mus),
        "above the charge": sum(mu > charged for mu in mus),
    }


def main() -> None:
    """Make what is missing and print the table."""
    parser = common_options(__doc__)
    parser.add_argument("--out", type=Path, default=Path("audit-power.jsonl"))
    cells = Cells(parser.parse_args().out)
    columns = ("teachers", "canaries", "shadow runs", "releases", "votes moved")
    heading(*columns, "ε ≥", "ε charged", "ε ≥ without noise", "s")
    for case in AUDITS:
        key = "{} teachers, {} canaries, {} shadows, {}".format(*case)
        found = cells.get(key, lambda case=case: audited(*case))
        least, charged = f"{found['epsilon_at_least']:.2f}", f"{found['epsilon_charged']:.2f}"
        plain, seconds = f"{found['epsilon_without_noise']:.1f}", f"{found['seconds']:.0f}"
        row(*case, f"{found['moved']:.0%}", least, charged, plain, seconds)
    for case in SMALL:
        small = cells.get(f"small case, {case}", lambda case=case: small_case(case))
        print(
            f"\nSmall case of {case}, 200 repetitions: {small['above the charge']} bounds above "
            f"μ = {small['mu_charged']:.2f}; median {small['median mu']:.2f}, largest {small['largest mu']:.2f}."
        )


if __name__ == "__main__":
    main()
