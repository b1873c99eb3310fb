"""List settings with defaults, units and descriptions, read from their declarations."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from terrine.settings import Automatic, Kinds, Settings, Unit, sections_of

Families = Mapping[str, Kinds[Any]]
_TYPES = {
    int: "integer",
    float: "number",
    bool: "true | false",
    str: "text",
    Path: "path",
    dict: "mapping",
    tuple: "list",
}


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: Name of the setting as in `--set`.
        kinds: Types of the section that have the setting; empty for all.
        default: Default value in YAML notation, or None if the setting is required.
        required: Whether the setting has no default.
        values: Valid values.
        unit: Unit of a number, or empty.
        meaning: Description below the declaration of the setting.
    """

    key: str
    kinds: tuple[str, ...]
    default: Any
    required: bool
    values: str
    unit: str
    meaning: str


def list_settings(
    sections: tuple[type[Settings], ...], families: Families, prefix: str = "", kinds: tuple[str, ...] = ()
) -> Iterator[Setting]:
    """Yield all settings of the given classes, in order. Settings shared by several types are listed once.

    Args:
        sections: Class of all parameters, or the classes of a section with several types.
        families: Sections with several types, by name.
        prefix: Name of the section, with a dot.
        kinds: Types that have the section.
    """
    family = families.get(prefix.rstrip("."))
    holders: dict[str, dict[str, list[type[Settings]]]] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            same = f"{field.get_default(call_default_factory=True)!r} {meanings(section).get(name)}"
            tag = family is not None and name == family.key
            holders.setdefault(name, {}).setdefault("" if tag else same, []).append(section)
    for name, alike in holders.items():
        for own in alike.values():
            field, holding = own[0].model_fields[name], kinds
            if family is not None and len(own) < len(sections):
                holding = tuple(kind for one in own for kind in get_args(one.model_fields[family.key].annotation))
            if inner := sections_of(field):
                yield from list_settings(inner, families, f"{prefix}{name}.", holding)
            elif family is not None and family.key == name:
                known = " | ".join(["auto"] * (prefix == "aggregation.") + list(family.names()))
                yield Setting(f"{prefix}{name}", (), family.default, False, known, "", f"Type of {family.family}.")
            else:
                yield _setting(own[0], name, field, prefix, holding)


def _setting(section: type[Settings], name: str, field: FieldInfo, prefix: str, kinds: tuple[str, ...]) -> Setting:
    units = [mark.name for mark in field.metadata if isinstance(mark, Unit)]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return Setting(
        f"{prefix}{name}",
        kinds,
        str(default) if isinstance(default, Path) else default,
        field.is_required(),
        values(field),
        units[0] if units else "",
        meanings(section).get(name, ""),
    )


def values(field: FieldInfo) -> str:
    """Return the valid values of a field: its choices, or its type and bounds."""
    marks = {"Ge": "≥ {}", "Gt": "> {}", "Le": "≤ {}", "Lt": "< {}"}
    bounds = [
        marks[type(mark).__name__].format(f"{getattr(mark, type(mark).__name__.lower()):g}")
        for mark in field.metadata
        if type(mark).__name__ in marks
    ]
    chosen = "auto | " if any(isinstance(mark, Automatic) for mark in field.metadata) else ""
    return chosen + " ".join([_type(field.annotation), ", ".join(bounds)]).strip()


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join("null" if part is type(None) else _type(part) for part in get_args(annotation))
    return _TYPES.get(get_origin(annotation) or annotation, "value")


def meanings(section: type[Settings]) -> dict[str, str]:
    """Return the description below each field of a class, including inherited fields, as one line each."""
    owners = [owner for owner in reversed(section.__mro__) if issubclass(owner, Settings) and owner is not Settings]
    return {name: meaning for owner in owners for name, meaning in _own_meanings(owner).items()}


@cache
def _own_meanings(owner: type[Settings]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except (OSError, TypeError):  # the class was created at run time, from classes with source code
        return {}
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match (field, text):
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning)))):
                found[name] = " ".join(meaning.split())
    return found
