"""Write a release's statement anew when something was learnt that it should say: an audit's bound, a search's price."""

from __future__ import annotations

from pathlib import Path

from flows.stages import run_stage
from tasks.versioning import commit


def restate(root: Path, run: str) -> None:
    """Run the stage `aggregate` of a run whose release is stored: nothing is drawn or charged, the statement is new."""
    run_stage(root, run, "aggregate")
    commit(root, run, "aggregate")
