"""Compare runs: ε against accuracy, and the settings in which they differ.

Users compare accuracies to choose a run, and no ε covers a choice based on exact accuracies on private records. For
private data, only accuracies released with noise (`evaluation.epsilon`) are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tasks.config.params import Params, public_parameters
from tasks.config.values import flat
from tasks.reports.accuracy import released_accuracy, shown_accuracy
from tasks.reports.charts import scatter
from tasks.reports.pages import epsilon, plain, probability, render
from tasks.runtime.progress import total_seconds
from tasks.runtime.run import open_run
from tasks.runtime.staleness import check_records
from tasks.runtime.store import Folders, read_json
from terrine.errors import ArtefactError, TerrineError
from terrine.privacy.statement import epsilon_added, read_statement

HIDDEN = "tracking", "runner", "device", "about"
"""Sections that are not compared: settings that do not affect results, and the operator's statement."""

DETERMINES_EPSILON = "aggregation.epsilon", "aggregation.sigma"
COLOURS = 6


@dataclass(frozen=True)
class Compared:
    """Figures of one finished run for the comparison.

    Attributes:
        run: Name of the run.
        data: Key that comparable runs share: same data, same unit.
        epsilon: Guaranteed ε at `delta`; None if nothing is guaranteed.
        epsilon_added: ε under add/remove neighbours; None if nothing is guaranteed or only labels are protected.
        delta: δ of the guarantee.
        accuracy: Accuracy in [0, 1]; None if it is private.
        plus_minus: Half the width of the accuracy's noise interval; None if the accuracy has no noise or is private.
        teachers: Number of teachers; None (like `answered` and `queries`) if records are summed.
        answered: Number of answered queries.
        queries: Number of queries.
        seconds: Duration of all stages except the report; None if it is private.
        settings: Effective settings that may be published, by section.key.
    """

    run: str
    data: str
    epsilon: float | None
    epsilon_added: float | None
    delta: float
    accuracy: float | None
    plus_minus: float | None
    teachers: int | None
    answered: int | None
    queries: int | None
    seconds: float | None
    settings: Mapping[str, Any]


def effective_settings(params: Params) -> dict[str, Any]:
    """Return all settings that may be published and that this run uses, by section.key."""
    unused = {*HIDDEN, *(("partition", "teachers") if params.aggregation.reveals == "sums" else ())}
    if params.aggregation.where != "parties":
        unused.add("collaboration")
    values = public_parameters(params)
    return flat({name: value for name, value in values.items() if name not in unused and value is not None})


def compared(root: Path, names: Sequence[str] | None = None) -> list[Compared]:
    """Return finished runs, in the order of `along_the_front`.

    Args:
        root: The project.
        names: Names of runs; None: all finished runs that this version can read, except transcriptions.

    Raises:
        ArtefactError: A named run is not finished; the message lists the finished runs.
    """
    made = sorted(path.parent.name for path in (root / "data" / "private").glob("*/parameters.yaml"))
    finished = [name for name in made if (of := Folders(root, name)).finished and of.answers.exists()]
    rows = []
    for name in finished if names is None else names:
        try:
            rows.append(_read(root, name))
        except TerrineError as error:
            if names is not None:
                raise ArtefactError(
                    f"The run '{name}' cannot be compared: {error} Finished runs: {', '.join(finished) or 'none'}."
                ) from error
    return along_the_front(rows)


def _read(root: Path, name: str) -> Compared:
    run = open_run(root, name)
    check_records(run)  # the settings determine what may be shown
    statement = read_statement(run.folders.statement)
    released = released_accuracy(run.folders)
    accuracy = plus_minus = None
    if run.params.data.public_benchmark:
        accuracy = read_json(run.folders.evaluation)["accuracy"]
    elif released is not None:
        accuracy, plus_minus = released["accuracy"], released["plus_minus"]
    votes = "numbers" not in statement["mechanism"]
    return Compared(
        run=name,
        data=series(run.params, statement["dataset"]),
        epsilon=statement["epsilon_guaranteed"],
        epsilon_added=epsilon_added(statement),
        delta=statement["delta"],
        accuracy=accuracy,
        plus_minus=plus_minus,
        teachers=statement["teachers"] if votes else None,
        answered=statement["answered"] if votes else None,
        queries=statement["queries"] if votes else None,
        # The duration of a stage depends on the records that it reads.
        seconds=total_seconds(run) if run.params.tracking.private_metrics else None,
        settings=effective_settings(run.params),
    )


def series(params: Params, account: str) -> str:
    """Return the key that comparable runs share: account, edition and unit.

    account: Keyed digest of the account, as in the statement.
    """
    whose = "" if params.data.public_benchmark else f" of account {account[:8]}"
    edition = "" if params.data.edition == "1" else f", edition {params.data.edition}"
    return f"{params.data.name}{whose}{edition}, per {params.privacy.unit}"


