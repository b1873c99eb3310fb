"""Clean up after killed processes: temporary files and folders that are never renamed, and broken files in caches."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tasks.runtime.store import Folders

NAME = re.compile(r"\..+\.([0-9a-f]{12}|[0-9a-f]{32}|[a-z0-9_]{8})\.(tmp|old)")
"""How files and folders are called until they are whole, and folders while they give way to others."""
DVC_NAME = re.compile(r"\.[\w-]{22}\.tmp$")
"""How DVC calls what it writes, into its cache and beside artefacts."""
EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()
"""The name of an empty file in DVC's cache."""


def of_a_run(folders: Folders) -> list[Path]:
    """Return the leftovers of a run, which no other process may be making."""
    zones = (folders.private, folders.public, folders.release)
    return _leftovers(path for zone in zones for path in zone.rglob("*"))


def of_the_project(root: Path) -> list[Path]:
    """Return the leftovers of what runs share, while no process makes any run of the project."""
    from tasks.config.presets import PRESETS  # here, for Ctrl-C has no time for its imports

    flat = _leftovers(path for folder in (root, root / PRESETS) for path in folder.glob(".*"))
    shared = (Folders(root, "").shared("", "").parent, root / "data" / "private" / "shared", root / "runs")
    return flat + _leftovers(path for folder in shared for path in folder.rglob("*")) + _of_dvc(root)


def _of_dvc(root: Path) -> list[Path]:
    """Return what a kill or a power cut left in DVC's cache: temporary files, and files without content, which DVC
    would put in place of what a stage makes."""
    files = (path for path in (root / ".dvc" / "cache" / "files").rglob("*") if path.is_file())
    return [
        path
        for path in files
        if DVC_NAME.search(path.name) or (not path.stat().st_size and path.parent.name + path.name != EMPTY)
    ]


def _leftovers(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if NAME.fullmatch(path.name) or DVC_NAME.search(path.name)]


def remove(leftovers: list[Path]) -> None:
    """Remove files and folders, as far as that is possible."""
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
