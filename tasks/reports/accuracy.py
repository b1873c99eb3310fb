"""The accuracy that a run released, as people read it."""

from __future__ import annotations

from typing import Any

from tasks.runtime.store import Folders, read_json


def released_accuracy(folders: Folders) -> dict[str, Any] | None:
    """Return what was released about a run's accuracy, the content of accuracy.json, None where nothing was."""
    path = folders.accuracy
    found = read_json(path) if path.is_file() else {}
    return found if found.get("accuracy") is not None else None


def shown_accuracy(accuracy: float, plus_minus: float) -> str:
    """Write a released accuracy: 81.2 ± 1.3 %."""
    return f"{100 * accuracy:.1f} ± {100 * plus_minus:.1f} %"