def front(rows: Sequence[Compared]) -> set[str]:
    """Return the runs on the Pareto front of their data: no other run is as accurate at a smaller ε."""
    found: set[str] = set()
    best: dict[str, float] = {}
    points = [(row.epsilon, -row.accuracy, row) for row in rows if row.epsilon is not None and row.accuracy is not None]
    for _, lost, row in sorted(points, key=lambda point: (*point[:2], point[2].run)):
        if -lost > best.get(row.data, -1.0):
            best[row.data] = -lost
            found.add(row.run)
    return found


def along_the_front(rows: Sequence[Compared]) -> list[Compared]:
    """Return runs sorted by data, then by ε; those without a guarantee come last."""
    return sorted(
        rows, key=lambda row: (row.data, row.epsilon is None, row.epsilon or 0.0, -(row.accuracy or 0.0), row.run)
    )


def differences(rows: Sequence[Compared]) -> list[str]:
    """Return for each run, in order, the settings in which it differs from most others on the same data."""
    texts = []
    for row in rows:
        alike = [other.settings for other in rows if other.data == row.data]
        keys = sorted({key for settings in alike for key in settings})
        parts = []
        for key in keys:
            values = Counter(str(settings.get(key)) for settings in alike)
            own = str(row.settings.get(key))
            if len(values) > 1 and (own != values.most_common(1)[0][0] or values[own] == 1):
                parts.append(f"{key}={own}")
        texts.append(", ".join(parts))
    return texts


def table_cells(rows: Sequence[Compared]) -> list[dict[str, str]]:
    """Return for each run, in order, its table cells by heading, without columns that are empty for all runs."""
    best = front(rows)
    cells = [
        {
            "run": row.run,
            "ε": epsilon(row.epsilon),
            "ε, added": "–" if row.epsilon_added is None else epsilon(row.epsilon_added),
            "δ": probability(row.delta),
            "as served": "private" if row.accuracy is None else shown_accuracy(row.accuracy, row.plus_minus),
            "front": "yes" if row.run in best else "",
            "teachers": "–" if row.teachers is None else f"{row.teachers:,}",
            "answered": "–" if row.answered is None else f"{row.answered:,}/{row.queries:,}",
            "seconds": "–" if row.seconds is None else f"{row.seconds:,.0f}",
        }
        for row in rows
    ]
    shown = [heading for heading in cells[0] if {texts[heading] for texts in cells} != {"–"}]
    return [{heading: texts[heading] for heading in shown} for texts in cells]


def render_comparison(rows: Sequence[Compared]) -> str:
    """Return a self-contained HTML page: a chart and a table for each dataset. Colours show a varied setting."""
    tables = []
    for data in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == data]
        varied = {key: [plain(row.settings.get(key)) for row in own] for key in differing(own)}
        colouring = [key for key, values in varied.items() if len(set(values)) <= COLOURS]
        # A setting that only some runs have follows from another, such as the mechanism.
        common = set.intersection(*(set(row.settings) for row in own))
        by = min(
            colouring,
            key=lambda key: (key in DETERMINES_EPSILON, key not in common, len(set(varied[key]))),
            default=None,
        )
        groups = sorted(set(varied[by]), key=lambda text: (len(text), text)) if by else []
        colours = [groups.index(value) for value in varied[by]] if by else [0] * len(own)
        cells = table_cells(own)
        points = [
            (row.epsilon, row.accuracy, row.plus_minus or 0, colour, f"{row.run}: ε={texts['ε']}, {texts['as served']}")
            for row, colour, texts in zip(own, colours, cells, strict=True)
            if row.epsilon is not None and row.accuracy is not None
        ]
        tables.append(
            {
                "data": data,
                "chart": scatter(points, x_label="ε", y_label="accuracy as served") if points else "",
                "by": by,
                "groups": groups,
                "rows": [
                    (colour, texts | {key: values[number] for key, values in varied.items()})
                    for number, (colour, texts) in enumerate(zip(colours, cells, strict=True))
                ],
            }
        )
    return render("comparison.html", {"tables": tables})


def differing(rows: Sequence[Compared]) -> list[str]:
    """Return the settings in which any two runs differ, in alphabetical order."""
    keys = sorted({key for row in rows for key in row.settings})
    return [key for key in keys if len({str(row.settings.get(key)) for row in rows}) > 1]


def columns(rows: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return a mapping for each run, in order: the compared figures, and every setting in which any two runs differ."""
    best = front(rows)
    return [
        {
            **{field.name: getattr(row, field.name) for field in fields(row) if field.name != "settings"},
            "front": row.run in best,
            **{key: row.settings.get(key) for key in differing(rows)},
        }
        for row in rows
    ]
