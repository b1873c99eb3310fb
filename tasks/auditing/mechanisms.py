"""Attack the installed mechanisms on synthetic neighbouring data; no private data is involved.

Mechanisms that count votes are run many times on neighbouring histograms. Mechanisms that sum records are run on
canaries, each with one of two contents chosen by a fair coin (`terrine.aggregation.exchange`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from terrine.aggregation.exchange import Exchange
from terrine.aggregation.mechanism import Aggregation, Mechanism
from terrine.aggregation.records import Whitening
from terrine.aggregation.sums import Sums, mu_left
from terrine.determinism.randomness import numpy_generator
from terrine.errors import SettingError
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.auditing.audit import Charge, audit_mechanism
from terrine.privacy.auditing.canaries import best_plan
from terrine.privacy.noise import NoiseSource, ReplayNoise

# Budget of every run: the audit tests the charge, not the budget.
_UNLIMITED = 1e8
# The number of queries in a run is chosen so that they are charged about this μ, at which an attack is most powerful.
# It is at most the second number, for which drawing secure noise takes one second.
_MU, _MOST_QUERIES = 1.5, 2000
# Runs of one query are made in a single call, so there can be more of them.
_ONE_QUERY_RUNS = 100
# For sums: numbers of canaries, features and classes; runs per release; ε if a mechanism is audited without a run.
_CANARIES, _FEATURES, _CLASSES, _RUNS_PER_RELEASE, _EPSILON = 1000, 64, 10, 20, 2.0
_PAIRS = {"moments": "canaries with x·x' = −1/2", "gradients": "canaries with x' = −x"}


Pair = tuple[tuple[int, int], tuple[int, int]]
"""Return a histogram, and its neighbour with one vote moved."""


def canaries(mechanism: Mechanism, teachers: int) -> dict[str, Pair]:
    """Return by name the neighbouring histograms between which the mechanism is most likely to show a difference.

    Raises SettingError for fewer than ten teachers, or for a threshold that no histogram of their votes comes close to.
    """
    if teachers < 10:
        raise SettingError(f"An audit needs at least ten teachers, got {teachers}.")
    return {
        name: ((first, teachers - first), (first + 1, teachers - first - 1))
        for name, first in mechanism.canaries(teachers).items()
    }


def audit(
    mechanism: Aggregation,
    *,
    noise: NoiseSource,
    teachers: int = 100,
    runs: int = 400,
    queries: int | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    mu: float | None = None,
) -> dict[str, Any]:
    """Return lower bounds on the privacy loss of a mechanism together with its charge, as JSON values.

    `epsilon` is the largest bound, `caught` is true if any bound exceeds its charge, and `canaries` has an entry per
    pair.

    Args:
        mechanism: Mechanism to attack.
        noise: Noise source that is audited together with the mechanism.
        teachers: Number of teachers whose votes the synthetic histograms count.
        runs: Number of runs on each histogram of a pair, multiplied by 100 if a run is one query. Sums are released
            `runs` / 20 times, each with 1,000 canaries.
        queries: Number of queries in a run; None for the number with the most power.
        delta: δ at which ε is bounded.
        confidence: Probability that the whole audit does not accuse a sound mechanism.
        mu: Charge of a mechanism that sums records; None for ε = 2 at δ.

    Raises SettingError for an argument out of range.
    """
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie strictly between 0 and 1, got {confidence!r}.")
    about = {**mechanism.describe(), "noise": noise.describe(), "delta": delta, "confidence": confidence}
    if isinstance(mechanism, Sums):
        mu = mu_left(_EPSILON, delta) if mu is None else mu
        about["mu"] = mu
        if queries is not None:
            raise SettingError(f"--queries {queries}: {mechanism.mechanism} sums records and asks none. Leave it out.")
        entries = [_audit_sums(mechanism, noise, mu, max(1, runs // _RUNS_PER_RELEASE), delta, confidence)]
    else:
        assert isinstance(mechanism, Mechanism)
        mechanism.refuse_findings("terrine audit")
        about["teachers"] = teachers
        entries = _audit_votes(mechanism, noise, teachers, runs, queries, delta, confidence)
    return {
        **about,
        "caught": any(entry["caught"] for entry in entries),
        "epsilon": max(entry["epsilon_at_least"] for entry in entries),
        "canaries": entries,
        "may_be_published": True,
        "note": "From made-up data: no private data was used. A bound below the charge proves nothing.",
    }


def _audit_votes(
    mechanism: Mechanism,
    noise: NoiseSource,
    teachers: int,
    runs: int,
    queries: int | None,
    delta: float,
    confidence: float,
) -> list[dict[str, Any]]:
    pairs = canaries(mechanism, teachers)
    queried = queries or _best_queries(mechanism, noise)
    repeats = runs if queried > 1 else runs * _ONE_QUERY_RUNS
    # Each pair gives two bounds; all together must not accuse a sound mechanism more often than a single bound would.
    each = 1 - (1 - confidence) / (2 * len(pairs))
    entries = []
    for name, (one, other) in pairs.items():
        verdict = audit_mechanism(
            lambda histograms: mechanism.answer(histograms, epsilon=_UNLIMITED, delta=delta, noise=noise),
            one,
            other,
            queries=queried,
            runs=repeats,
            delta=delta,
            confidence=each,
        )
        entries.append(
            {
                "name": name,
                "histogram": list(one),
                "neighbour": list(other),
                "queries": queried,
                "runs": repeats,
                "epsilon_charged": verdict.epsilon_charged,
                "epsilon_at_least": verdict.bound.epsilon,
                "mu_charged": verdict.mu_charged,
                "mu_at_least": None if verdict.mu_charged is None else verdict.bound.mu,
                "caught": verdict.caught,
            }
        )
    return entries


def _audit_sums(
    mechanism: Sums, noise: NoiseSource, mu: float, releases: int, delta: float, confidence: float
) -> dict[str, Any]:
    """Guess the coins of canaries from sums over nothing but canaries."""
    schedule, generator = mechanism.schedule(mu), numpy_generator(0, "canaries")
    whitening = Whitening(np.zeros(_FEATURES), np.eye(_FEATURES), 0.5)
    classes = mechanism.findings if mechanism.findings > 1 else _CLASSES
    exchange = Exchange.of_canaries(schedule, whitening, _CANARIES, classes, generator)
    rehearsal = mechanism.release(exchange.worlds[0], mu, ReplayNoise(0))
    plan, moved = best_plan(exchange.guess(rehearsal).information, confidence, releases), exchange.moved(rehearsal)
    coins = generator.random((releases, _CANARIES)) < 0.5
    evidence = [exchange.guess(mechanism.release(exchange.world(own), mu, noise)).evidence for own in coins]
    right = plan.right(np.stack(evidence), coins)
    charge = Charge.of([schedule.event], delta)
    at_least, mu_at_least = plan.bound(charge, right, confidence)
    return {
        "name": _PAIRS[mechanism.mechanism],
        "coins": coins.size,
        "runs": releases,
        "counted_as_runs": plan.runs,
        "guesses": plan.guesses,
        "right": right,
        "moved": float(moved.mean()),
        "epsilon_charged": charge.epsilon,
        "epsilon_at_least": at_least,
        "mu_charged": charge.mu,
        "mu_at_least": mu_at_least,
        "caught": bool(at_least > charge.epsilon or moved.max() > 1),
    }


def _best_queries(mechanism: Mechanism, noise: NoiseSource) -> int:
    if not mechanism.gaussian:
        return 1
    # The price of one answered query.
    certain = np.array([[10**6, 0]])
    price = mu_squared(mechanism.answer(certain, epsilon=_UNLIMITED, delta=1e-5, noise=noise).event)
    return max(2, min(_MOST_QUERIES, round(_MU**2 / price))) if price > 0 else _MOST_QUERIES
