"""Figures of a release that are functions of private votes: for the curator's eyes, never published.

Consensus among teachers and the data-dependent ε say how the votes lay. They go into data/private/ and, on public
benchmark data only, into MLflow. No budget gate and no stopping rule reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.pipeline.vote_costs import Question, account
from terrine.aggregation.adaptive_queries import NEVER
from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.aggregation.mechanism import Mechanism
from terrine.privacy.ledger.ledger import StoredRelease

NOTICE = "PRIVATE: functions of the teachers' votes. Do not publish."


def private_figures(
    mechanism: Mechanism, delta: float, histograms: np.ndarray, release: StoredRelease
) -> dict[str, Any]:
    """Return consensus, how often the release agrees with the votes, and the data-dependent ε where there is one."""
    answered = release.arrays["answered"]
    labels = release.arrays["labels"]
    teachers = int(histograms[0].sum())
    winners = histograms.argmax(axis=1)
    return {
        "notice": NOTICE,
        "consensus_mean": float(histograms.max(axis=1).mean() / teachers),
        "consensus_deviation": float(histograms.max(axis=1).std() / teachers),
        "released_agrees_with_votes": float((labels == winners)[answered].mean()) if answered.any() else None,
        "votes_per_class": histograms.sum(axis=0).tolist(),
        **data_dependent_epsilon(mechanism, delta, histograms, release),
    }


def data_dependent_epsilon(
    mechanism: Mechanism, delta: float, histograms: np.ndarray, release: StoredRelease
) -> dict[str, float]:
    """Return the realised data-dependent ε and its order, where the analysis applies.

    It bounds what a *label* gives away when teachers agree. A noisy histogram gives the counts themselves, so for the
    Gaussian histogram there is no such figure; nor for Interactive-GNMax's second round, or several findings.
    """
    analysed = mechanism.mechanism in ("gnmax", "lnmax", "confident")
    if not analysed or mechanism.findings > 1 or not release.arrays["answered"].any():
        return {}
    asked = release.arrays["round"] != NEVER
    parameters = mechanism.describe()
    if isinstance(mechanism, ConfidentGNMax):
        parameters["sigma"] = parameters.pop("sigma2")
    question = Question(**parameters, delta=delta, weighting="realised")
    answered = release.arrays["answered"][asked] if mechanism.outcome_dependent else None
    figures = account(histograms[asked], question, answered)["data_dependent"]
    return {"epsilon_data_dependent": figures["epsilon"], "order": figures["order"]}
