"""What the columns of a table are taken for, and what is odd about them, for its keeper.

Values are of the public rows alone, which also decide how a column is encoded (`terrine.data.encoding`).
"""

from __future__ import annotations

import re

import numpy as np

from terrine.data.encoding import Encoding, numbers_in
from terrine.errors import some
from terrine.extras import from_extra

with from_extra("pipeline", "Tables"):
    import pandas as pd

_WITH_A_UNIT = re.compile(r"[<>≤≥~]?\s*[+-]?\d+(?:[.,]\d+)?\s*\D*")  # 45 kg, 12%, <5, 3,5
_CODE = re.compile(r"-1|-9|-?99+")
_LED_BY_ZERO = re.compile(r"0\d+")
_DISTINCT = 20
"""As many different whole numbers a column may hold, however few its rows, and measure something."""
_EVEN = 0.1
"""How far, in shares of rows, numbers that only name somebody lie from being spread evenly over their range."""
_STEPS = 5
"""A value that often stands for a missing one is far outside when it is so many times as far as others lie apart."""


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


def on_values(encoding: Encoding, public: pd.DataFrame, categorical: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what there is to say of columns that are hardly meant as they are taken."""
    outside, units, names = [], [], []
    for column in encoding.columns:
        cells = public[column.name]
        if column.values is None:
            numbers, known, _ = numbers_in(cells)
            if why := why_a_name(cells, numbers[known]):
                names.append(f"'{column.name}' ({why})")
            outside += [f"'{column.name}' {value:g} ({times} times)" for value, times in far_outside(numbers[known])]
        elif column.name not in categorical:
            alike = [value for value in column.values if _WITH_A_UNIT.fullmatch(value)]
            if len(alike) > len(column.values) / 2:
                units.append(f"'{column.name}' (such as '{alike[0]}')")
    said = []
    if units:
        said.append(
            f"Taken as words, though they begin with numbers: {some(units)}. Each value stands for itself, and "
            "neither order nor distance is seen. If they are numbers, write these alone, with points, and units into "
            "the header."
        )
    if names:
        said.append(
            f"Taken as numbers, though they may only name somebody or something: {some(names)}. A name has no size to "
            "learn from. Of a record it goes into data.id, of a person into data.group, which are not read; of one of "
            "few things, such as a ward, into data.categorical; a postal code is best removed. If they measure "
            "something, leave them."
        )
    if outside:
        said.append(
            f"Values far outside of the rest occur again and again in the public rows: {some(outside)}. If they "
            "stand for missing ones, leave these cells empty: as numbers they take part in the column's mean and "
            "deviation."
        )
    return tuple(said)


def why_a_name(cells: pd.Series, numbers: np.ndarray) -> str | None:
    """Return what speaks for cells that name something by numbers; None where they look measured.

    Numbers with leading zeros do, and whole ones of which hardly any two are alike, or few are and all of their range
    are as frequent as each other: what is measured has a middle.
    """
    led = next((cell for cell in cells if _LED_BY_ZERO.fullmatch(str(cell))), None)
    if led is not None:
        return f"leading zeros, such as '{led}'"
    values, rows = np.unique(numbers), len(numbers)
    if (values % 1).any() or len(values) <= max(_DISTINCT, rows / 10):
        return None
    if len(values) > 0.9 * rows:
        return "whole numbers, hardly any of them twice"
    ranks, spread = np.arange(1, rows + 1) / rows, (np.sort(numbers) - values[0]) / (values[-1] - values[0])
    return "whole numbers, each in a few rows" if np.abs(ranks - spread).max() < _EVEN else None


def far_outside(numbers: np.ndarray) -> list[tuple[float, int]]:
    """Return values at either end that occur more than once, far from all others, and how often, the farthest first.

    Far is farther than others lie apart in all; or, for 99, 999 and the like, and for -1, -9, -99 among others that are
    not negative, five times as far as one commonly lies from the next. The others are more than half.
    """
    values, times = np.unique(numbers, return_counts=True)
    found = []
    while len(values) > 2:
        gaps = np.diff(values)
        place = 0 if gaps[0] >= gaps[-1] else -1
        rest = values[1:] if place == 0 else values[:-1]
        code = _CODE.fullmatch(f"{values[place]:.15g}") and (values[place] > 0 or rest[0] >= 0)
        far = _STEPS * np.median(np.diff(rest)) if code else rest[-1] - rest[0]
        if gaps[place] <= far or times[place] < 2 or times[place] >= len(numbers) / 2:
            break
        found.append((float(values[place]), int(times[place])))
        values, times = rest, np.delete(times, place)
    return found
