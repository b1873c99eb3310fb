"""Charts as inline SVG: text stays text, lines stay sharp in print, colours come from the page's style sheet.

Everything that is put into markup goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from terrine.errors import InputError

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 12, 44


def ticks(largest: float, most: int = 5) -> list[float]:
    """Return round axis values from 0 to at least `largest`, at most `most` steps of 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(largest / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if largest <= most * power * factor * (1 + 1e-12))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def stacked_histogram(
    shares: np.ndarray, groups: Mapping[str, np.ndarray], *, x_label: str, y_label: str, bins: int = 20
) -> Markup:
    """Draw a histogram of values in [0, 1] whose bars are stacked by group.

    Args:
        shares: float [n] in [0, 1]; a value on an edge counts in the bin to its right, 1 in the last bin.
        groups: Name of a group and which values are in it, bool [n]; every value is in exactly one. The order is the
            order of stacking from below, and of the style sheet's classes `part-0`, `part-1`, ...
        x_label: What the values are.
        y_label: What is counted.
        bins: Number of bars.

    Raises InputError when the groups are no partition of the values.
    """
    membership = np.array(list(groups.values()), dtype=np.int64).reshape(len(groups), len(shares))
    if not (membership.sum(axis=0) == 1).all():
        raise InputError(f"groups: {', '.join(groups)} are not a partition of the {len(shares)} values.")
    # A hair is added so that a share such as 0.15, stored a little below it, falls on the right side of its edge.
    bin_of = np.minimum((np.asarray(shares) * bins + 1e-9).astype(np.int64), bins - 1)
    counts = np.array([np.bincount(bin_of[mask.astype(bool)], minlength=bins) for mask in membership])
    axis = ticks(float(counts.sum(axis=0).max(initial=0)))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    slot, scale = width / bins, height / axis[-1]
    parts = _grid(axis)
    for number in range(bins):
        base = TOP + height
        for group, (name, bars) in enumerate(zip(groups, counts, strict=True)):
            if tall := bars[number] * scale:
                base -= tall
                title = f"{number / bins:.0%} to {(number + 1) / bins:.0%}, {name}: {bars[number]:,}"
                parts.append(
                    Markup(
                        '<rect class="part-{}" x="{:.1f}" y="{:.2f}" width="{:.1f}" height="{:.2f}">'
                        "<title>{}</title></rect>"
                    ).format(group, LEFT + number * slot + 1, base, slot - 2, tall, title)
                )
    for value in range(0, 101, 10):
        x = LEFT + width * value / 100
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{} %</text>').format(x, HEIGHT - 26, value))
    parts.append(_axis_labels(x_label, y_label, LEFT, HEIGHT))
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{} by {}">{}</svg>').format(
        WIDTH, HEIGHT, y_label, x_label, Markup("").join(parts)
    )


@dataclass(frozen=True)
class ScatterPoint:
    """A point of a `scatter`.

    Attributes:
        x: At least 0.
        y: A share in [0, 1].
        plus_minus: Half the height of its error bar, 0 for none.
        series: Which series it is of: the first three have colours of their own.
        marked: Whether it is on the front of its series, which a line joins.
        label: A few characters beside it.
        title: What is said when it is pointed at.
        address: Where a click leads to.
    """

    x: float
    y: float
    plus_minus: float
    series: int
    marked: bool
    label: str
    title: str
    address: str


