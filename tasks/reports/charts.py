"""Charts as inline SVG, and images as PNG data URIs.

Horizontal positions are percentages of the chart's width, heights are pixels: a chart fills the available width, and
its text keeps its size on a telephone and on a wide screen. The style sheet sets colours and margins. `Markup.format`,
which escapes its arguments, creates all markup.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from PIL import Image

from terrine.data.label_mix import row_shares
from terrine.errors import InputError

HEIGHT, TOP, BOTTOM = 260, 12, 44
"""Chart height and top and bottom margins, in pixels."""
PLOT = HEIGHT - TOP - BOTTOM
BINS = 20
DIAGONAL, ERROR = (37, 99, 170), (200, 92, 28)
"""Colours of right and wrong answers in a confusion matrix."""


def ticks(largest: float, smallest: float = 0.0, most: int = 5) -> list[float]:
    """Return axis values that enclose both numbers, in about `most` steps of 1, 2 or 5 times a power of ten."""
    span = largest - smallest
    if span <= 0:
        span = 1.0
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span <= most * power * factor * (1 + 1e-12))
    first, last = math.floor(smallest / step + 1e-9), math.ceil(largest / step - 1e-9)
    return [step * number for number in range(first, max(last, first + 1) + 1)]


def stacked_histogram(shares: np.ndarray, groups: Mapping[str, np.ndarray], *, x_label: str, y_label: str) -> Markup:
    """Draw a histogram of values in [0, 1] with twenty bars, stacked by group.

    Args:
        shares: Float [n]. A value on the edge of two bins counts in the right one; 1 counts in the last bin.
        groups: Groups by name, bool [n] each, true for the values of the group. Bars are stacked in this order from the
            bottom, with the style sheet's classes `part-0`, `part-1`, ...
        x_label: Name of the values.
        y_label: Name of the counted items, for the axis.

    Raises:
        InputError: The groups are not a partition of the values.
    """
    membership = np.array(list(groups.values()), dtype=np.int64).reshape(len(groups), len(shares))
    if not (membership.sum(axis=0) == 1).all():
        raise InputError(f"groups: {', '.join(groups)} are not a partition of the {len(shares)} values.")
    # The summand moves a share such as 0.15, whose stored value is slightly smaller, to the right of its edge.
    bin_of = np.minimum((np.asarray(shares) * BINS + 1e-9).astype(np.int64), BINS - 1)
    counts = np.array([np.bincount(bin_of[mask.astype(bool)], minlength=BINS) for mask in membership])
    axis = ticks(float(counts.sum(axis=0).max(initial=0)))
    slot, scale, floor = 100 / BINS, PLOT / axis[-1], TOP + PLOT
    parts = []
    for value in axis:
        y = floor - value * scale
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{:.1f}" y2="{:.1f}"/>').format(y, y))
        parts.append(Markup('<text x="-8" y="{:.1f}" text-anchor="end">{:,.10g}</text>').format(y + 4, value))
    bar = Markup(
        '<rect class="part-{}" x="{:.2f}%" y="{:.2f}" width="{:.2f}%" height="{:.2f}"><title>{}</title></rect>'
    )
    for number in range(BINS):
        base: float = floor
        for group, (name, bars) in enumerate(zip(groups, counts, strict=True)):
            if tall := bars[number] * scale:
                base -= tall
                title = f"{number / BINS:.0%} to {(number + 1) / BINS:.0%}, {name}: {bars[number]:,}"
                parts.append(bar.format(group, (number + 0.03) * slot, base, 0.94 * slot, tall, title))
    label = Markup('<text x="{}%" y="{}" text-anchor="middle">{} %</text>')
    parts += [label.format(value, HEIGHT - 26, value) for value in range(0, 101, 20)]
    return _chart(parts, x_label, y_label)


def scatter(points: Sequence[tuple[float, float, float, int, str]], *, x_label: str, y_label: str) -> Markup:
    """Draw points with vertical error bars. Hovering over a point shows its text.

    Args:
        points: Tuples (x, y, half length of the error bar, colour number, text): x at least 0, y a share in [0, 1],
            colour k is `part-k` of the style sheet.
        x_label: Name of the horizontal axis, which begins at 0.
        y_label: Name of y.
    """
    across = ticks(max(x for x, *_ in points))
    up = ticks(100 * max(y + error for _, y, error, *_ in points), 100 * min(y - error for _, y, error, *_ in points))
    floor, scale = TOP + PLOT, PLOT / (up[-1] - up[0])
    parts = []
    for value in up:
        y = floor - (value - up[0]) * scale
        parts.append(Markup('<line class="grid" x1="0" x2="100%" y1="{:.1f}" y2="{:.1f}"/>').format(y, y))
        parts.append(Markup('<text x="-8" y="{:.1f}" text-anchor="end">{:.4g} %</text>').format(y + 4, value))
    for value in across:
        label = Markup('<text x="{:.2f}%" y="{}" text-anchor="middle">{:.4g}</text>')
        parts.append(label.format(100 * value / across[-1], HEIGHT - 26, value))
    for x, share, error, colour, text in points:
        place, y = 100 * x / across[-1], floor - (100 * share - up[0]) * scale
        bar = '<line class="error" x1="{:.2f}%" x2="{:.2f}%" y1="{:.1f}" y2="{:.1f}"/>'
        if error:
            parts.append(Markup(bar).format(place, place, y - 100 * error * scale, y + 100 * error * scale))
        circle = Markup('<circle class="part-{}" cx="{:.2f}%" cy="{:.1f}" r="6"><title>{}</title></circle>')
        parts.append(circle.format(colour, place, y, text))
    return _chart(parts, x_label, y_label)


def _chart(parts: Sequence[Markup], x_label: str, y_label: str) -> Markup:
    """Return the drawing with its axis labels."""
    across = Markup('<text class="axis" x="50%" y="{}" text-anchor="middle">{}</text>').format(HEIGHT - 6, x_label)
    up = Markup('<text class="axis" transform="translate(-64 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
        TOP + PLOT / 2, y_label
    )
    return Markup('<svg class="chart" height="{}" role="img" aria-label="{} by {}">{}{}{}</svg>').format(
        HEIGHT, y_label, x_label, Markup("").join(parts), across, up
    )


def heat_map(values: np.ndarray, row_names: Sequence[str], *, x_label: str, y_label: str, last: int) -> Markup:
    """Draw one cell per value, float [rows, columns] in [0, 1], with a stronger colour for larger values.

    The largest value has the full colour. The labels 1 and `last` are below the first and last columns. In a map with
    few cells, hovering over a cell shows its value. Rows use the page's grid, so that long names can wrap.
    """
    largest = float(values.max(initial=0)) or 1.0
    slot = 100 / max(values.shape[1], 1)
    # Separate cells by gaps only if there are few; many cells would be mostly gaps.
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


def png_data_uri(pixels: np.ndarray, longest: int | None = None) -> str:
    """Return an image, uint8 [height, width] or [height, width, 3], as a PNG in a data URI.

    longest: Largest width and height in pixels; a larger image is reduced, a smaller one is unchanged.
    """
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    if longest is not None and max(picture.size) > longest:
        picture.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def confusion_colours(confusion: np.ndarray) -> np.ndarray:
    """Return the colour of every cell of a confusion matrix, int64 [true, predicted, 3] in 0..255, starting at white.

    A cell is darker if its share of the row is larger; correct and wrong predictions have different colours.
    """
    right = np.eye(len(confusion), dtype=bool)[..., None]
    colour = np.where(right, np.array(DIAGONAL), np.array(ERROR))
    # The square root lets rare errors show in a matrix of many classes.
    mixed: np.ndarray = np.rint(255 + (colour - 255) * np.sqrt(row_shares(confusion))[..., None])
    return mixed.astype(np.int64)


def white_reads_better(colours: np.ndarray) -> np.ndarray:
    """Return whether white text on each colour, [..., 3] in 0..255, has more contrast than black (WCAG 2.2)."""
    parts = np.asarray(colours) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    better: np.ndarray = 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05
    return better
