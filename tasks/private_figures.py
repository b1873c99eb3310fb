"""Figures of a release that are functions of private votes: for the curator's eyes, never published.

Consensus among teachers and the data-dependent ε say how the votes lay. They go into data/private/ and, on public
benchmark data only, into MLflow. No budget gate and no stopping rule reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.params import Aggregation
from terrine.privacy.ledger import StoredRelease

NOTICE = "PRIVATE: functions of the teachers' votes. Do not publish."


def private_figures(settings: Aggregation, histograms: np.ndarray, release: StoredRelease) -> dict[str, Any]:
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
    }
