"""What the private report shows of the partition: sizes, and which labels which teacher has."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from tasks.reports.charts import column_chart, heat_map
from tasks.reports.pages import bar_rows, percent, plain
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json
from terrine.data.label_mix import row_shares
from terrine.data.partition import PARTITIONS

MOST_COLUMNS = 150
"""Most teachers that are drawn; of more, so many at equal distances in the order of the chart."""

MOST_ROWS = 40
"""Most classes that are drawn, the most frequent ones."""


def partition_figures(run: Run) -> dict[str, Any] | None:
    """Return the partition's part of the report, or None where a partition of an earlier version holds no labels."""
    path = run.folders.partition / "label_histograms.npy"
    if not path.is_file():
        return None
    manifest = read_json(run.folders.partition / "manifest.json")
    names = run.folders.dataset_manifest()["class_names"]
    accuracy = read_json(run.folders.party_accuracy) if run.folders.party_accuracy.is_file() else {"parties": None}
    return figures(manifest, read_array(path), names) | {"accuracy": accuracy_figures(accuracy)}


def figures(manifest: dict[str, Any], histograms: np.ndarray, class_names: list[str]) -> dict[str, Any]:
    """Draw a partition by its manifest, and its int64 [teachers, classes], records of each class."""
    sizes, shares, teachers = histograms.sum(axis=1), row_shares(histograms), len(histograms)
    parties = manifest["parties"] if teachers <= MOST_COLUMNS else None
    if manifest["kind"] == "iid" or parties:
        order, x_label = (
            np.arange(teachers),
            "parties, in the order of the list below" if parties else "teachers, by number",
        )
    else:
        order, x_label = by_frequent_class(shares), "teachers, by their most frequent class"
    classes = np.sort(np.argsort(-histograms.sum(axis=0), kind="stable")[:MOST_ROWS])
    drawn = spread(teachers)
    mix = shares[order[drawn]][:, classes].T
    return {
        "facts": facts(manifest),
        "mix": heat_map(
            mix, [class_names[index] for index in classes], x_label=x_label, y_label="class", last=teachers
        ),
        "largest_share": percent(float(mix.max())),
        "sizes": None
        if parties
        else column_chart(
            np.sort(sizes)[::-1][drawn],
            x_label="teachers, the largest part first",
            y_label="records",
            last=teachers,
        ),
        "drawn": len(drawn) if len(drawn) < teachers else None,
        "rows": len(classes) if len(classes) < len(class_names) else None,
        "parties": bar_rows(parties, sizes.tolist()) if parties else None,
    }


def accuracy_figures(content: dict[str, Any]) -> dict[str, Any] | None:
    """Draw the student's accuracy on each party's records (`figures.party_accuracy`); None: all are alike."""
    if content["parties"] is None:
        return None
    values = np.array([value for value in content["parties"] if value is not None])
    summary = [
        ("Mean over parties", f"{percent(content['mean'])} ± {percent(content['deviation'])}"),
        ("Of the worst tenth, at most", percent(content["worst_tenth"])),
        ("Of the worst party", percent(content["worst"])),
    ]
    if "names" in content:
        rows = [
            (name, value, f"{percent(value)} of {count:,}")
            for name, value, count in zip(content["names"], content["parties"], content["records"], strict=True)
            if value is not None
        ]
        names, lengths, texts = (list(column) for column in zip(*rows, strict=True))
        return {"facts": summary, "chart": None, "bars": bar_rows(names, lengths, texts, longest=1.0)}
    chart = column_chart(
        np.sort(values)[::-1][spread(len(values))],
        x_label="parties, the best served first",
        y_label="accuracy",
        last=len(values),
    )
    return {"facts": summary, "chart": chart, "bars": None}


def by_frequent_class(shares: np.ndarray) -> np.ndarray:
    """Return the order of teachers by their most frequent class, within a class by its share, the largest first."""
    return np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))


def facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the manifest says in words."""
    labels = manifest["labels"]
    distance = labels["label_distance"]
    kind = PARTITIONS.of(manifest["kind"])
    settings = [f"{key}={manifest[key]:g}" for key in kind.model_fields if key not in ("kind", "teachers")]
    return [
        ("Kind", f"{', '.join([manifest['kind'], *settings])}. {inspect.getdoc(kind)}"),
        ("Records per teacher", _spread(labels["records_per_teacher"])),
        ("Teachers without a record", f"{manifest['teachers_without_records']:,} of {manifest['teachers']:,}"),
        ("Classes per teacher", _spread(labels["classes_per_teacher"])),
        (
            "Teachers that never saw some class",
            f"{labels['teachers_without_some_class']:,} of {manifest['teachers']:,}",
        ),
        (
            "Distance of a teacher's labels from those of all records",
            f"{distance['mean']:.3f} on average, {distance['largest']:.3f} at most (total variation; 0 is the same "
            f"mix; parts of these sizes dealt at random have about {distance['mean_by_chance']:.3f} on average)",
        ),
        ("Groups kept together", "no groups" if manifest["groups"] is None else f"{manifest['groups']:,}"),
    ]


def spread(teachers: int) -> np.ndarray:
    """Return which of `teachers` columns are drawn: all, or MOST_COLUMNS at equal distances, the ends among them."""
    if teachers <= MOST_COLUMNS:
        return np.arange(teachers)
    return np.rint(np.linspace(0, teachers - 1, MOST_COLUMNS)).astype(np.int64)


def _spread(values: dict[str, float]) -> str:
    return f"{plain(values['smallest'])} to {plain(values['largest'])}, median {values['median']:,g}"
