"""Self-contained HTML pages from jinja2 templates.

A page is one file without external scripts, fonts or pictures, so it looks the same offline. The template engine
escapes all values from data (class names, run names, file names).
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
    """Return a whole number with thousands separators, such as 10,000."""
    return f"{value:,.0f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage, or a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def epsilon(value: float | None) -> str:
    """Return ε with four decimals, or "none" without a finite guarantee."""
    return "none" if value is None else f"{value:.4f}"


def probability(value: float) -> str:
    """Return a small probability, such as 1e-5 instead of 1e-05."""
    mantissa, exponent, power = f"{value:g}".partition("e")
    return f"{mantissa}e{int(power)}" if exponent else mantissa


def bound(value: float) -> str:
    """Return a very small upper bound with two digits, rounded up, such as 1.2e-20."""
    if value == 0:
        return "0"
    digits, exponent = f"{value:.17e}".split("e")
    return probability(float(f"{math.ceil(float(digits) * 10)}e{int(exponent) - 1}"))


def plain(value: Any) -> str:
    """Return a value of any type as text for a table."""
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
    """Return a name from data as Markdown code, so that Markdown does not interpret it."""
    return f"`{' '.join(name.replace('`', chr(39)).split())}`"


def bar_rows(
    names: Sequence[str], values: Sequence[float], texts: Sequence[str] | None = None, longest: float | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a bar chart: name, share of the track, and the text at its end.

    Args:
        names: Names of the rows.
        values: Lengths of the bars.
        texts: Texts at the ends; by default the values as whole numbers.
        longest: Value that fills the track; by default the largest.
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
    """Fill in a template from `tasks/reports/templates`; a missing value is an error."""
    return _environment().get_template(template).render(values)
