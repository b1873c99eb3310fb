"""How much audits with canaries can see, on digits: lower bounds on ε at a charge of ε = 2, with and without the noise.

    PYTHONPATH=. python benchmarks/audit_power.py [--out audit-power.jsonl]

Every row is one audit (`terrine audit --canaries M --shadows R`) of a run on scikit-learn's digits: linear teachers on
a random projection of the pixels, 1,008 queries of Gaussian noise, σ such that 1,008 answers cost ε ≤ 2 at δ = 1e-5,
confidence 95 %. Where there are as many canaries as teachers, every vote hangs on a coin. The small case repeats an
audit of 60 canaries 200 times on made-up votes, with secure noise, and counts the bounds above the charge.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, common_options, heading, row

from flows.stages import run_through
from tasks.config.params import validate
from tasks.runtime.run import Run
from tasks.tools.canaries import audit_canaries
from terrine.aggregation.votes import histograms_of
from terrine.privacy.auditing.canaries import Directions, Plan, guess_from_histograms
from terrine.privacy.auditing.one_run import mu_of_guesses
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
]


def audited(teachers: int, canaries: int, shadows: int, mechanism: str) -> dict[str, Any]:
    """What one audit of a run in a folder of its own finds."""
    values = {
        "data": {"public_benchmark": True, "name": "digits", "size": 8},
        "partition": {"teachers": teachers},
        "queries": {"count": 1008, "batch": 12, "sources": {"gaussian": 1}},
        "backbone": {"projection": 60},
        "aggregation": {"mechanism": mechanism, "sigma": SIGMA, "epsilon": 2},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), "audited", validate(values))
        run_through(run, "dataset", "pretrain")
        found = audit_canaries(run, run_through, canaries, shadows)
    wanted = ("epsilon_at_least", "epsilon_charged", "epsilon_without_noise", "moved", "right", "guesses")
    return {name: found[name] for name in wanted}


def small_case(repetitions: int = 200, canaries: int = 60, queries: int = 120, classes: int = 5) -> dict[str, Any]:
    """How often a sound release of made-up votes is accused, with the secure source."""
    sigma, noise, mus = 8.0, SecureNoise(), []
    for number in range(repetitions):
        generator = np.random.default_rng(number)
        one, other = generator.integers(classes, size=(2, queries, canaries))
        rest = histograms_of(generator.integers(classes, size=(queries, 7)), classes)
        coins = generator.random(canaries) < 0.5
        released = rest + histograms_of(np.where(coins, one, other), classes) + noise.gaussian(rest.shape, sigma)
        guess = guess_from_histograms(Directions(one, other, rest), released, sigma)
        right = Plan(canaries, canaries, 1).right(guess.evidence[None], coins[None])
        mus.append(mu_of_guesses(right, canaries, canaries, 0.95))
    charged = math.sqrt(2 * queries) / sigma
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
    small = cells.get("small case", small_case)
    print(
        f"\nSmall case, 200 repetitions: {small['above the charge']} bounds above μ = {small['mu_charged']:.2f}; "
        f"median {small['median mu']:.2f}, largest {small['largest mu']:.2f}."
    )


if __name__ == "__main__":
    main()
