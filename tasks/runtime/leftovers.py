"""What a killed process leaves behind: temporary files and folders that nobody will rename any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.runtime.locks import FOLDER
from tasks.runtime.store import Folders

KINDS = (".*.tmp", ".*.old")
"""How files and folders are called until they are whole, and folders while they give way to others."""


def of_a_run(folders: Folders) -> list[Path]:
    """Return the leftovers of a run, which nobody else may be making."""
    zones = (folders.private, folders.public, folders.release)
    return [path for zone in zones for kind in KINDS for path in zone.rglob(kind)]


def of_the_project(root: Path) -> list[Path]:
    """Return the leftovers of what runs share, while nobody makes any run of the project."""
    from tasks.config.presets import PRESETS, SELECTED  # here, for Ctrl-C has no time for what it brings

    flat = [path for folder in (root, root / PRESETS, root / SELECTED) for kind in KINDS for path in folder.glob(kind)]
    shared = Folders(root, "").shared("", "").parent
    return flat + [path for folder in (shared, root / FOLDER) for kind in KINDS for path in folder.rglob(kind)]


def remove(leftovers: list[Path]) -> None:
    """Remove files and folders, as far as that is possible."""
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
