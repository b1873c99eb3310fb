"""Settings that are `auto`: which may be, and what stands in for them until `tasks.runtime.parameters` chooses them."""

from __future__ import annotations

import copy
from typing import Any

from terrine.errors import SettingError

AUTO = "auto"
STAND_INS: dict[tuple[str, str], Any] = {
    ("partition", "teachers"): 100,
    ("aggregation", "sigma"): 100.0,
    ("queries", "count"): 1000,
}
"""The settings that may be `auto`, and what checks of all others see in their place."""


def take_out(values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return parameters with stand-ins in the place of those that are `auto`, and which these are.

    Raises SettingError where the mechanism is one whose noise nothing chooses.
    """
    chosen = [key for key in STAND_INS if _section(values, key[0]).get(key[1]) == AUTO]
    mechanism = _section(values, "aggregation").get("mechanism", "histogram")
    if ("aggregation", "sigma") in chosen and mechanism != "histogram":
        raise SettingError(
            f"aggregation.sigma=auto is known for aggregation.mechanism=histogram, not for {mechanism}. Give numbers "
            "(`terrine calibrate` finds them), or take aggregation.mechanism=histogram."
        )
    settled = copy.deepcopy(values)
    for section, key in chosen:
        settled[section][key] = STAND_INS[section, key]
    return settled, chosen


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}
