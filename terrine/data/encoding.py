"""Encode the columns of a table as features in [0, 1], by declaration or from public rows only.

A numeric column has knots: a number is encoded by its position between the two nearest ones (hat functions), so a
linear head can fit any curve that is linear between knots. Numbers beyond count as the nearest knot. Any other
column has one indicator for each known word. Missing and unknown values set no feature. No private record affects
another record's features, and the encoding is public: it is part of the student.

An infinite number, or a word among numbers, is an error that names the cell. Such a cell never changes the type of the
column, which would otherwise get as many indicators as it has values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked_dataclass

from terrine.data.labels import MISSING
from terrine.errors import InputError, some
from terrine.extras import from_extra

with from_extra("pipeline", "Tables"):
    import pandas as pd

_MISSING_NUMBER = (*MISSING, "N/A", "n/a", "NULL", "null", "None")
_LARGEST = 1e150  # differences and slopes of larger numbers may overflow
KNOTS = 8
"""Number of knots of a numeric column that is declared by its range or learned from public rows."""
_WORDS = 20
"""Number of words that a column may have regardless of the number of rows."""


@checked_dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False, extra="forbid"))
class Column:
    """Encoding of a column: hat functions at increasing `knots`, or one indicator for each of `values`."""

    name: str
    knots: tuple[float, ...] = ()
    values: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse knots that do not increase, and a column without knots and values, or with both."""
        if bool(self.knots) is bool(self.values) or any(np.diff(self.knots) <= 0):
            raise ValueError(f"column '{self.name}' needs increasing numbers or a list of words")

    def texts(self, cells: pd.Series) -> np.ndarray:
        """Return cells of any pandas type as stripped texts; missing ones as this column spells a missing value."""
        return _texts(cells, next((text for text in MISSING if text in (self.values or ())), ""))


