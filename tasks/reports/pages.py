"""How pages for people are made: jinja2 templates beside this file, everything a page needs inside the page.

A page loads nothing: no script, no font, no picture from elsewhere, so it reads the same offline and in ten years.
Whatever comes from data (class names, run names, file names) is escaped by the template engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).with_name("templates")


def count(value: float) -> str:
    """Write a whole number with separators: 10,000."""
    return f"{value:,.0f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Write a share as a percentage; what has no value is a dash."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def epsilon(value: float | None) -> str:
    """Write an ε as statements print it, four decimals; None stands for no finite guarantee."""
    return "none" if value is None else f"{value:.4f}"


def probability(value: float) -> str:
    """Write a small probability: 1e-5, not 1e-05."""
    mantissa, exponent, power = f"{value:g}".partition("e")
    return f"{mantissa}e{int(power)}" if exponent else mantissa


def bound(value: float) -> str:
    """Write an upper bound of very small size in two digits, rounded up: 1.2e-20."""
    if value == 0:
        return "0"
    digits, exponent = f"{value:.17e}".split("e")
    return probability(float(f"{math.ceil(float(digits) * 10)}e{int(exponent) - 1}"))


def plain(value: Any) -> str:
    """Write a value of unknown kind for a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "∞"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value)


def code(name: str) -> str:
    """Write a name that comes from data for Markdown, which then does nothing with what it holds."""
    return f"`{' '.join(name.replace('`', chr(39)).split())}`"


def bar_rows(
    names: Sequence[str], values: Sequence[float], texts: Sequence[str] | None = None, longest: float | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a list of bars: name, share of the track, and the text at its end.

    `longest` is the value that fills the track, by default the largest; `texts` are by default the whole numbers.
    """
    full = longest or max(values, default=0) or 1
    shown = [count(value) for value in values] if texts is None else texts
    return [
        {"name": name, "share": value / full, "text": text}
        for name, value, text in zip(names, values, shown, strict=True)
    ]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {each.__name__: each for each in (count, percent, epsilon, probability, bound, plain, code)}
    return environment


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template of `tasks/reports/templates`; a name it uses and is not given is an error, not an empty spot."""
    return _environment().get_template(template).render(values)
