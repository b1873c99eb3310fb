"""How the columns of a table become numbers, learned from public rows alone.

A column that holds numbers is standardised with the mean and deviation of the public rows, and a missing value becomes
the mean. Any other column becomes one indicator per value that the public rows hold; another value sets none. So no
private record has a say in the features of another, and the encoding is as public as those rows: it travels with the
student and turns new rows into what the student takes.

A number that is infinite, or a word among numbers, is an error that names the cell and never changes what a column is:
one odd cell would otherwise make of a column of numbers as many indicators as it has values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from terrine.data.labels import MISSING
from terrine.errors import InputError
from terrine.extras import from_extra

with from_extra("pipeline", "Tables"):
    import pandas as pd

_NO_NUMBER = ("N/A", "n/a", "NULL", "null", "None")
"""Cells that hold no value in a column of numbers; among words they are words."""

_SHOWN = 3
_WORDS = 20
"""As many words a column may have, however few its rows."""


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers: standardised by `mean` and `deviation`, or an indicator for each of `values`."""

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    values: tuple[str, ...] | None = None

    def texts(self, cells: pd.Series) -> np.ndarray:
        """Return cells, of whatever type pandas gave them, as the stripped texts that a CSV file holds.

        What pandas knows as missing becomes the text that a missing value is in this column.
        """
        return _texts(cells, next((text for text in MISSING if text in (self.values or ())), ""))


