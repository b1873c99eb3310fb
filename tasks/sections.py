"""What every section of params.yaml is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class AtHome:
    """Marks a parameter that names a site's files, machines or data: it is in nothing that leaves the site.

    unless: values that say nothing of the kind.
    """

    unless: tuple[Any, ...] = ()


class Section(BaseModel):
    """A section of params.yaml: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section that a field holds, None for a field that holds a value."""
    # A section that may be null is a union of itself and None.
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def without_what_stays_at_home(values: dict[str, Any], section: type[Section]) -> dict[str, Any]:
    """Return values of a section, or some of them, without those that are marked `AtHome` or that nobody knows."""
    kept = {}
    for key, value in values.items():
        field = section.model_fields.get(key)
        if field is None or any(isinstance(mark, AtHome) and value not in mark.unless for mark in field.metadata):
            continue
        inner = section_of(field)
        kept[key] = without_what_stays_at_home(value, inner) if inner and isinstance(value, dict) else value
    return kept