def scatter(points: Sequence[ScatterPoint], *, x_label: str, y_label: str) -> Markup:
    """Draw shares against a quantity, with error bars, and a line along the marked points of each series.

    The horizontal axis starts at nothing, the vertical one where the points do. Texts have room to be three quarters
    larger than they are elsewhere, for a page that is shown at half the width.
    """
    width, height, left, right, top, bottom = WIDTH, 460, 96, 36, 30, 92
    across = ticks(max(point.x for point in points))
    up = _ticks_between(
        max(0.0, min(point.y - point.plus_minus for point in points)),
        min(1.0, max(point.y + point.plus_minus for point in points)),
    )

    def place(x: float, y: float) -> tuple[float, float]:
        share = (min(max(y, up[0]), up[-1]) - up[0]) / (up[-1] - up[0])
        return left + (width - left - right) * x / across[-1], height - bottom - (height - top - 20 - bottom) * share

    parts = []
    for value in up:
        x, y = place(0, value)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(left, width - right, y, y)
        )
        text = f"{100 * value:.10g} %"
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 10, y + 6, text))
    for value in across:
        x, y = place(value, up[0])
        parts.append(
            Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{:.1f}"/>').format(x, x, top + 20, y)
        )
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{:,.10g}</text>').format(x, y + 28, value))
    for number in sorted({point.series for point in points}):
        line = sorted((point.x, point.y) for point in points if point.series == number and point.marked)
        path = " ".join("{:.1f},{:.1f}".format(*place(*spot)) for spot in line)
        parts.append(Markup('<polyline class="front stroke-{}" points="{}"/>').format(number % 3, path))
    for point in points:
        x, y = place(point.x, point.y)
        bar = Markup("")
        if point.plus_minus:
            ends = [place(point.x, point.y + sign * point.plus_minus)[1] for sign in (1, -1)]
            bar = Markup('<line class="error stroke-{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>').format(
                point.series % 3, x, x, *ends
            )
        parts.append(
            Markup(
                '<a href="{}">{}<circle class="point part-{}{}" cx="{:.1f}" cy="{:.1f}" r="9">'
                "<title>{}</title></circle>"
                '<text class="label" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text></a>'
            ).format(
                point.address,
                bar,
                point.series % 3,
                "" if point.marked else " beaten",
                x,
                y,
                point.title,
                *((x + 13, y - 9, "start") if x < width - 2 * right else (x - 13, y - 9, "end")),
                point.label,
            )
        )
    axis = Markup('<text class="axis" x="{}" y="{}"{}>{}</text>')
    parts.append(axis.format((left + width - right) / 2, height - 14, Markup(' text-anchor="middle"'), x_label))
    parts.append(axis.format(4, top, "", y_label))
    return Markup('<svg class="scatter" viewBox="0 0 {} {}" role="img" aria-label="{} against {}">{}</svg>').format(
        width, height, y_label, x_label, Markup("").join(parts)
    )


