"""What is known about a release beside the release itself: the search it came from, the audit its mechanism passed.

Both are found outside the stages, from public quantities, and lie beside the run's public artefacts. The release's
statement quotes them; `flows.cli.audit` and `flows.sweep` see to it that it is written anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from terrine.errors import ArtefactError

SEARCH, AUDIT = "search.json", "audit.json"


def record_search(run: Run, epsilon_tuning: float, delta: float) -> None:
    """Note what the search costs that this run is a candidate of; of several searches the dearest counts."""
    known = _read(run, SEARCH).get("epsilon_tuning", 0.0)
    write_json(run.folders.public / SEARCH, {"epsilon_tuning": max(epsilon_tuning, known), "delta": delta})


def record_audit(run: Run, result: dict[str, Any]) -> None:
    """Keep the outcome of an audit (`tasks.auditing.mechanisms.audit`) of the run's mechanism."""
    write_json(run.folders.public / AUDIT, result)


def assurance(run: Run, mechanism: dict[str, Any]) -> dict[str, float]:
    """Return the statement's fields `epsilon_tuning`, `audit_epsilon` and `audit_confidence`, those that are known.

    An audit of another mechanism, or of other parameters, says nothing about this one and is left out.
    """
    search, audited = _read(run, SEARCH), _read(run, AUDIT)
    fields = {name: search[name] for name in ("epsilon_tuning",) if name in search}
    if audited and all(audited.get(key) == value for key, value in mechanism.items()):
        fields |= {"audit_epsilon": audited["epsilon"], "audit_confidence": audited["confidence"]}
    return fields


def _read(run: Run, name: str) -> dict[str, Any]:
    path: Path = run.folders.public / name
    try:
        return read_json(path) if path.is_file() else {}
    except ArtefactError as error:
        raise ArtefactError(f"{error} Remove it, and search or audit again.") from error
