"""What a student's privacy statement says, in the few values that travel with its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.runtime.store import file_digest, read_json

_TOLD = ("run", "epsilon", "delta", "unit", "noise", "private", "summary")


def guarantee(student: Path) -> dict[str, Any] | None:
    """Return what the statement beside the folder `student` says, with its digest; None: there is none.

    `epsilon` is what is guaranteed where that is more than what was used.
    """
    path = student.parent / "privacy.json"
    if not path.is_file():
        return None
    statement = read_json(path)
    told = {name: statement.get(name) for name in _TOLD}
    if statement.get("private") and statement.get("epsilon_guaranteed") is not None:
        told["epsilon"] = statement["epsilon_guaranteed"]
    return {**told, "statement_sha256": file_digest(path)}
