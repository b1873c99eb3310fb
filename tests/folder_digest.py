"""Digest of a folder's names and bytes."""

import hashlib
from pathlib import Path

from terrine.files import file_digest


def folder_digest(path: Path) -> str:
    """Return one SHA-256 over the names and bytes of a folder's files."""
    summary = hashlib.sha256()
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        summary.update(f"{file.relative_to(path).as_posix()}\0{file_digest(file)}\n".encode())
    return summary.hexdigest()
