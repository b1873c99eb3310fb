"""What a student's privacy statement says, in the few values that travel with its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.reports.statement_page import read_statement
from terrine.deployment.manifest import check_seal
from terrine.errors import ArtefactError
from terrine.files import file_digest

OWN_STATISTICS = (
    "NOT COVERED BY ANY ε: images of one's own were given as a reference. Their means and variances, without noise, "
    "are in exported files and behind every answer. Keep both where those images may be."
)
"""Said in the place of a statement, where a student normalises with images that were given."""
_TOLD = ("run", "epsilon", "delta", "unit", "noise", "private", "summary")


def guarantee(student: Path) -> dict[str, Any] | None:
    """Return what the statement beside the folder `student` says, with its digest; None: there is none.

    `epsilon` is what is guaranteed where that is more than what was used. Raises ArtefactError for a statement whose
    figures are not what its own event costs, or which is about another release than the student's.
    """
    path = student.parent / "privacy.json"
    if not path.is_file():
        return None
    statement = read_statement(path)
    made_from = check_seal(student).get("release")
    if made_from != statement["release_id"]:
        raise ArtefactError(
            f"{path} is about another release than the one that the student in {student} says it was made from "
            f"({'none' if made_from is None else str(made_from)[:16]}). Get both again from where they were published, "
            "or run the stage 'student' again."
        )
    told = {name: statement.get(name) for name in _TOLD}
    if statement.get("private") and statement.get("epsilon_guaranteed") is not None:
        told["epsilon"] = statement["epsilon_guaranteed"]
    return {**told, "statement_sha256": file_digest(path)}