@dataclass(frozen=True)
class Encoding:
    """How rows become features, learned from public rows alone."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(
            column.name if value is None else f"{column.name}={value}"
            for column in self.columns
            for value in ((None,) if column.values is None else column.values)
        )

    def apply(self, frame: pd.DataFrame, where: str, unit: str = "line") -> np.ndarray:
        """Return float32 [rows, features] of a table of texts, numbers or both, its columns in any order.

        Columns that it does not know are ignored. In errors, `where` says where the table comes from, and `unit` what
        its index counts. Raises InputError for columns that are missing, and for a cell that is a word or infinite
        where the column holds numbers.
        """
        absent = [f"'{column.name}'" for column in self.columns if column.name not in frame]
        if absent:
            what = f"column {absent[0]}" if len(absent) == 1 else f"columns {', '.join(absent)}"
            raise InputError(f"{where} has no {what}; its columns are {', '.join(map(str, frame))}.")
        blocks = []
        for column in self.columns:
            cells = frame[column.name]
            if column.values is None:
                numbers, known, missing = numbers_in(cells)
                _refuse_no_numbers(cells, numbers, known | missing, where, unit)
                blocks.append(np.where(known, (numbers - column.mean) / column.deviation, 0.0)[:, None])
                continue
            place = pd.Index(column.values).get_indexer(column.texts(cells))
            indicators = np.zeros((len(frame), len(column.values)), np.float32)
            rows = np.flatnonzero(place >= 0)
            indicators[rows, place[rows]] = 1
            blocks.append(indicators)
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")

    def unknown(self, frame: pd.DataFrame) -> dict[str, list[str]]:
        """Return, of each column of words, the values in `frame` that public rows did not hold: none is encoded."""
        found = {
            column.name: sorted(set(column.texts(frame[column.name])) - {*column.values, *MISSING})
            for column in self.columns
            if column.values is not None
        }
        return {name: values for name, values in found.items() if values}

    def example(self) -> pd.DataFrame:
        """Return one row that nobody has: the mean of each number, and the first of each column's words."""
        return pd.DataFrame(
            {
                column.name: [round(column.mean, 2) if column.values is None else column.values[0]]
                for column in self.columns
            }
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return it as JSON-able values, which `from_description` takes."""
        return [
            {"name": column.name, "mean": column.mean, "deviation": column.deviation}
            if column.values is None
            else {"name": column.name, "values": list(column.values)}
            for column in self.columns
        ]

    @classmethod
    def from_description(cls, description: list[dict[str, Any]]) -> Encoding:
        """Return the encoding that `describe` described. Raises InputError for what describes none."""
        for entry in description:
            held = [entry["name"], *entry["values"]] if "values" in entry else [entry["name"]]
            numbers = [] if "values" in entry else [entry["mean"], entry["deviation"]]
            if not all(isinstance(text, str) for text in held) or not all(np.isfinite(number) for number in numbers):
                raise InputError(f"The column {str(entry['name'])[:80]!a} has other than texts or finite numbers.")
        return cls(
            tuple(
                Column(entry["name"], values=tuple(entry["values"]))
                if "values" in entry
                else Column(entry["name"], entry["mean"], entry["deviation"])
                for entry in description
            )
        )


def learn(public: pd.DataFrame, where: str, categorical: Collection[str] = ()) -> Encoding:
    """Return the encoding that public rows, a table of texts by line, show.

    categorical: columns that hold words even where these look like numbers. Raises InputError for a column of numbers
    that holds anything else, naming the cell, and for a table without columns.
    """
    columns = []
    for name in public:
        cells = public[name]
        numbers, known, missing = numbers_in(cells)
        if name in categorical or not known.any():
            columns.append(Column(str(name), values=tuple(sorted(set(cells)))))
            continue
        _refuse_no_numbers(cells, numbers, known | missing, where, "line", public=True)
        shown = numbers[known]
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(shown.mean()), float(shown.std())
        if not np.isfinite([mean, deviation]).all():
            line = cells.index[int(np.abs(np.where(known, numbers, 0.0)).argmax())]
            raise InputError(
                f"{where}, line {line}: '{name}' is {cells[line]}, which is too large to be averaged. Correct it, or "
                "leave it empty."
            )
        columns.append(Column(str(name), mean, deviation or 1.0))
    if not columns:
        raise InputError(f"{where} has no column beside the target. Teachers need something to learn from.")
    return Encoding(tuple(columns))


def identifying(encoding: Encoding, rows: int) -> list[Column]:
    """Return the columns of words of which so many values are in so many rows that they tell rows apart: identifiers,
    dates, free text, numbers with decimal commas. What they hold would be published with the student."""
    return [column for column in encoding.columns if len(column.values or ()) > max(_WORDS, rows / 3)]


def kinds_of_columns(encoding: Encoding, public: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the names of the columns by what public rows show: numbers, words, one value alone (constant), none."""
    found: dict[str, list[str]] = {"numbers": [], "words": [], "constant": [], "empty": []}
    for column in encoding.columns:
        numbers, known, missing = numbers_in(public[column.name])
        held = np.unique(numbers[known]) if column.values is None else column.values
        kind = "numbers" if column.values is None else "words"
        found["empty" if missing.all() else "constant" if len(held) == 1 else kind].append(column.name)
    return {kind: tuple(names) for kind, names in found.items() if names}


def named_by_a_record(encoding: Encoding) -> bool:
    """Return whether most columns are called by what they could hold, a number or one of their words, as in a file
    without a header, whose first line is a record. Numbers that count (0, 1, 2, ..., or years) are names."""
    numbers, known, missing = numbers_in(pd.Series([column.name for column in encoding.columns], dtype=object))
    of_numbers = np.array([column.values is None for column in encoding.columns])
    of_words = sum(column.name in (column.values or ()) for column in encoding.columns)
    count = known[of_numbers].sum() > 1 and (np.diff(numbers[of_numbers]) == 1).all()
    called = 0 if count else ((known | missing) & of_numbers).sum()
    return bool(2 * (of_words + called) > len(encoding.columns))


def numbers_in(cells: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers in a column, float64, and which are finite, and which cells are missing."""
    if pd.api.types.is_numeric_dtype(cells):
        numbers = cells.to_numpy(np.float64, na_value=np.nan)
        return numbers, np.isfinite(numbers), np.isnan(numbers)
    texts = _texts(cells, "")
    missing = np.isin(texts, [*MISSING, *_NO_NUMBER])
    numbers = pd.to_numeric(pd.Series(np.where(missing, "", texts)), errors="coerce").to_numpy(np.float64)
    return numbers, np.isfinite(numbers), missing


def _texts(cells: pd.Series, missing: str) -> np.ndarray:
    """Return the cells as stripped texts, objects [rows], and `missing` for those that pandas knows as missing."""

    def text(value: Any) -> str:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            return str(int(value))  # pandas makes 1.0 of 1 where another row is empty
        return str(value).strip()

    numbers, values = pd.factorize(cells.astype(object), use_na_sentinel=False)  # values repeat: each is looked at once
    texts = np.array([missing if pd.isna(value) else text(value) for value in values], object)
    return texts[numbers]


def _refuse_no_numbers(
    cells: pd.Series, numbers: np.ndarray, right: np.ndarray, where: str, unit: str, *, public: bool = False
) -> None:
    """Raise InputError that names the first cells of a column of numbers that are none."""
    wrong = np.flatnonzero(~right)
    if not len(wrong):
        return
    first = f"{where}, {unit} {cells.index[wrong[0]]}: '{cells.name}' is '{cells.iloc[wrong[0]]}'"
    shown = ", ".join(str(cells.index[row]) for row in wrong[:_SHOWN]) + (", ..." if len(wrong) > _SHOWN else "")
    more = "" if len(wrong) == 1 else f" ({len(wrong)} such cells, in {unit} {shown})"
    if np.isinf(numbers[wrong[0]]):
        raise InputError(
            f"{first}{more}, which is no finite number. Correct it, or leave it empty: a missing value counts as the "
            "column's mean."
        )
    remedy = "Correct the value, or leave it empty."
    if public:
        remedy += f" If the column holds words that look like numbers, say so: data.categorical=[{cells.name}]."
    raise InputError(f"{first}{more}, while the column holds numbers. {remedy}")
