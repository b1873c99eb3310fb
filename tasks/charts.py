"""Charts as inline SVG: text stays text, lines stay sharp in print, colours come from the page's style sheet.

Everything that is put into markup goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
    parts = []
    for value in axis:
        y = TOP + height - value * scale
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, y, y)
        )
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{:,.10g}</text>').format(LEFT - 8, y + 4, value))
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
    parts.append(
        Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            LEFT + width / 2, HEIGHT - 6, x_label
        )
    )
    parts.append(
        Markup('<text class="axis" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
            TOP + height / 2, y_label
        )
    )
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{} by {}">{}</svg>').format(
        WIDTH, HEIGHT, y_label, x_label, Markup("").join(parts)
    )


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
