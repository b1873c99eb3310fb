"""What papers print, row by row, and the preset that makes the row here: for people to compare, no part of a run.

A paper is `published/NAME.yaml`: its title, its page of docs/, rows of its tables, and what makes its other tables. A
row names a preset and what `--set` adds to it; what is less than in the paper is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.values import read_yaml
from terrine.errors import SettingError, did_you_mean

FOLDER = Path(__file__).with_name("published")


@dataclass(frozen=True)
class PaperRow:
    """One accuracy that a paper prints."""

    table: str
    """Its table, figure or section."""
    preset: str
    accuracy: float
    """In per cent."""
    row: str = ""
    """Which row of the table, or which of its cells."""
    spread: float = 0.0
    """What stands after ±."""
    epsilon: float | None = None
    """By the paper's own account."""
    sets: tuple[str, ...] = ()
    """What `--set` adds to the preset."""
    reduced: str = ""
    """What is less, or other, here than in the paper; nothing where the preset is the paper's system."""
    gpu: bool = False
    """Whether two processors would take a day or more over its five seeds."""

    @property
    def of_a_preset(self) -> bool:
        """Whether a preset as it is stands beside this row."""
        return not self.sets and not self.reduced


@dataclass(frozen=True)
class Paper:
    """A paper, and how its tables are made here."""

    name: str
    title: str
    page: str
    """Of docs/, where what differs and what it changes is said."""
    rows: tuple[PaperRow, ...]
    elsewhere: dict[str, str]
    """Tables and figures that are no preset's accuracies, and the command or the page that has them."""

    def chosen(self, table: str | None) -> tuple[PaperRow, ...]:
        """Return the rows of one table, or all. Raises SettingError where there are none."""
        tables = dict.fromkeys(row.table for row in self.rows)
        if table is None:
            return self.rows
        if found := tuple(row for row in self.rows if row.table == table):
            return found
        if table in self.elsewhere:
            raise SettingError(f"{table} of {self.name} is made by {self.elsewhere[table]}.")
        raise SettingError(
            f"{self.name} has no rows of '{table}' here, but of {', '.join(tables)}.{did_you_mean(table, tables)}"
        )


def papers() -> dict[str, Paper]:
    """Return all papers by name."""
    return {path.stem: _read(path) for path in sorted(FOLDER.glob("*.yaml"))}


def published(preset: str) -> PaperRow | None:
    """Return what a paper prints for the system that a preset is, where it is one."""
    rows = (row for paper in papers().values() for row in paper.rows)
    return next((row for row in rows if row.preset == preset and row.of_a_preset), None)


def _read(path: Path) -> Paper:
    values = read_yaml(path)
    values.pop("shared", None)  # what its rows refer to
    rows = tuple(_row(table, row) for table, rows in values.pop("tables").items() for row in rows)
    return Paper(name=path.stem, rows=rows, elsewhere=values.pop("elsewhere", {}), **values)


def _row(table: str, values: dict[str, Any]) -> PaperRow:
    return PaperRow(table, sets=tuple(values.pop("set", ())), **values)
