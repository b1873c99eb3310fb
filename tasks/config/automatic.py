"""Settings that are `auto` (marked `Automatic`): what stands in for them until `tasks.runtime.parameters` chooses."""

from __future__ import annotations

import copy
from typing import Any

from tasks.config.params import FAMILIES, Params
from terrine.errors import SettingError
from terrine.settings import Automatic, Kinds, Settings, sections_of

AUTO = "auto"


def take_out(values: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return parameters with stand-ins in the place of those that are `auto`, and which these are.

    Raises SettingError where nothing chooses a setting of this kind of section, but one of another kind.
    """
    settled, chosen = copy.deepcopy(values), []
    for name, field in Params.model_fields.items():
        section, kinds = settled.get(name), FAMILIES.get(name)
        for key in [key for key, value in section.items() if value == AUTO] if isinstance(section, dict) else []:
            if kinds is None:
                marks = [mark for own in sections_of(field) for mark in _marks(own, key)]
            else:
                marks = _marks_of_kind(name, kinds, section.get(kinds.key, kinds.default), key)
            if marks:
                section[key] = marks[0].stand_in
                chosen.append((name, key))
    return settled, chosen


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
            f"(`terrine calibrate` finds them), or take {name}.{kinds.key}={listed}."
        )
    return _marks(kinds.of(kind), key) if kind in known else []
