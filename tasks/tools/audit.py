"""Attack the mechanisms as they are installed here, on made-up neighbouring histograms: nothing private is involved."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.config.findings import refuse_findings
from terrine.aggregation.aggregation import Aggregation
from terrine.aggregation.mechanism import Mechanism
from terrine.errors import SettingError
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.auditing.audit import audit_mechanism
from terrine.privacy.noise import NoiseSource

# Every run may spend this much: the audit is about the charge, not about the budget.
_UNLIMITED = 1e8
# A run is asked as many queries as are charged about this μ, where an attack has most power; but not more than the
# second number, which takes a second of secure noise.
_MU, _MOST_QUERIES = 1.5, 2000
# One-query runs are made in one call, so that there can be more of them.
_ONE_QUERY_RUNS = 100


Pair = tuple[tuple[int, int], tuple[int, int]]
"""A histogram, and the same with one vote moved."""


def canaries(mechanism: Mechanism, teachers: int) -> dict[str, Pair]:
    """Return by name the neighbouring histograms between which the mechanism is most likely to show a difference.

    Raises SettingError for fewer than ten teachers, or a threshold that no histogram of so many comes near.
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
) -> dict[str, Any]:
    """Return lower bounds on the privacy loss of a mechanism beside what it charges, as JSON values.

    Beside the largest bound `epsilon` and whether one was `caught`, `canaries` has an entry for each pair tried.

    Args:
        mechanism: What is attacked.
        noise: The source to audit with it.
        teachers: Size of the ensemble that the made-up histograms come from.
        runs: Runs on either histogram of each pair; a hundred times as many where a run is one query.
        queries: Queries in a run; None: as many as show a defect best.
        delta: δ.
        confidence: Of the whole audit: that a sound mechanism is not accused.

    Raises SettingError for an impossible number.
    """
    if not isinstance(mechanism, Mechanism):
        raise SettingError(
            f"terrine audit is for mechanisms that count votes, and mechanism={mechanism.mechanism} adds up records. "
            "Use terrine membership."
        )
    refuse_findings(mechanism, "terrine audit")
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie strictly between 0 and 1, got {confidence!r}.")
    pairs = canaries(mechanism, teachers)
    asked = queries or _best_queries(mechanism, noise)
    repeats = runs if asked > 1 else runs * _ONE_QUERY_RUNS
    # Each pair gives two bounds; together they may accuse a sound mechanism as seldom as one bound would.
    each = 1 - (1 - confidence) / (2 * len(pairs))
    entries = []
    for name, (one, other) in pairs.items():
        verdict = audit_mechanism(
            lambda histograms: mechanism.answer(histograms, epsilon=_UNLIMITED, delta=delta, noise=noise),
            one,
            other,
            queries=asked,
            runs=repeats,
            delta=delta,
            confidence=each,
        )
        entries.append(
            {
                "name": name,
                "histogram": list(one),
                "neighbour": list(other),
                "queries": asked,
                "runs": repeats,
                "epsilon_charged": verdict.epsilon_charged,
                "epsilon_at_least": verdict.bound.epsilon,
                "mu_charged": verdict.mu_charged,
                "mu_at_least": None if verdict.mu_charged is None else verdict.bound.mu,
                "caught": verdict.caught,
            }
        )
    return {
        **mechanism.describe(),
        "noise": noise.describe(),
        "teachers": teachers,
        "delta": delta,
        "confidence": confidence,
        "caught": any(entry["caught"] for entry in entries),
        "epsilon": max(entry["epsilon_at_least"] for entry in entries),
        "canaries": entries,
        "may_be_published": True,
        "note": "From made-up histograms: no private data was used. A bound below the charge proves nothing.",
    }


def _best_queries(mechanism: Mechanism, noise: NoiseSource) -> int:
    if not mechanism.gaussian:
        return 1
    # The price of one query that is answered.
    certain = np.array([[10**6, 0]])
    price = mu_squared(mechanism.answer(certain, epsilon=_UNLIMITED, delta=1e-5, noise=noise).event)
    return max(2, min(_MOST_QUERIES, round(_MU**2 / price))) if price > 0 else _MOST_QUERIES
