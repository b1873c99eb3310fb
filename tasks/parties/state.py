"""What a party must remember across a crash: arrays and what they are about, written whole, in a private folder.

One folder per release. A file is written before anything that follows from it is sent, so a party that is started
again either has it, or has told nobody anything that depends on it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrine.errors import ArtefactError
from terrine.files import atomic_file, clear_after_the_dead, json_object

_ABOUT = "about"
OUTCOME = "outcome.json"
"""What came out of a session, in the party's state folder."""
CLOSED = "closed.json"
"""Of a teacher party, the last round of every vote that was closed with its shares, there as well."""
STANDING = "session.json"
"""Where the session stands, there as well."""
AT_WORK = "session.lock"
"""Held while a process takes part in the session, there as well."""


def keep_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write JSON values into a file that only its owner may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, owner_only=True) as file:
        file.write((json.dumps(values, indent=2, sort_keys=True) + "\n").encode())


def kept_values(path: Path, agreed: str) -> dict[str, Any] | None:
    """Return the JSON values in a file that are about the terms of this digest; None where there are none."""
    found = json_object(path)
    return found if found is not None and found.get("agreed") == agreed else None


class PartyState:
    """The files of one party about one release, in the party's private folder."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder = folder / release[:32]

    def save(self, name: str, arrays: Mapping[str, np.ndarray], **about: Any) -> None:
        """Write arrays with what they are about, JSON values, in the place of what was there under this name."""
        text = np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)
        self._make()
        clear_after_the_dead(self.path(name))
        with atomic_file(self.path(name), owner_only=True) as file:
            np.savez(file, allow_pickle=False, **{_ABOUT: text}, **dict(arrays))

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Return the arrays and what they are about, or None where nothing was saved.

        Raises ArtefactError for a file that was changed or cut short.
        """
        path = self.path(name)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            about = json.loads(arrays.pop(_ABOUT).tobytes())
        except FileNotFoundError:
            return None
        except Exception as error:  # zipfile and numpy raise errors of many kinds on damaged files
            raise ArtefactError(
                f"{path} was changed or cut short. Restore it from a backup: the release it belongs to cannot be "
                "finished without it, and is not drawn a second time."
            ) from error
        return arrays, about

    def forget(self, name: str) -> None:
        """Remove what was saved under this name."""
        self.path(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove everything about the release."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Where it is kept."""
        return self.folder / f"{name}.npz"

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder.parent, self.folder):
            os.chmod(folder, 0o700)
