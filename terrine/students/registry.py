"""The student kinds by name. A new one is one file with a class like `terrine.students.kind.StudentKind`, and its class
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from terrine.errors import SettingError
from terrine.students.finetune import FineTune
from terrine.students.fixmatch import FixMatch
from terrine.students.freematch import FreeMatch
from terrine.students.full import Full
from terrine.students.kind import StudentKind
from terrine.students.linear import Linear
from terrine.students.vat import VAT

KINDS: dict[str, type[Any]] = {kind.name: kind for kind in (Linear, FineTune, Full, FixMatch, FreeMatch, VAT)}


def settings_of(name: str) -> tuple[str, ...]:
    """Return the names of a kind's settings. Raises SettingError for an unknown kind, naming the known ones."""
    if name not in KINDS:
        raise SettingError(f"There is no student kind '{name}': choose one of {', '.join(KINDS)}.")
    return tuple(field.name for field in fields(KINDS[name]))


def build(name: str, settings: Mapping[str, Any]) -> StudentKind:
    """Return the student kind of this name with these settings, defaults where none is given.

    Raises SettingError for an unknown kind or setting, naming the known ones, and for an impossible value.
    """
    known = settings_of(name)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise SettingError(f"The student kind '{name}' has no setting '{unknown[0]}'; it has {', '.join(known)}.")
    kind: StudentKind = KINDS[name](**settings)
    return kind
