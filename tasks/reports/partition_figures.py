"""The partition in the private report: sizes, labels of each teacher, and the student's accuracy for each party."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tasks.reports.charts import heat_map
from tasks.reports.pages import bar_rows, percent, plain
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json
from terrine.data.label_mix import row_shares
from terrine.data.partition import PARTITIONS

MOST_COLUMNS = 150
"""Largest number of teachers drawn; if there are more, equally spaced ones are drawn."""

MOST_ROWS = 40
"""Largest number of classes drawn, the most frequent ones."""


def partition_figures(run: Run) -> dict[str, Any] | None:
    """Return the report's figures about the partition, or None if there is no partition."""
    path = run.folders.partition / "label_histograms.npy"
    if not path.is_file():
        return None
    manifest = read_json(run.folders.partition / "manifest.json")
    names = run.folders.dataset_manifest()["class_names"]
    accuracy = read_json(run.folders.party_accuracy) if run.folders.party_accuracy.is_file() else {"parties": None}
    return figures(manifest, read_array(path), names) | {"accuracy": accuracy_figures(accuracy)}


def figures(manifest: dict[str, Any], histograms: np.ndarray, class_names: list[str]) -> dict[str, Any]:
    """Draw a partition, given its manifest and its label histograms, int64 [teachers, classes]."""
    sizes, shares, teachers = histograms.sum(axis=1), row_shares(histograms), len(histograms)
    parties = manifest["parties"] if teachers <= MOST_COLUMNS else None
    order, x_label = (
        np.arange(teachers),
        "parties, in the order of the list below" if parties else "teachers, by number",
    )
    if manifest["kind"] != "iid" and not parties:  # sort by most frequent class, within a class by its share
        order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
        x_label = "teachers, by their most frequent class"
    classes = np.sort(np.argsort(-histograms.sum(axis=0), kind="stable")[:MOST_ROWS])
    drawn = np.rint(np.linspace(0, teachers - 1, min(teachers, MOST_COLUMNS))).astype(np.int64)
    mix = shares[order[drawn]][:, classes].T
    return {
        "facts": facts(manifest),
        "mix": heat_map(
            mix, [class_names[index] for index in classes], x_label=x_label, y_label="class", last=teachers
        ),
        "largest_share": percent(float(mix.max())),
        "drawn": len(drawn) if len(drawn) < teachers else None,
        "rows": len(classes) if len(classes) < len(class_names) else None,
        "parties": bar_rows(parties, sizes.tolist()) if parties else None,
    }


def accuracy_figures(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the student's accuracy for each party (`figures.party_accuracy`); None if there are no parties."""
    if content["parties"] is None:
        return None
    summary = [
        ("Mean over parties", f"{percent(content['mean'])} ± {percent(content['deviation'])}"),
        ("Worst tenth, at most", percent(content["worst_tenth"])),
        ("Worst party", percent(content["worst"])),
    ]
    if "names" not in content:
        return {"facts": summary, "bars": None}
    known = [
        (name, value, f"{percent(value)} of {count:,}")
        for name, value, count in zip(content["names"], content["parties"], content["records"], strict=True)
        if value is not None
    ]
    names, lengths, texts = (list(column) for column in zip(*known, strict=True))
    return {"facts": summary, "bars": bar_rows(names, lengths, texts, longest=1.0)}


def facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts in a partition's manifest as (name, text)."""
    labels, teachers = manifest["labels"], f"{manifest['teachers']:,}"
    distance = labels["label_distance"]
    kind = PARTITIONS.of(manifest["kind"])
    settings = [f"{key}={manifest[key]:g}" for key in kind.model_fields if key not in ("kind", "teachers")]
    spreads = {
        name: f"{plain(values['smallest'])} to {plain(values['largest'])}, median {values['median']:,g}"
        for name, values in labels.items()
        if name in ("records_per_teacher", "classes_per_teacher")
    }
    return [
        ("Kind", f"{', '.join([manifest['kind'], *settings])}. {inspect.getdoc(kind)}"),
        ("Records per teacher", spreads["records_per_teacher"]),
        ("Teachers without a record", f"{manifest['teachers_without_records']:,} of {teachers}"),
        ("Classes per teacher", spreads["classes_per_teacher"]),
        ("Teachers that never saw some class", f"{labels['teachers_without_some_class']:,} of {teachers}"),
        (
            "Distance of a teacher's labels from those of all records",
            f"{distance['mean']:.3f} on average, {distance['largest']:.3f} at most (total variation; 0 is the same "
            "mix)",
        ),
        ("Groups kept together", "no groups" if manifest["groups"] is None else f"{manifest['groups']:,}"),
    ]
