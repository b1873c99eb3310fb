"""How settings are declared: once, in one frozen class beside the code that uses them.

A field has a type, bounds, a default and, as the text below it, its meaning; `Unit` says what its number counts.
Whatever is unknown, of the wrong type or out of bounds is refused. Kinds of one family (teachers, students, mechanisms,
...) are classes below the family's base class, told apart by one field, usually `kind`, and found by `Kinds`.

    >>> class Shape(Settings):
    ...     pass
    >>> class Circle(Shape):
    ...     kind: Literal["circle"] = "circle"
    ...     radius: Annotated[float, Unit("pixels")] = Field(1.0, gt=0)
    >>> shapes = Kinds("shape", Shape)
    >>> shapes.of("circle")(radius=2).radius
    2.0

Classes of settings import nothing heavy: reading the parameters of a run needs no torch. What a kind builds it imports
when it is built.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from terrine.errors import SettingError, did_you_mean

__all__ = [
    "AtHome",
    "Automatic",
    "Field",
    "Kinds",
    "Literal",
    "Settings",
    "Unit",
    "import_modules",
    "load_plugins",
    "sections_of",
]

PLUGINS = "terrine.plugins"
"""The group of entry points under which another package names modules that declare kinds of its own."""


@dataclass(frozen=True)
class Unit:
    """Marks a setting with what its number counts: votes, seconds, pixels, per cent, ..."""

    name: str


@dataclass(frozen=True)
class AtHome:
    """Marks a setting that names a site's files, machines or data: it is in nothing that leaves the site.

    unless: values that say nothing of the kind.
    """

    unless: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Automatic:
    """Marks a setting that may be `auto`: it is then chosen before the run starts, from public quantities alone
    (`terrine.planning`).

    stand_in: what checks of all other settings see in its place until then.
    """

    stand_in: float


class Settings(BaseModel):
    """Settings that belong together: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a plain `name: type = value` of the same type change the default alone of what a class above declares."""
        super().__init_subclass__(**options)
        for name, annotation in inspect.get_annotations(cls).items():
            fields = (getattr(base, "model_fields", {}) for base in cls.__mro__[1:])
            above = next((own[name] for own in fields if name in own), None)
            if above is None or name not in cls.__dict__ or isinstance(cls.__dict__[name], FieldInfo):
                continue
            if str(annotation) not in (str(above.annotation), getattr(above.annotation, "__name__", None)):
                continue
            field = copy(above)
            field.default = cls.__dict__[name]
            setattr(cls, name, field)

    @field_validator("*", mode="before")
    @classmethod
    def _whole_number_as_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Take an account or a folder that is called 2026. Not 2026.1, which YAML makes of 2026.10 as well."""
        if type(value) is not int or info.field_name is None:
            return value
        annotation = cls.model_fields[info.field_name].annotation
        return str(value) if {str, Path} & {annotation, *get_args(annotation)} else value

    def check(self, run: Any) -> None:
        """Raise ValueError where these settings do not go with others of the run.

        run: has one attribute for each section of params.yaml.
        """


@cache
def load_plugins() -> tuple[str, ...]:
    """Import what other packages declare under the entry points `terrine.plugins`, once; return the modules' names."""
    found = sorted(entry_points(group=PLUGINS), key=lambda point: point.name)
    for point in found:
        point.load()
    return tuple(point.module for point in found)


@cache
def import_modules(name: str) -> None:
    """Import a module, or every module of a package, once, so that the kinds they declare are known."""
    for module in pkgutil.iter_modules(getattr(importlib.import_module(name), "__path__", [])):
        importlib.import_module(f"{name}.{module.name}")


S = TypeVar("S", bound=Settings)


class Kinds(Generic[S]):
    """The kinds of a family by their names: classes below its base class, from Terrine, plugins or a notebook.

    Args:
        family: What the family is called in params.yaml and in messages.
        base: The class that all of them are below.
        modules: Modules, and packages of modules, that declare Terrine's own kinds; imported at first use.
        default: The kind of a mapping that does not name one.
        key: The field that tells kinds apart: a Literal of the names that a class answers to.
    """

    def __init__(self, family: str, base: type[S], *modules: str, default: str = "", key: str = "kind") -> None:
        self.family, self.base, self.modules, self.default, self.key = family, base, modules, default, key

    def names(self) -> tuple[str, ...]:
        """Return all names, in alphabetical order."""
        return tuple(self._classes())

    def of(self, name: str) -> type[S]:
        """Return the class of a kind. Raises SettingError for an unknown name, with the known ones."""
        classes = self._classes()
        if name not in classes:
            raise SettingError(
                f"{self.family}.{self.key}: there is no '{name}'.{did_you_mean(name, classes)} "
                f"Known: {', '.join(classes)}."
            )
        return classes[name]

    def settings(self) -> set[str]:
        """Return the names of all settings that any of the kinds has."""
        return {name for kind in self._classes().values() for name in kind.model_fields}

    def union(self) -> Any:
        """Return the type of a field that holds any of the kinds."""
        classes = self._classes()

        def name_of(value: Any) -> Any:
            return value.get(self.key, self.default) if isinstance(value, dict) else getattr(value, self.key, None)

        members = tuple(Annotated[kind, Tag(name)] for name, kind in classes.items())
        return Annotated[Union[members], Discriminator(name_of)]  # noqa: UP007

    def _classes(self) -> dict[str, type[S]]:
        for module in self.modules:
            import_modules(module)
        load_plugins()
        known: dict[str, type[S]] = {}
        # The last to declare a name has it, as when a notebook's cell runs again; but nobody takes one of Terrine's.
        for kind in sorted(_below(self.base), key=lambda kind: kind.__module__.startswith("terrine.")):
            if self.key in inspect.get_annotations(kind):  # what only inherits it is the same kind
                known |= dict.fromkeys(get_args(kind.model_fields[self.key].annotation), kind)
        return dict(sorted(known.items()))


def _below(base: type[S]) -> Iterator[type[S]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


def sections_of(field: FieldInfo | Any) -> tuple[type[Settings], ...]:
    """Return the classes of settings that a field may hold: none for a field that holds a value."""
    annotation = field.annotation if isinstance(field, FieldInfo) else field
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return tuple(dict.fromkeys(section for part in get_args(annotation) for section in sections_of(part)))
    return (annotation,) if isinstance(annotation, type) and issubclass(annotation, Settings) else ()