@dataclass(frozen=True)
class Encoding:
    """Encoding of the rows of a table as features, declared or learned from public rows only."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(
            f"{column.name}={value}"
            for column in self.columns
            for value in (column.knots if column.values is None else column.values)
        )

    def apply(self, frame: pd.DataFrame, where: str, unit: str = "line") -> np.ndarray:
        """Return the features of a table, float32 [rows, features].

        Args:
            frame: Texts, numbers or both; columns in any order. Unknown columns are ignored.
            where: Name of the table in errors.
            unit: Meaning of the index of `frame` in errors.

        Raises:
            InputError: a column is missing, or a cell of a numeric column is a word or infinite.
        """
        if absent := [f"'{column.name}'" for column in self.columns if column.name not in frame]:
            what = f"column{'s' * (len(absent) > 1)} {', '.join(absent)}"
            raise InputError(f"{where} has no {what}; its columns are {', '.join(map(str, frame))}.")
        blocks = []
        for column in self.columns:
            cells = frame[column.name]
            if column.values is None:
                numbers, known, missing = numbers_in(cells)
                _refuse_words(cells, numbers, known | missing, where, unit)
                hats = [np.interp(numbers, column.knots, hat) for hat in np.eye(len(column.knots))]
                blocks.append(np.where(known[:, None], np.stack(hats, axis=1), 0.0))
            else:
                codes = pd.Categorical(column.texts(cells), categories=column.values).codes
                blocks.append(codes[:, None] == np.arange(len(column.values)))
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")

    def unknown(self, frame: pd.DataFrame) -> Iterator[tuple[str, int]]:
        """Yield a sentence about each column with unknown words or numbers outside its knots, and their count."""
        for column in self.columns:
            cells = frame[column.name]
            if column.values is None:
                numbers, known, _ = numbers_in(cells)
                lowest, highest = column.knots[0], column.knots[-1]
                unknown = known & ((numbers < lowest) | (numbers > highest))
                what = f"numbers outside {lowest:g} to {highest:g}, which count as the nearest of them"
            else:
                texts = column.texts(cells)
                unknown = ~np.isin(texts, [*column.values, *MISSING])
                what = f"unknown words, which are ignored: {some(sorted(set(texts[unknown])), 3)}"
            if count := int(unknown.sum()):
                yield f"'{column.name}': {count:,} of {len(frame):,} rows have {what}.", count

    def example(self) -> pd.DataFrame:
        """Return one artificial row: the middle knot of each number, and the first of each column's words."""
        return pd.DataFrame(
            {
                column.name: [column.knots[len(column.knots) // 2] if column.values is None else column.values[0]]
                for column in self.columns
            }
        )

    def draw(self, count: int, generator: np.random.Generator) -> pd.DataFrame:
        """Return artificial rows with independent columns: numbers uniform between the outer knots, words uniform."""
        return pd.DataFrame(
            {
                column.name: generator.uniform(column.knots[0], column.knots[-1], count)
                if column.values is None
                else generator.choice(np.array(column.values, object), count)
                for column in self.columns
            }
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return the encoding as JSON values, for `from_description`."""
        return [
            {"name": column.name, "knots": list(column.knots)}
            if column.values is None
            else {"name": column.name, "values": list(column.values)}
            for column in self.columns
        ]

    @classmethod
    def from_description(cls, description: list[dict[str, Any]]) -> Encoding:
        """Return the encoding of a description. Raise ValueError if the JSON value is not an encoding."""
        return cls(tuple(Column(**entry) for entry in description))


def declare(columns: Mapping[str, tuple[float | str, ...]], categorical: Collection[str] = ()) -> Encoding:
    """Return the encoding of declared columns.

    Args:
        columns: By name, the lowest and highest number, or increasing knots, or all words of a column.
        categorical: Columns of words that look like numbers.

    Raises:
        ValueError: numbers do not increase, there is only one, or a column has both numbers and words.
    """
    declared = []
    for name, values in columns.items():
        numbers = [value for value in values if not isinstance(value, str)]
        if name in categorical or not numbers:
            declared.append(Column(name, values=tuple(dict.fromkeys(map(str, values)))))
            continue
        if len(numbers) < max(2, len(values)) or any(np.diff(numbers) <= 0):
            raise ValueError(
                f"columns.{name}={list(values)} is neither a lowest and a highest number, increasing numbers, nor "
                "words. Put words that look like numbers into quotes"
            )
        knots = np.linspace(numbers[0], numbers[1], KNOTS).tolist() if len(numbers) == 2 else numbers
        declared.append(Column(name, tuple(map(float, knots))))
    return Encoding(tuple(declared))


def learn(public: pd.DataFrame, where: str, categorical: Collection[str] = ()) -> Encoding:
    """Return the encoding learned from public rows.

    Args:
        public: Cells as texts, indexed by line number.
        where: Name of the table in errors.
        categorical: Columns of words that may look like numbers.

    Raises:
        InputError: a numeric column contains a word, or the table has no columns.
    """
    columns = []
    for name in public:
        cells = public[name]
        numbers, known, missing = numbers_in(cells)
        if name in categorical or not known.any():
            columns.append(Column(str(name), values=tuple(sorted(set(cells)))))
            continue
        _refuse_words(cells, numbers, known | missing, where, "line", public=True)
        distinct = np.unique(numbers[known])
        if np.abs(distinct).max() > _LARGEST:
            line = cells.index[int(np.abs(np.where(known, numbers, 0.0)).argmax())]
            raise InputError(
                f"{where}, line {line}: '{name}' is {cells[line]}, which is too large. Correct it, or leave it empty."
            )
        chosen = np.linspace(0, len(distinct) - 1, min(KNOTS, len(distinct))).round().astype(int)
        columns.append(Column(str(name), tuple(distinct[chosen].tolist())))
    if not columns:
        raise InputError(f"{where} has no column beside the target. Teachers need something to learn from.")
    return Encoding(tuple(columns))


def identifying(encoding: Encoding, rows: int) -> list[Column]:
    """Return columns with so many words that they identify rows: identifiers, dates, free text or decimal commas.

    The student would publish these words.
    """
    return [column for column in encoding.columns if len(column.values or ()) > max(_WORDS, rows / 3)]


def column_types(encoding: Encoding, public: pd.DataFrame | None = None) -> dict[str, tuple[str, ...]]:
    """Return the names of the columns by type: numbers or words; with public rows also constant or empty."""
    found: dict[str, list[str]] = {"numbers": [], "words": [], "constant": [], "empty": []}
    for column in encoding.columns:
        if public is None:
            found["numbers" if column.values is None else "words"].append(column.name)
            continue
        numbers, known, missing = numbers_in(public[column.name])
        held = np.unique(numbers[known]) if column.values is None else column.values
        kind = "numbers" if column.values is None else "words"
        found["empty" if missing.all() else "constant" if len(held) == 1 else kind].append(column.name)
    return {kind: tuple(names) for kind, names in found.items() if names}


def header_is_record(encoding: Encoding) -> bool:
    """Return whether most column names look like values of their columns, as in a file without a header.

    Names that count (0, 1, 2, ..., or years) do not.
    """
    numbers, known, missing = numbers_in(pd.Series([column.name for column in encoding.columns], dtype=object))
    numeric = np.array([column.values is None for column in encoding.columns])
    words = sum(column.name in (column.values or ()) for column in encoding.columns)
    counting = known[numeric].sum() > 1 and (np.diff(numbers[numeric]) == 1).all()
    values = 0 if counting else ((known | missing) & numeric).sum()
    return bool(2 * (words + values) > len(encoding.columns))


def numbers_in(cells: pd.Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers in a column, float64 [rows], whether each is finite, and whether each cell is missing."""
    if pd.api.types.is_numeric_dtype(cells):
        numbers = cells.to_numpy(np.float64, na_value=np.nan)
        return numbers, np.isfinite(numbers), np.isnan(numbers)
    texts = _texts(cells, "")
    missing = np.isin(texts, _MISSING_NUMBER)
    numbers = pd.to_numeric(pd.Series(np.where(missing, "", texts)), errors="coerce").to_numpy(np.float64)
    return numbers, np.isfinite(numbers), missing


def _texts(cells: pd.Series, missing: str) -> np.ndarray:
    """Return the cells as stripped texts, object [rows]; `missing` for missing ones."""

    def text(value: Any) -> str:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            return str(int(value))  # pandas makes 1.0 of 1 if another row is empty
        return str(value).strip()

    numbers, values = pd.factorize(cells.astype(object), use_na_sentinel=False)  # values repeat: convert each once
    return np.array([missing if pd.isna(value) else text(value) for value in values], object)[numbers]


def _refuse_words(
    cells: pd.Series, numbers: np.ndarray, valid: np.ndarray, where: str, unit: str, *, public: bool = False
) -> None:
    """Raise InputError if a numeric column contains non-numeric cells, and name the first ones."""
    wrong = np.flatnonzero(~valid)
    if not len(wrong):
        return
    first = f"{where}, {unit} {cells.index[wrong[0]]}: '{cells.name}' is '{cells.iloc[wrong[0]]}'"
    if len(wrong) > 1:
        first += f" ({len(wrong)} such cells, in {unit} {some([str(cells.index[row]) for row in wrong], 3)})"
    if np.isinf(numbers[wrong[0]]):
        raise InputError(f"{first}, which is not finite. Correct it, or leave it empty.")
    comma = "," in str(cells.iloc[wrong[0]])
    remedy = "Write decimal points." if comma else "Correct the value, or leave it empty."
    if public:
        remedy += f" If the column contains words that look like numbers: data.categorical=[{cells.name}]."
    raise InputError(f"{first}, but the column is numeric. {remedy}")