def _ticks_between(low: float, high: float, most: int = 5) -> list[float]:
    """Return round values of a share, from `low` or below to `high` or above, at most `most` steps and at least two."""
    step = next(
        step
        for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
        if math.ceil(high / step - 1e-9) - math.floor(low / step + 1e-9) <= most
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def sparkline(values: Sequence[float] | np.ndarray, *, width: int = 88, height: int = 22) -> Markup:
    """Draw a small bar per value, negative ones downwards, the largest marked; no axes, for a picture's caption."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
    scale = height / ((high - low) or 1.0)
    slot = width / len(numbers)
    zero = high * scale
    bars = [
        Markup('<rect{} x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            Markup(' class="most"') if number == numbers.argmax() else "",
            number * slot,
            zero - max(value, 0.0) * scale,
            max(slot - 1, 0.6),
            abs(value) * scale,
        )
        for number, value in enumerate(numbers)
    ]
    line = Markup('<line class="zero" x1="0" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(width, zero, zero)
    return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true">{}{}</svg>').format(
        width, height, Markup("").join(bars), line
    )


def column_chart(values: Sequence[float] | np.ndarray, *, x_label: str, y_label: str, first: int, last: int) -> Markup:
    """Draw one column per value, from the left in their order, on an axis that starts at nothing.

    `first` and `last` are written below the ends of the row of columns: the columns may stand for more than there are.
    """
    numbers = np.asarray(values, dtype=np.float64)
    axis = ticks(float(numbers.max(initial=0)))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    slot, scale = width / max(len(numbers), 1), height / axis[-1]
    parts = _grid(axis)
    for number, value in enumerate(numbers):
        parts.append(
            Markup(
                '<rect class="part-0" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}">'
                "<title>{:,.10g}</title></rect>"
            ).format(
                LEFT + number * slot,
                TOP + height - value * scale,
                max(slot - min(2, slot / 4), 0.5),
                value * scale,
                value,
            )
        )
    parts += [_below_ends(LEFT, first, last), _axis_labels(x_label, y_label, LEFT, HEIGHT)]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{} by {}">{}</svg>').format(
        WIDTH, HEIGHT, y_label, x_label, Markup("").join(parts)
    )


def heat_map(
    values: np.ndarray, row_names: Sequence[str], *, x_label: str, y_label: str, first: int, last: int, left: int = 136
) -> Markup:
    """Draw a cell per value, float [rows, columns] in [0, 1], the fuller its colour the larger it is.

    The largest value has the full colour. `first` and `last` are written below the ends of the columns. A map of few
    cells says each value when it is pointed at.
    """
    rows, columns = values.shape
    largest = float(values.max(initial=0)) or 1.0
    tall = 18 if rows <= 12 else max(6, 216 // rows)
    width, height = WIDTH - left - RIGHT, rows * tall
    slot = width / max(columns, 1)
    titled = values.size <= 400
    parts = []
    for row, name in enumerate(row_names):
        shown = name if len(name) <= 14 else f"{name[:13]}…"
        if tall >= 12 or row % 2 == 0:
            parts.append(
                Markup('<text x="{}" y="{:.1f}" text-anchor="end"><title>{}</title>{}</text>').format(
                    left - 8, TOP + (row + 0.5) * tall + 4, name, shown
                )
            )
        cells = []
        for column, value in enumerate(values[row]):
            if value <= 0:
                continue
            title = Markup("<title>{}: {:.1%}</title>").format(name, value) if titled else Markup("")
            cells.append(
                Markup('<rect x="{:.1f}" width="{:.1f}" height="{}" fill-opacity="{:.2f}">{}</rect>').format(
                    column * slot, slot + (0.3 if slot < 6 else -1), tall - 1, value / largest, title
                )
            )
        parts.append(
            Markup('<g class="part-0" transform="translate({} {})">{}</g>').format(
                left, TOP + row * tall, Markup("").join(cells)
            )
        )
    frame = Markup('<rect class="grid" fill="none" x="{}" y="{}" width="{}" height="{}"/>').format(
        left, TOP - 1, width, height + 1
    )
    bottom = TOP + height + BOTTOM
    parts += [frame, _below_ends(left, first, last, bottom), _axis_labels(x_label, y_label, left, bottom)]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{} by {}">{}</svg>').format(
        WIDTH, bottom, y_label, x_label, Markup("").join(parts)
    )


def _grid(axis: Sequence[float]) -> list[Markup]:
    """Draw a line and a number for each value of a vertical axis whose largest value is at the top."""
    height = HEIGHT - TOP - BOTTOM
    lines = []
    for value in axis:
        y = TOP + height - value * (height / axis[-1])
        lines.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
        )
        lines.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{:,.10g}</text>').format(LEFT - 8, y + 4, value))
    return lines


def _below_ends(left: int, first: int, last: int, bottom: int = HEIGHT) -> Markup:
    """Write the numbers below the first and the last column."""
    start = Markup('<text x="{}" y="{}">{:,}</text>').format(left, bottom - 26, first)
    end = Markup('<text x="{}" y="{}" text-anchor="end">{:,}</text>').format(WIDTH - RIGHT, bottom - 26, last)
    return start + end


def _axis_labels(x_label: str, y_label: str, left: int, bottom: int) -> Markup:
    across = Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(
        (left + WIDTH - RIGHT) / 2, bottom - 6, x_label
    )
    up = Markup('<text class="axis" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
        TOP + (bottom - TOP - BOTTOM) / 2, y_label
    )
    return across + up
