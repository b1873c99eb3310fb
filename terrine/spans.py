"""Durations as text: `90`, `15min`, `6h`, `14d`.

>>> seconds("14d"), span(1_209_600), span(90)
(1209600.0, '14 days', '90 s')
"""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def seconds(value: Any) -> Any:
    """Return a duration in seconds; values other than strings are returned unchanged.

    Raises:
        ValueError: the text is not a duration.
    """
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)?\s*", value)
    if found is None:
        raise ValueError(f"{value!r} is not a duration: write 90, 15min, 6h or 14d")
    return float(found[1]) * _UNITS[found[2] or "s"]


Seconds = Annotated[float, BeforeValidator(seconds)]
"""Seconds, which may be given as `15min`, `6h` or `14d`."""


def span(value: float) -> str:
    """Format seconds in the largest suitable unit."""
    for word, unit, least in (("days", 86_400, 2), ("h", 3600, 2), ("min", 60, 2)):
        if value >= least * unit:
            return f"{math.floor(value / unit * 10) / 10:g} {word}"
    return f"{value:.3g} s"
