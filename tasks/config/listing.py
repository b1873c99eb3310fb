"""Every setting there is, with its default, its unit and its meaning, as their declarations have them."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tasks.config.params import FAMILIES, Params
from terrine.settings import Automatic, Settings, Unit, sections_of


@dataclass(frozen=True)
class Setting:
    """One setting.

    key: as `--set` takes it. kinds: of its section that have it, none where all do. default: as YAML has it, None where
    it must be given. values: what it may be. unit: what its number counts, "" for what counts nothing.
    """

    key: str
    kinds: tuple[str, ...]
    default: Any
    required: bool
    values: str
    unit: str
    meaning: str


def settings() -> list[Setting]:
    """Return all settings, in the order of params.yaml; what several kinds have in common is listed once."""
    return list(_of((Params,), "", ()))


def _of(sections: tuple[type[Settings], ...], prefix: str, kinds: tuple[str, ...]) -> Iterator[Setting]:
    holders: dict[str, dict[str, list[type[Settings]]]] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            same = f"{field.get_default(call_default_factory=True)!r} {meanings(section).get(name)}"
            holders.setdefault(name, {}).setdefault("" if name == _key(prefix) else same, []).append(section)
    for name, alike in holders.items():
        for own in alike.values():
            field = own[0].model_fields[name]
            which = (
                kinds
                if len(own) == len(sections)
                else tuple(kind for section in own for kind in _names(section, prefix))
            )
            inner = sections_of(field)
            if inner:
                yield from _of(inner, f"{prefix}{name}.", which)
            else:
                yield _setting(own[0], name, field, prefix, which)


def _key(prefix: str) -> str:
    family = FAMILIES.get(prefix.rstrip("."))
    return family.key if family is not None else ""


def _names(section: type[Settings], prefix: str) -> tuple[str, ...]:
    field = section.model_fields.get(_key(prefix))
    return get_args(field.annotation) if field is not None else ()


def _setting(section: type[Settings], name: str, field: FieldInfo, prefix: str, kinds: tuple[str, ...]) -> Setting:
    units = [mark.name for mark in field.metadata if isinstance(mark, Unit)]
    family = FAMILIES.get(prefix.rstrip("."))
    if family is not None and family.key == name:
        return Setting(f"{prefix}{name}", (), family.default, False, " | ".join(family.names()), "", "Which one it is.")
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
    """Return in a few words what a field takes: its choices, or its type with its bounds."""
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
    names = {
        int: "integer",
        float: "number",
        bool: "true | false",
        str: "text",
        Path: "path",
        dict: "mapping",
        tuple: "list",
    }
    return names.get(get_origin(annotation) or annotation, "value")


def meanings(section: type[Settings]) -> dict[str, str]:
    """Return the text below each field of a class and of those it inherits from, as one line each."""
    owners = [owner for owner in reversed(section.__mro__) if issubclass(owner, Settings) and owner is not Settings]
    return {name: meaning for owner in owners for name, meaning in _own_meanings(owner).items()}


@cache
def _own_meanings(owner: type[Settings]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    except (OSError, TypeError):  # made at run time: its parts are in the classes it inherits from
        return {}
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match (field, text):
            case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning)))):
                found[name] = " ".join(meaning.split())
    return found
