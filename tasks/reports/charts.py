"""Charts as inline SVG: text stays text, lines stay sharp in print, colours come from the page's style sheet.

Places across a chart are percentages of its width, heights are pixels: a chart fills whatever width it is given, and
what is written in it keeps its size, on a telephone as on a wide screen. The margins are the style sheet's.

Everything that is put into markup goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from terrine.errors import InputError

HEIGHT, TOP, BOTTOM = 260, 12, 44
"""Of a chart, with what is written above and below the plot, in pixels."""

PLOT = HEIGHT - TOP - BOTTOM
MOST_STEPS = 5
"""On an axis."""
BINS = 20
SPARK = 88, 22
"""Width and height of a sparkline, in pixels."""


def ticks(largest: float) -> list[float]:
    """Return round axis values from 0 to at least `largest`, at most five steps of 1, 2 or 5 times a power of ten."""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(largest / MOST_STEPS))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if largest <= MOST_STEPS * power * factor * (1 + 1e-12))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def stacked_histogram(shares: np.ndarray, groups: Mapping[str, np.ndarray], *, x_label: str, y_label: str) -> Markup:
    """Draw a histogram of values in [0, 1], twenty bars that are stacked by group; raise InputError for no partition of
    them.

    shares: float [n]; a value on an edge counts in the bin to its right, 1 in the last bin. groups: name of a group and
    which values are in it, bool [n]; their order is that of stacking from below, and of the style sheet's classes
    `part-0`, `part-1`, ... y_label: what is counted.
    """
    membership = np.array(list(groups.values()), dtype=np.int64).reshape(len(groups), len(shares))
    if not (membership.sum(axis=0) == 1).all():
        raise InputError(f"groups: {', '.join(groups)} are not a partition of the {len(shares)} values.")
    # A hair is added so that a share such as 0.15, stored a little below it, falls on the right side of its edge.
    bin_of = np.minimum((np.asarray(shares) * BINS + 1e-9).astype(np.int64), BINS - 1)
    counts = np.array([np.bincount(bin_of[mask.astype(bool)], minlength=BINS) for mask in membership])
    axis = ticks(float(counts.sum(axis=0).max(initial=0)))
    slot, scale = 100 / BINS, PLOT / axis[-1]
    parts = _grid(axis)
    for number in range(BINS):
        base = TOP + PLOT
        for group, (name, bars) in enumerate(zip(groups, counts, strict=True)):
            if tall := bars[number] * scale:
                base -= tall
                title = f"{number / BINS:.0%} to {(number + 1) / BINS:.0%}, {name}: {bars[number]:,}"
                parts.append(
                    Markup(
                        '<rect class="part-{}" x="{:.2f}%" y="{:.2f}" width="{:.2f}%" height="{:.2f}">'
                        "<title>{}</title></rect>"
                    ).format(group, (number + 0.03) * slot, base, 0.94 * slot, tall, title)
                )
    for value in range(0, 101, 20):
        parts.append(Markup('<text x="{}%" y="{}" text-anchor="middle">{} %</text>').format(value, HEIGHT - 26, value))
    return _chart(parts, x_label, y_label)


def sparkline(values: Sequence[float] | np.ndarray) -> Markup:
    """Draw a small bar per value, negative ones downwards, the largest marked; no axes, for a picture's caption."""
    numbers = np.asarray(values, dtype=np.float64)
    low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
    width, height = SPARK
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


def column_chart(values: Sequence[float] | np.ndarray, *, x_label: str, y_label: str, last: int) -> Markup:
    """Draw one column per value, from the left in their order, on an axis that starts at nothing.

    1 and `last` are written below the ends of the row of columns: the columns may stand for more than there are.
    """
    numbers = np.asarray(values, dtype=np.float64)
    axis = ticks(float(numbers.max(initial=0)))
    slot, scale = 100 / max(len(numbers), 1), PLOT / axis[-1]
    parts = _grid(axis)
    for number, value in enumerate(numbers):
        parts.append(
            Markup(
                '<rect class="part-0" x="{:.2f}%" y="{:.2f}" width="{:.2f}%" height="{:.2f}">'
                "<title>{:,.10g}</title></rect>"
            ).format(number * slot, TOP + PLOT - value * scale, 0.85 * slot, value * scale, value)
        )
    for place, anchor, number in (("0", "start", 1), ("100%", "end", last)):
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="{}">{:,}</text>').format(place, HEIGHT - 26, anchor, number)
        )
    return _chart(parts, x_label, y_label)


def heat_map(values: np.ndarray, row_names: Sequence[str], *, x_label: str, y_label: str, last: int) -> Markup:
    """Draw a cell per value, float [rows, columns] in [0, 1], the fuller its colour the larger it is.

    The largest value has the full colour. 1 and `last` are written below the ends of the columns. A map of few
    cells says each value when it is pointed at. Rows are a grid of the page's, so that long names can be folded.
    """
    largest = float(values.max(initial=0)) or 1.0
    slot = 100 / max(values.shape[1], 1)
    # Few cells stand apart; many would be mostly gaps.
    width = 0.97 * slot if values.shape[1] <= 40 else slot
    titled = values.size <= 400
    rows = []
    for name, row in zip(row_names, values, strict=True):
        cells = []
        for column, value in enumerate(row):
            if value <= 0:
                continue
            title = Markup("<title>{}: {:.1%}</title>").format(name, value) if titled else Markup("")
            cells.append(
                Markup('<rect x="{:.2f}%" width="{:.2f}%" height="100%" fill-opacity="{:.2f}">{}</rect>').format(
                    column * slot, width, value / largest, title
                )
            )
        rows.append(
            Markup('<span class="name">{}</span><svg><g class="part-0">{}</g></svg>').format(
                name, Markup("").join(cells)
            )
        )
    ends = Markup('<div class="ends"><span>1</span><span>{}</span><span>{:,}</span></div>')
    return Markup('<div class="heat-map" role="img" aria-label="{} by {}">{}{}</div>').format(
        y_label, x_label, Markup("").join(rows), ends.format(x_label, last)
    )


def _grid(axis: Sequence[float]) -> list[Markup]:
    """Draw a line and a number for each value of a vertical axis whose largest value is at the top."""
    lines = []
    for value in axis:
        y = TOP + PLOT - value * (PLOT / axis[-1])
        lines.append(Markup('<line class="grid" x1="0" x2="100%" y1="{:.1f}" y2="{:.1f}"/>').format(y, y))
        lines.append(Markup('<text x="-8" y="{:.1f}" text-anchor="end">{:,.10g}</text>').format(y + 4, value))
    return lines


def _chart(parts: Sequence[Markup], x_label: str, y_label: str) -> Markup:
    """Return a chart of what is drawn in it, with the names of its axes."""
    across = Markup('<text class="axis" x="50%" y="{}" text-anchor="middle">{}</text>').format(HEIGHT - 6, x_label)
    up = Markup('<text class="axis" transform="translate(-64 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
        TOP + PLOT / 2, y_label
    )
    return Markup('<svg class="chart" height="{}" role="img" aria-label="{} by {}">{}{}{}</svg>').format(
        HEIGHT, y_label, x_label, Markup("").join(parts), across, up
    )
