"""Task of a release: its classes, findings, grades or bins. Public, and part of the release ID.

The ledger records the task with each reservation. The first task of an account, edition and target is also the class
list of later runs that declare none. Otherwise a record with a new label could change the class list of a later run,
and thereby whether the stored release is returned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from terrine.errors import LedgerError

TaskKind = Literal["classes", "findings", "grades", "bins"]


@dataclass(frozen=True)
class Task:
    """Classes, findings, grades or bins, in order.

    Attributes:
        edition: Edition of the data, a separate part of the release ID.
        kind: `classes`, `findings`, `grades` or `bins`.
        names: Names of the classes, by label.
        edges: Edges of bins; empty for other kinds.
        target: Label column of a table.
        found: Whether the names are labels found in the data instead of declared ones. Not part of the release ID.
    """

    edition: str
    kind: TaskKind
    names: tuple[str, ...]
    edges: tuple[float, ...] = ()
    target: str | None = None
    found: bool = False

    def identity(self) -> dict[str, Any]:
        """Return the task's part of a release ID, as JSON values."""
        return {"kind": self.kind, "names": list(self.names), "edges": list(self.edges), "target": self.target}

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON values, as in a privacy statement."""
        return {**self.identity(), "found": self.found}

    @classmethod
    def from_json(cls, edition: str, tree: Mapping[str, Any]) -> Self:
        """Return the task that `to_json` described."""
        names, target, found = tuple(map(_text, tree["names"])), tree["target"], tree["found"]
        if not isinstance(found, bool):
            raise TypeError(f"found={found!r} is neither true nor false")
        edges = tuple(map(float, tree["edges"]))
        return cls(edition, tree["kind"], names, edges, None if target is None else _text(target), found)

    @classmethod
    def describes(cls, tree: Mapping[str, Any]) -> bool:
        """Return whether a tree has exactly the fields and types of a task."""
        try:
            return cls.from_json("", tree).to_json() == tree and tree["kind"] in get_args(TaskKind)
        except (KeyError, TypeError, ValueError):
            return False

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.names)}"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def recorded(tasks: Sequence[Task], edition: str, target: str | None) -> Task | None:
    """Return the first task of an edition and target, or None."""
    return next((task for task in tasks if (task.edition, task.target) == (edition, target)), None)


def as_recorded(tasks: Sequence[Task], requested: Task) -> Task:
    """Return the account's first record of a task; the first release decides whether names were found or declared.

    Raises:
        LedgerError: If class names found in the data differ from those of the edition's first task.
    """
    first = recorded(tasks, requested.edition, requested.target)
    if first is None:
        return requested
    if first.identity() == requested.identity():
        return first
    if requested.found:
        raise LedgerError(
            f"Edition {first.edition} of the account has releases for the {first}, but these data have "
            f"{', '.join(requested.names)}. For a different task, set data.edition=<name> (charged separately), or "
            "declare its classes in order with data.classes. Nothing was released."
        )
    return requested
