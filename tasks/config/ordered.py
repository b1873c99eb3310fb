"""What goes with classes that have an order (`data.grades`, `data.bins`), asked before anything runs."""

from __future__ import annotations

from typing import Any


def check_order(run: Any) -> None:
    """Raise ValueError where an order, or numbers in bins, mean nothing to other settings of the run."""
    scale = run.data.scale
    if scale is None:
        return
    key = "data.bins" if scale.edges else "data.grades"
    if run.transcription is not None:
        raise ValueError(
            f"{key} is for runs whose teachers vote or whose records are summed: a transcription copies a "
            "model of classes without order. Leave it out"
        )
    if run.aggregation.where == "parties":
        raise ValueError(
            f"{key} does not go with aggregation.where=parties: terms between parties name classes and no "
            "order. Set aggregation.where=local, or leave it out"
        )
    if scale.edges and run.evaluation.released_subgroups:
        raise ValueError(
            "evaluation.released_subgroups releases accuracies of classes, and data.bins makes numbers of "
            "them. Leave it out"
        )
