"""How many released answers are right, where queries are real images whose labels evaluation knows."""

from __future__ import annotations

import numpy as np

from tasks.artefacts.images import POOL, pool_order
from tasks.artefacts.records import read_pool_labels
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table


def pool_truth(run: Run) -> np.ndarray | None:
    """Return the true class of every query, int64 [queries], -1 where it is no real image; None without a pool, and
    where an image has several findings."""
    labels = read_pool_labels(run.folders)
    if labels is None or run.params.data.several:
        return None
    batches = read_json(run.folders.images / "manifest.json")["batches"]
    order = pool_order(run.params.seed, len(labels))
    truth = np.full(sum(batch["count"] for batch in batches), -1, dtype=np.int64)
    for batch in batches:
        if batch["kind"] == POOL:
            own = order[batch["source_start"] : batch["source_start"] + batch["count"]]
            truth[batch["first"] : batch["first"] + batch["count"]] = labels[own]
    return truth


def answer_figures(run: Run) -> dict[str, float | int] | None:
    """Return how many queries of the pool were asked and answered, and the share of answers that are right; a noisy
    histogram counts as its largest entry. None without a pool, and where nobody answers. The labels are looked at here
    alone.
    """
    truth = pool_truth(run)
    if truth is None or run.params.aggregation.reveals == "sums":
        return None
    answers = read_table(run.folders.answers / "answers.parquet")
    answers = answers[answers["answered"]]
    counts = [name for name in answers.columns if name.startswith("count_")]
    given = answers[counts].to_numpy().argmax(axis=1) if counts else answers["label"].to_numpy()
    known = truth[answers["query"].to_numpy()]
    real = known >= 0
    right = int((given[real] == known[real]).sum())
    figures: dict[str, float | int] = {"of_pool": int((truth >= 0).sum()), "answered": int(real.sum())}
    return figures | ({"accuracy": right / int(real.sum())} if real.any() else {})
