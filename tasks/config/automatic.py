"""Settings that are `auto`: the mechanism, which other settings decide, and numbers (marked `Automatic`).

What stands in for a number until `tasks.runtime.parameters` chooses it is declared with its mark. A mechanism is chosen
here, from settings alone and by the rule of `terrine.planning`: units add up gradients if what those need is there,
because in most measured cases their student is more accurate, as served, than one of votes; else teachers vote
(docs/settings.md).
"""

from __future__ import annotations

import copy
from typing import Any

from tasks.config.params import AUTO, FAMILIES, SUMS, Params, lay_over
from terrine.aggregation.mechanism import MECHANISMS
from terrine.errors import SettingError
from terrine.settings import Automatic, Kinds, Settings, sections_of

_SUMS_NEED: dict[str, dict[str, tuple[Any, ...]]] = {
    "partition": {"teachers": (AUTO,)},
    "queries": {"rounds": (1,)},
    "backbone": {"kind": ("scattering",)},
    "teachers": {"kind": ("linear",)},
    "aggregation": {"where": ("local",), "sigma": (AUTO,)},
    "student": {"kind": ("linear",), "statistics": ("original",)},
}
"""What settings may say, if they say anything, for records to be summed; they have to be images."""


def take_out(values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return parameters with stand-ins in the place of those that are `auto`, and which these are.

    Raises SettingError where nothing chooses a setting of this kind of section, but one of another kind.
    """
    settled, chosen = with_mechanism(copy.deepcopy(values)), []
    for name, field in Params.model_fields.items():
        section, kinds = settled.get(name), FAMILIES.get(name)
        if not isinstance(section, dict):
            continue
        for key in [key for key, value in section.items() if value == AUTO]:
            if kinds is None:
                marks = [mark for own in sections_of(field) for mark in _marks(own, key)]
            else:
                marks = _marks_of_kind(name, kinds, section.get(kinds.key, kinds.default), key)
            if marks:
                section[key] = marks[0].stand_in
                chosen.append((name, key))
    return settled, chosen


def with_mechanism(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with a mechanism in the place of `auto`, and the student that goes with it.

    Where records are summed, no number of teachers is to be chosen, and none of queries: as few as there may be, about
    whom nobody is asked, and the default.
    """
    said = values.get("aggregation")
    if not isinstance(said, dict):
        return values
    if said.get("mechanism") == AUTO:
        chosen: dict[str, Any] = {"aggregation": {"mechanism": "histogram"}}
        if may_be_summed(values):
            chosen = {"aggregation": {"mechanism": "gradients"}, "student": {"kind": SUMS}}
        values = lay_over(values, {**chosen, "privacy": values.get("privacy") or {}})
    kind = values["aggregation"].get("mechanism", MECHANISMS.default)
    if kind in MECHANISMS.names() and MECHANISMS.of(kind).reveals == "sums":
        fewest = {} if values["aggregation"].get("where") == "parties" else {"teachers": 2}
        for name, key, instead in (("partition", "teachers", fewest), ("queries", "count", {})):
            if (values.get(name) or {}).get(key) == AUTO:
                values[name] = {other: value for other, value in values[name].items() if other != key} | instead
    return values


def may_be_summed(values: dict[str, Any]) -> bool:
    """Tell whether `auto` lets records add up gradients."""
    if values.get("transcription") or (values.get("data") or {}).get("name") == "table":
        return False
    return all(
        (values.get(name) or {}).get(key, either[0]) in either
        for name, keys in _SUMS_NEED.items()
        for key, either in keys.items()
    )


def _marks(section: type[Settings], key: str) -> list[Automatic]:
    field = section.model_fields.get(key)
    return [] if field is None else [mark for mark in field.metadata if isinstance(mark, Automatic)]


def _marks_of_kind(name: str, kinds: Kinds[Any], kind: Any, key: str) -> list[Automatic]:
    """Return the marks of a setting of one kind of a section; none for kinds and settings that there are not."""
    known = [other for other in kinds.names() if _marks(kinds.of(other), key)]
    if known and kind in kinds.names() and kind not in known:
        listed = ", ".join(known)
        raise SettingError(
            f"{name}.{key}=auto is known for {name}.{kinds.key}={listed}, not for {kind}. Give numbers "
            f"(`terrine account` finds them), or take {name}.{kinds.key}={listed}."
        )
    return _marks(kinds.of(kind), key) if kind in known else []
