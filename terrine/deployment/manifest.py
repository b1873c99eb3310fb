"""Manifest of a student's folder: SHA-256 of every file and of the manifest itself.

Truncated, swapped or edited weights would still give predictions, so a folder is checked before use. This finds damage
and mix-ups but not forgery: anyone can write a new folder with a valid manifest.
"""

import hashlib
import json
from collections.abc import Mapping
from operator import methodcaller
from pathlib import Path
from typing import Any

from terrine.errors import ArtefactError
from terrine.files import file_digest

MANIFEST = "manifest.json"
_DIGESTS, _OWN = "digests", "digest"
_LARGEST_MANIFEST = 2**24


def seal(folder: Path, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of the files in `folder`, which the caller writes: description and digests.

    Args:
        folder: The folder; an existing manifest is ignored.
        description: JSON values; digests of an earlier manifest are replaced.
    """
    described = {name: value for name, value in description.items() if name != _OWN}
    manifest = {**described, _DIGESTS: {name: file_digest(file) for name, file in _files(folder).items()}}
    return {**manifest, _OWN: _manifest_digest(manifest)}


def check_seal(folder: Path) -> dict[str, Any]:
    """Return the manifest of `folder` after comparing every file with its digest.

    Raises:
        ArtefactError: A file of the folder is missing, was added or was changed, or the manifest is invalid.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise ArtefactError(f"{path} is far too large for a manifest. {_REMEDY}")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtefactError(f"There is no student in {folder}: {MANIFEST} is missing. {_REMEDY}") from error
    except (ValueError, OSError, RecursionError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}). {_REMEDY}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get(_DIGESTS), dict) or _OWN not in manifest:
        raise ArtefactError(f"{path} is not a valid manifest: it lacks digests of the files or of itself. {_REMEDY}")
    own = manifest.pop(_OWN)
    if own != _manifest_digest(manifest):
        raise ArtefactError(f"{path} was changed after it was written: its digest does not match. {_REMEDY}")
    found = _files(folder)
    for name in sorted(manifest[_DIGESTS].keys() ^ found.keys()):
        if name in found:
            raise ArtefactError(f"{found[name]} is not named in {MANIFEST}: it was added later. {_REMEDY}")
        raise ArtefactError(f"{folder} lacks {name!r}: it is missing, or leads outside the folder. {_REMEDY}")
    for name, expected in manifest[_DIGESTS].items():
        file = found[name]
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ArtefactError(f"{path} names {name}, which leads outside the folder. {_REMEDY}")
        if file_digest(file) != expected:
            raise ArtefactError(f"{file} was changed after it was written: its digest does not match. {_REMEDY}")
    return manifest


_REMEDY = "Get the folder again from where it was published, or run the stage 'student' again."


def _files(folder: Path) -> dict[str, Path]:
    """Return all files except the manifest, by their names within the folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / MANIFEST)
    return {file.relative_to(folder).as_posix(): file for file in files}


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=methodcaller("item"))
    return hashlib.sha256(text.encode()).hexdigest()
