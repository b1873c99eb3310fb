"""Accuracy of a run's student: as served, in batches, and as released with noise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tasks.runtime.run import Run
from tasks.runtime.store import Folders, read_json

GAP = 0.03
"""Largest gap between the accuracy in batches and the accuracy as served without a warning."""

OF_ORDER = {
    "mean_absolute_error": "mean absolute error",
    "within_one": "right, or next to it",
    "quadratic_kappa": "quadratic weighted kappa",
    "spearman": "Spearman's rank correlation",
}
"""Figures of ordered classes (`terrine.measures.order`) and their names."""


def released_accuracy(folders: Folders, figure: str = "accuracy") -> dict[str, Any] | None:
    """Return the content of accuracy.json if it contains a released figure of this name, else None."""
    path = folders.accuracy
    found = read_json(path) if path.is_file() else {}
    return found if found.get(figure) is not None else None


def released_error(folders: Folders) -> dict[str, Any] | None:
    """Return the content of accuracy.json if a mean absolute error was released, else None."""
    return released_accuracy(folders, "mean_absolute_error")


def known_accuracy(run: Run) -> dict[str, float]:
    """Return the public accuracies of a run: all accuracies for a public benchmark, else those released with noise."""
    released = released_accuracy(run.folders)
    known = {}
    if run.params.data.public_benchmark:
        found = read_json(run.folders.evaluation)
        known["accuracy"] = found["accuracy"]
        if "in_batches" in found:
            known["accuracy_in_batches"] = found["in_batches"]["accuracy"]
        rare = found.get("measures", {})
        known |= {name: of["value"] for name in ("balanced_accuracy", "auc") if (of := rare.get(name))}
        order = found.get("order", {})
        known |= {name: order[name]["value"] for name in OF_ORDER if order.get(name)}
        if found.get("auc") is not None:  # the mean over findings if there are several
            known["auc"] = found["auc"]
            entries = [entry for entry in found["per_class"] if entry["auc"] is not None]
            names = [re.sub(r"[^\w .-]", "_", entry["class"]) for entry in entries]  # characters that MLflow accepts
            known |= {f"finding_auc_{number}_{names[number]}": entry["auc"] for number, entry in enumerate(entries)}
    if released is not None:
        known |= {"accuracy_released": released["accuracy"], "accuracy_released_plus_minus": released["plus_minus"]}
    if (error := released_error(run.folders)) is not None:
        known |= {"error_released": error["mean_absolute_error"], "error_released_plus_minus": error["plus_minus"]}
    return known


def served_accuracy(run: Run) -> list[str]:
    """Return the public accuracies of a run as short texts, the accuracy as served first."""
    known = known_accuracy(run)
    lines = [
        f"{text} {100 * known[name]:.2f} %"
        for name, text in (("accuracy", "test accuracy as served"), ("accuracy_in_batches", "in batches"))
        if name in known
    ]
    if "accuracy_released" in known:
        noised = shown_accuracy(known["accuracy_released"], known["accuracy_released_plus_minus"])
        lines.append(f"accuracy released, as served: {noised}")
    return lines


def gap_warning(evaluation: dict[str, Any]) -> str | None:
    """Return a warning with remedies if the student as served is much less accurate than in batches, else None.

    The warning is private, because it contains private accuracies.

    Args:
        evaluation: Content of evaluation.json.
    """
    served, in_batches = evaluation["accuracy"], evaluation.get("in_batches", {}).get("accuracy", 0.0)
    if in_batches - served <= GAP:
        return None
    return (
        f"The student as served is right in {100 * served:.1f} % of cases, in mixed batches of images in "
        f"{100 * in_batches:.1f} %: the statistics it carries do not fit these images. Remedies: a student of sums "
        "(aggregation.mechanism=gradients, a new release); 64 or more of your images as a reference for predict and "
        "serve (--reference FOLDER); or --statistics current, for requests of 16 or more images of mixed classes."
    )


def gap_of(student: Path) -> str | None:
    """Return the `gap_warning` of a student's run, or None outside its project."""
    release = student.resolve().parent
    if release.parent.name != "release":
        return None
    evaluation = Folders(release.parents[2], release.name).evaluation
    return gap_warning(read_json(evaluation)) if evaluation.is_file() else None


def shown_measure(measured: dict[str, Any] | None) -> str:
    """Return a figure of `terrine.measures` with its interval as text: 0.957 (0.941 to 0.968), or a dash for None."""
    if measured is None:
        return "–"
    return "{value:.3f} ({low:.3f} to {high:.3f})".format(**measured)


def shown_accuracy(accuracy: float, plus_minus: float | None) -> str:
    """Return an accuracy as text: 81.23 %, or 81.2 ± 1.3 % if noise was added."""
    return f"{100 * accuracy:.1f} ± {100 * plus_minus:.1f} %" if plus_minus else f"{100 * accuracy:.2f} %"
