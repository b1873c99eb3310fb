"""Check a project whose run was interrupted and then repeated."""

import json
import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.crash.project import Command, answer_in

FAULTS = (
    "not completed",
    "traceback",
    "charges",
    "another ε",
    "ledger damaged",
    "DVC not clean",
    "leftovers",
    "other files",
    "processes",
)
CHANCE = re.compile(r"[0-9a-f]{8,}|\d+")


def faults(project: Path, run: str, again: Command, whole: dict[str, Any]) -> set[str]:
    """Return the faults of a repeated run, compared with an undisturbed one."""
    found = set()
    if "Traceback" in again.said:
        found.add("traceback")
    if again.status != 0:
        return found | {"not completed"}
    seen = outcome(project, run)
    for name in ("charges", "another ε", "ledger damaged", "DVC not clean", "leftovers", "other files"):
        if seen[name] != whole[name]:
            found.add(name)
            print(f"    {project.name}, {name}: {seen[name]} instead of {whole[name]}", file=sys.stderr)
    if again.processes():
        found.add("processes")
    return found


def outcome(project: Path, run: str) -> dict[str, Any]:
    """Return what a run came to: equal for all runs of a preset."""
    return answer_in(project, lambda: _outcome(project, run))


def _outcome(project: Path, run: str) -> dict[str, Any]:
    from dvc.cli import main as dvc

    from tasks.tools.ledger import open_existing, overview

    ledger, names = open_existing()
    accounts = overview(ledger, names)
    with redirect_stdout(StringIO()) as said:
        file = "dvc.yaml" if run == "small" else f"runs/{run}/dvc.yaml"
        status = dvc(["status", "--json", file])
    paths = [path.relative_to(project).as_posix() for path in project.rglob("*")]
    left = [path for path in paths if path.endswith((".tmp", ".old"))]
    statement = json.loads((project / "data" / "release" / run / "privacy.json").read_text())
    return {
        "charges": [len(account["releases"]) for account in accounts],
        "another ε": statement["epsilon"],
        "ledger damaged": ledger.verify(),
        "DVC not clean": [status, said.getvalue().strip()],
        "leftovers": left,
        "other files": sorted({CHANCE.sub("#", path) for path in paths if path.startswith("data/")}),
    }
