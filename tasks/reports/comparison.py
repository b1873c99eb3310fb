"""Runs beside each other: ε against accuracy, and what differs in their settings.

A comparison of accuracies is a choice by them, and no ε covers a choice by accuracies of private records. So of private
data only those take part that were released with noise (`evaluation.epsilon`); of public benchmarks all do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tasks.config.params import FAMILIES, Params, published
from tasks.config.values import flat
from tasks.reports.accuracy import released_accuracy, shown_accuracy
from tasks.reports.statement_page import read_statement
from tasks.runtime.origin import check_records
from tasks.runtime.run import open_run
from tasks.runtime.store import Folders, read_json
from tasks.runtime.timing import timings
from terrine.errors import ArtefactError, SettingError, TerrineError

DEFAULT = "default"
HIDDEN = "tracking", "runner", "device"
"""Settings that say how a run was made, and nothing of what came out."""


@dataclass(frozen=True)
class Compared:
    """A finished run as it is compared.

    data: whose runs it can be compared with: those about the same data, in the same unit. epsilon: the guarantee at
    `delta`; None where there is none. accuracy: in [0, 1]; None where it is private. plus_minus: how far noise may have
    moved it. answered: so many of `queries`, by `teachers`; None where records are summed and nobody votes. seconds:
    what all stages took; None where that is private or unknown. settings: what differs from the defaults, by
    section.key.
    """

    run: str
    data: str
    epsilon: float | None
    delta: float
    accuracy: float | None
    plus_minus: float
    teachers: int | None
    answered: int | None
    queries: int | None
    seconds: float | None
    settings: Mapping[str, Any]

    @property
    def shown_accuracy(self) -> str:
        """The accuracy as text, with what noise leaves open."""
        if self.accuracy is None:
            return "private"
        return shown_accuracy(self.accuracy, self.plus_minus) if self.plus_minus else f"{100 * self.accuracy:.2f} %"

    @property
    def shown_teachers(self) -> str:
        """How many teachers voted, as text."""
        return "–" if self.teachers is None else f"{self.teachers:,}"

    @property
    def shown_answered(self) -> str:
        """How many queries they answered, as text."""
        return "–" if self.answered is None else f"{self.answered:,}/{self.queries:,}"

    @property
    def shown_epsilon(self) -> str:
        """The guarantee as text."""
        return "none" if self.epsilon is None else f"{self.epsilon:.4f}"


def own_settings(params: Params) -> dict[str, Any]:
    """Return the settings that differ from their defaults and that anybody may read, by section.key."""
    values = params.model_dump(mode="json", exclude_defaults=True)
    for name, kinds in FAMILIES.items():
        kind = getattr(getattr(params, name), kinds.key)
        if kind != kinds.default:  # each kind's class has its own name for a default
            values[name] = {kinds.key: kind, **values.get(name, {})}
    return flat({name: value for name, value in published(values).items() if name not in HIDDEN})


def finished(root: Path) -> list[str]:
    """Return the names of all runs of the project that are evaluated, but transcriptions."""
    names = sorted(path.parent.name for path in (root / "data" / "private").glob("*/parameters.yaml"))
    each = [(name, Folders(root, name)) for name in names]
    return [name for name, of in each if of.finished and of.answers.exists()]


def compared(root: Path, names: Sequence[str]) -> list[Compared]:
    """Return these runs, read from disk, in the order of `along_the_front`.

    Raises ArtefactError for one that is not finished, with those that are.
    """
    rows = []
    for name in names:
        try:
            rows.append(_read(root, name))
        except (ArtefactError, SettingError) as error:
            raise ArtefactError(
                f"The run '{name}' cannot be compared: {error} Finished runs: {', '.join(finished(root)) or 'none'}."
            ) from error
    return along_the_front(rows)


def readable(root: Path) -> list[Compared]:
    """Return all finished runs of the project that this version can read, in the order of `along_the_front`."""
    rows = []
    for name in finished(root):
        try:
            rows.append(_read(root, name))
        except TerrineError:
            continue
    return along_the_front(rows)


def _read(root: Path, name: str) -> Compared:
    run = open_run(root, name)
    check_records(run)  # by whose settings it is decided what may be told
    statement = read_statement(run.folders.statement)
    released = released_accuracy(run.folders)
    accuracy, plus_minus = None, 0.0
    if run.params.data.public_benchmark:
        accuracy = read_json(run.folders.evaluation)["accuracy"]
    elif released is not None:
        accuracy, plus_minus = released["accuracy"], released["plus_minus"]
    votes = "numbers" not in statement["mechanism"]
    return Compared(
        run=name,
        data=series(run.params, statement["dataset"]),
        epsilon=statement["epsilon_guaranteed"],
        delta=statement["delta"],
        accuracy=accuracy,
        plus_minus=plus_minus,
        teachers=statement["teachers"] if votes else None,
        answered=statement["answered"] if votes else None,
        queries=statement["queries"] if votes else None,
        # How long stages take hangs on the records that they read.
        seconds=sum(record["seconds"] for record in timings(run).values())
        if run.params.tracking.private_metrics
        else None,
        settings=own_settings(run.params),
    )


def series(params: Params, account: str) -> str:
    """Return what runs must have in common to be compared: whose data in which edition, and the unit.

    account: the keyed digest that a statement calls the dataset; own data have no other name outside.
    """
    whose = "" if params.data.public_benchmark else f" of account {account[:8]}"
    edition = "" if params.data.edition == "1" else f", edition {params.data.edition}"
    return f"{params.data.name}{whose}{edition}, per {params.privacy.unit}"


def front(rows: Sequence[Compared]) -> set[str]:
    """Return the runs on the Pareto front of their data: no other is as accurate at a smaller ε."""
    found: set[str] = set()
    best: dict[str, float] = {}
    for row in sorted(_points(rows), key=lambda row: (row.epsilon, -row.accuracy, row.run)):  # type: ignore[operator]
        if row.accuracy > best.get(row.data, -1.0):  # type: ignore[operator]
            best[row.data] = row.accuracy  # type: ignore[assignment]
            found.add(row.run)
    return found


def _points(rows: Sequence[Compared]) -> list[Compared]:
    return [row for row in rows if row.epsilon is not None and row.accuracy is not None]


def along_the_front(rows: Sequence[Compared]) -> list[Compared]:
    """Return runs by their data, then by ε; those without a guarantee follow."""

    def place(row: Compared) -> tuple[Any, ...]:
        return row.data, row.epsilon is None, row.epsilon or 0.0, -(row.accuracy or 0.0), row.run

    return sorted(rows, key=place)


def differences(rows: Sequence[Compared]) -> list[str]:
    """Return for each run, in their order, in which settings it differs from most others of the same data."""
    texts = []
    for row in rows:
        alike = [other.settings for other in rows if other.data == row.data]
        keys = sorted({key for settings in alike for key in settings})
        parts = []
        for key in keys:
            values = Counter(str(settings.get(key, DEFAULT)) for settings in alike)
            own = str(row.settings.get(key, DEFAULT))
            if len(values) > 1 and (own != values.most_common(1)[0][0] or values[own] == 1):
                parts.append(f"{key}={own}")
        texts.append(", ".join(parts))
    return texts


def columns(rows: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return a mapping for each run, in their order: what is compared, and every setting in which any two differ."""
    best = front(rows)
    keys = sorted({key for row in rows for key in row.settings})
    differing = [key for key in keys if len({str(row.settings.get(key, DEFAULT)) for row in rows}) > 1]
    return [
        {
            **{field.name: getattr(row, field.name) for field in fields(row) if field.name != "settings"},
            "front": row.run in best,
            **{key: row.settings.get(key, DEFAULT) for key in differing},
        }
        for row in rows
    ]
