"""The task of a release: which classes, findings, grades or bins it is about. Public, and part of the release ID.

The ledger records a release's task with its reservation. The first one of an account, an edition and a target is also
the class list of every later run there that declares none. Otherwise a record with a new label could change the class
list of a later release, and with it whether that release is the stored one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from terrine.errors import LedgerError

TaskKind = Literal["classes", "findings", "grades", "bins"]


@dataclass(frozen=True)
class Task:
    """Classes, findings, grades or bins, in their order.

    Attributes:
        edition: The edition of the data. The release ID holds it separately.
        names: Names of the classes, by label.
        edges: Edges of bins; empty for other kinds.
        target: The column of a table that holds the labels.
        found: Whether the names are the labels that occurred in the data, instead of declared ones. Not part of the
            release ID.
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
        """Return the task as a privacy statement has it, as JSON values."""
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
        """Tell whether a tree has exactly the fields and types of a task."""
        try:
            return cls.from_json("", tree).to_json() == tree and tree["kind"] in get_args(TaskKind)
        except (KeyError, TypeError, ValueError):
            return False

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.names)}"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def recorded(tasks: Sequence[Task], edition: str, target: str | None) -> Task | None:
    """Return the first task of an edition and a target, or None."""
    return next((task for task in tasks if (task.edition, task.target) == (edition, target)), None)


def as_recorded(tasks: Sequence[Task], asked: Task) -> Task:
    """Return a task as an account records it: whether its names occurred or were declared, the first time decides.

    Raises:
        LedgerError: names that only occur in the data, and are not those of the first task of the edition.
    """
    first = recorded(tasks, asked.edition, asked.target)
    if first is None:
        return asked
    if first.identity() == asked.identity():
        return first
    if asked.found:
        raise LedgerError(
            f"The account, edition {first.edition}, holds releases for the {first}; these data have "
            f"{', '.join(asked.names)}. If this is another task, set data.edition=<name> (charged separately), or "
            "declare its classes in order with data.classes. Nothing was released."
        )
    return asked
