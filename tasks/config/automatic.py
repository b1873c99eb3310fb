"""Settings with the value `auto`: stand-ins for numbers, and the mechanism, which is derived from other settings.

`tasks.runtime.parameters` chooses the numbers before training. Before that, checks use the stand-in value declared with
the setting (`Automatic`).
"""

from __future__ import annotations

import copy
from typing import Any

from tasks.config.params import AUTO, FAMILIES, SUMS, Params, merge_overrides
from terrine.aggregation.mechanism import MECHANISMS
from terrine.errors import SettingError
from terrine.planning import choose_mechanism
from terrine.settings import Automatic, Kinds, Settings, sections_of

_ALLOW_SUMS: dict[str, dict[str, tuple[Any, ...]]] = {
    "partition": {"teachers": (AUTO,)},
    "queries": {"rounds": (1,)},
    "backbone": {"kind": ("scattering", "columns")},
    "teachers": {"kind": ("linear",)},
    "aggregation": {"where": ("local",), "sigma": (AUTO,)},
    "student": {"kind": ("linear",), "statistics": ("original",)},
}
"""Values under which records can be summed; the first is the default."""


def replace_auto(values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return parameters with stand-ins for `auto`, and the section and key of each setting replaced.

    Raises:
        SettingError: If `auto` is set for a type that does not support it.
    """
    resolved, chosen = resolve_mechanism(copy.deepcopy(values)), []
    for name, field in Params.model_fields.items():
        section, kinds = resolved.get(name), FAMILIES.get(name)
        if not isinstance(section, dict):
            continue
        for key in [key for key, value in section.items() if value == AUTO]:
            if kinds is None:
                marks = [mark for each in sections_of(field) for mark in _marks(each, key)]
            else:
                marks = _marks_of_kind(name, kinds, section.get(kinds.key, kinds.default), key)
            if marks:
                section[key] = marks[0].stand_in
                chosen.append((name, key))
    return resolved, chosen


def resolve_mechanism(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with a mechanism and its student instead of `auto`.

    With sums, `auto` numbers of teachers and queries become the minimum and the default, since nothing is voted on.
    """
    section = values.get("aggregation")
    if not isinstance(section, dict):
        return values
    if section.get("mechanism") == AUTO:
        mechanism = choose_mechanism(sums_possible=sums_possible(values))
        student = {} if mechanism == "histogram" else {"student": {"kind": SUMS}}
        # Given again, settings that their section's type lacks are not dropped, and validation refuses them.
        given = {name: values.get(name) or {} for name in ("data", "privacy", "partition", "backbone")}
        values = merge_overrides(values, given | {"aggregation": {"mechanism": mechanism}} | student)
    kind = values["aggregation"].get("mechanism", MECHANISMS.default)
    if kind in MECHANISMS.names() and MECHANISMS.of(kind).reveals == "sums":
        fewest = {} if values["aggregation"].get("where") == "parties" else {"teachers": 2}
        for name, key, instead in (("partition", "teachers", fewest), ("queries", "count", {})):
            if (values.get(name) or {}).get(key) == AUTO:
                values[name] = {other: value for other, value in values[name].items() if other != key} | instead
    return values


def sums_possible(values: dict[str, Any]) -> bool:
    """Return whether the settings allow sums over records."""
    if values.get("transcription"):
        return False
    return all(
        (values.get(name) or {}).get(key, allowed[0]) in allowed
        for name, keys in _ALLOW_SUMS.items()
        for key, allowed in keys.items()
    )


def _marks(section: type[Settings], key: str) -> list[Automatic]:
    field = section.model_fields.get(key)
    return [] if field is None else [mark for mark in field.metadata if isinstance(mark, Automatic)]


def _marks_of_kind(name: str, kinds: Kinds[Any], kind: Any, key: str) -> list[Automatic]:
    """Return the `Automatic` marks of a setting of one type; empty for unknown types and settings."""
    known = [other for other in kinds.names() if _marks(kinds.of(other), key)]
    if known and kind in kinds.names() and kind not in known:
        listed = ", ".join(known)
        raise SettingError(
            f"{name}.{key}=auto requires {name}.{kinds.key}={listed}, not {kind}. Give numbers (`terrine account` "
            f"finds them), or set {name}.{kinds.key}={listed}."
        )
    return _marks(kinds.of(kind), key) if kind in known else []
