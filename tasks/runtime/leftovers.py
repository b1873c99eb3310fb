"""What a killed process leaves behind: temporary files and folders that nobody will rename any more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from tasks.runtime.store import Folders

NAME = re.compile(r"\..+\.([0-9a-f]{12}|[0-9a-f]{32}|[a-z0-9_]{8})\.(tmp|old)")
"""How files and folders are called until they are whole, and folders while they give way to others."""
DVC_NAME = re.compile(r"\.[\w-]{22}\.tmp$")
"""How DVC calls what it writes, into its cache and beside what it puts into the project."""


def of_a_run(folders: Folders) -> list[Path]:
    """Return the leftovers of a run, which nobody else may be making."""
    return _leftovers(path for zone in _zones(folders) for path in zone.rglob(".*"))


def _zones(folders: Folders) -> tuple[Path, Path, Path]:
    return folders.private, folders.public, folders.release


def of_the_project(root: Path) -> list[Path]:
    """Return the leftovers of what runs share, while nobody makes any run of the project."""
    from tasks.config.presets import PRESETS, SELECTED  # here, for Ctrl-C has no time for what it brings

    flat = _leftovers(path for folder in (root, root / PRESETS, root / SELECTED) for path in folder.glob(".*"))
    return flat + _leftovers(Folders(root, "").shared("", "").parent.rglob(".*"))


def _leftovers(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if NAME.fullmatch(path.name)]


def of_dvc(root: Path, folders: Folders) -> list[Path]:
    """Return the leftovers of DVC in its cache and in a run, while its lock is held: DVC itself never clears them."""
    places = (root / ".dvc" / "cache", *_zones(folders))
    return [path for place in places for path in place.rglob("*.tmp") if DVC_NAME.search(path.name)]


def remove(leftovers: list[Path]) -> None:
    """Remove files and folders, as far as that is possible."""
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
