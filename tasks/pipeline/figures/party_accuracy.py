"""Accuracy of the student on each party's records, which an average over all parties may hide.

The student has not seen these records, but the teachers have. The figures are private and not covered by ε. Records are
classified one by one, as the student is served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.artefacts.records import read_assignment
from tasks.runtime.run import Run
from tasks.runtime.store import write_json
from terrine.data.dataset import Dataset
from terrine.determinism.randomness import numpy_generator

MOST_OF_A_PARTY, MOST_IN_ALL = 100, 10_000
"""Largest numbers of records to classify."""

NOTICE = "PRIVATE evaluation: computed on the parties' own records, covered by no guarantee. Do not publish."


def write_party_accuracy(run: Run, dataset: Dataset, predict: Callable[[np.ndarray], np.ndarray]) -> None:
    """Write the student's accuracy on each party's records, or nothing if records were assigned at random.

    Args:
        run: The run.
        dataset: Its records.
        predict: Function from images or rows to class probabilities [images, classes].
    """
    content: dict[str, Any] = {"notice": NOTICE, "parties": None}
    if run.params.partition.kind != "iid":
        assignment, parties = read_assignment(run.folders), run.params.partition.teachers
        chosen = some_of_each(assignment, parties, run.params.seed)
        right = dataset.decided(predict(dataset.train_images[chosen])) == dataset.train_labels[chosen]
        content |= party_figures(assignment[chosen], right, parties)
        if run.params.partition.kind == "party":
            content["names"] = list(dataset.party_names)
    write_json(run.folders.party_accuracy, content)


def some_of_each(assignment: np.ndarray, parties: int, seed: int) -> np.ndarray:
    """Return ascending indices of equally many records per party; a party with fewer records contributes all."""
    most = max(2, min(MOST_OF_A_PARTY, MOST_IN_ALL // parties))
    order = numpy_generator(seed, "party accuracy").permutation(len(assignment))
    by_party = order[np.argsort(assignment[order], kind="stable")]
    counts = np.bincount(assignment, minlength=parties)
    rank = np.arange(len(assignment)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(by_party[rank < most])


def party_figures(party: np.ndarray, right: np.ndarray, parties: int) -> dict[str, Any]:
    """Return accuracy and record count by party, and a summary in which parties have equal weight.

    Args:
        party: Party of each record, int64 [records].
        right: Whether each record was classified correctly, bool [records].
        parties: Number of parties.

    Returns:
        The figures; the accuracy of a party without records is None.
    """
    counts = np.bincount(party, minlength=parties)
    hits = np.bincount(party, weights=right, minlength=parties)
    seen = counts > 0
    accuracy = hits[seen] / counts[seen]
    return {
        "parties": [float(hit / count) if count else None for hit, count in zip(hits, counts, strict=True)],
        "records": counts.tolist(),
        "mean": float(accuracy.mean()),
        "deviation": float(accuracy.std()),
        "worst_tenth": float(np.quantile(accuracy, 0.1)),
        "worst": float(accuracy.min()),
    }
