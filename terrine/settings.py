"""Declaration of settings: frozen classes next to the code that uses them.

A field has a type, bounds, a default and a description below it; `Unit` gives the unit of a number. Unknown keys, wrong
types and values out of bounds are errors. The kinds of a family (teachers, students, mechanisms, ...) are subclasses of
a base class, distinguished by one field, usually `kind`, and found by `Kinds`.

    >>> class Shape(Settings):
    ...     pass
    >>> class Circle(Shape):
    ...     kind: Literal["circle"] = "circle"
    ...     radius: Annotated[float, Unit("pixels")] = Field(1.0, gt=0)
    >>> shapes = Kinds("shape", Shape)
    >>> shapes.of("circle")(radius=2).radius
    2.0

Classes of settings do not import torch, so that reading the parameters of a run is fast.
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
    "Automatic",
    "Field",
    "Kinds",
    "Literal",
    "Settings",
    "SiteLocal",
    "Unit",
    "import_modules",
    "load_plugins",
    "sections_of",
]

PLUGINS = "terrine.plugins"
"""Entry point group through which other packages declare modules with additional kinds."""


@dataclass(frozen=True)
class Unit:
    """Unit of a setting's number: votes, seconds, pixels, per cent, ..."""

    name: str


@dataclass(frozen=True)
class SiteLocal:
    """Marks a setting that names a site's files, machines or data, which is omitted from all published files.

    `unless` lists values that may be published.
    """

    unless: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Automatic:
    """Marks a setting that may be `auto`: it is chosen from public quantities before the run (`terrine.planning`).

    Until the value is chosen, checks of other settings use `stand_in`.
    """

    stand_in: float


class Settings(BaseModel):
    """Base class of a section of settings. Unknown keys are errors, and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `name: type = value` with an unchanged type change only the default of an inherited setting."""
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
        """Accept 2026 as the name of an account or folder, but not 2026.1, which YAML also reads from 2026.10."""
        if type(value) is not int or info.field_name is None:
            return value
        annotation = cls.model_fields[info.field_name].annotation
        return str(value) if {str, Path} & {annotation, *get_args(annotation)} else value

    def check(self, run: Any) -> None:
        """Raise ValueError if these settings contradict settings of other sections of the run.

        Args:
            run: Object with an attribute for each section of params.yaml.
        """


@cache
def load_plugins() -> tuple[str, ...]:
    """Import the modules of the entry points `terrine.plugins`, once, and return their names."""
    found = sorted(entry_points(group=PLUGINS), key=lambda point: point.name)
    for point in found:
        point.load()
    return tuple(point.module for point in found)


@cache
def import_modules(name: str) -> None:
    """Import a module, or all modules of a package, once, to register their kinds."""
    for module in pkgutil.iter_modules(getattr(importlib.import_module(name), "__path__", [])):
        importlib.import_module(f"{name}.{module.name}")


S = TypeVar("S", bound=Settings)


class Kinds(Generic[S]):
    """Registry of the kinds of a family: subclasses of its base class in Terrine, plugins or a notebook.

    Args:
        family: Name of the family in params.yaml and in messages.
        base: Base class.
        modules: Modules and packages with Terrine's kinds, imported on first use.
        default: Kind of a mapping that does not name one.
        key: Field that distinguishes kinds: a Literal with the names of the class.
    """

    def __init__(self, family: str, base: type[S], *modules: str, default: str = "", key: str = "kind") -> None:
        self.family, self.base, self.modules, self.default, self.key = family, base, modules, default, key

    def names(self) -> tuple[str, ...]:
        """Return all names, in alphabetical order."""
        return tuple(self._classes())

    def of(self, name: str) -> type[S]:
        """Return the class of a kind. Raise SettingError for an unknown name."""
        classes = self._classes()
        if name not in classes:
            raise SettingError(
                f"{self.family}.{self.key}={name} is not a valid value.{did_you_mean(name, classes)} Expected one of: "
                f"{', '.join(classes)}."
            )
        return classes[name]

    def settings(self) -> set[str]:
        """Return the names of all settings of all kinds."""
        return {name for kind in self._classes().values() for name in kind.model_fields}

    def union(self) -> Any:
        """Return the type of a field for any of the kinds."""
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
        # The last declaration of a name wins, as when a notebook's cell runs again, except over Terrine's own.
        for kind in sorted(_below(self.base), key=lambda kind: kind.__module__.startswith("terrine.")):
            if self.key in inspect.get_annotations(kind):  # a subclass that only inherits it is the same kind
                known |= dict.fromkeys(get_args(kind.model_fields[self.key].annotation), kind)
        return dict(sorted(known.items()))


def _below(base: type[S]) -> Iterator[type[S]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


def sections_of(field: FieldInfo | Any) -> tuple[type[Settings], ...]:
    """Return the classes of settings that a field may contain; none if the field contains a plain value."""
    annotation = field.annotation if isinstance(field, FieldInfo) else field
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return tuple(dict.fromkeys(section for part in get_args(annotation) for section in sections_of(part)))
    return (annotation,) if isinstance(annotation, type) and issubclass(annotation, Settings) else ()
