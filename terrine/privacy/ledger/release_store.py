"""Stored arrays of releases, one sealed file each.

A file contains the arrays, their cost, digests of private inputs, and an HMAC of all these. It is written once,
atomically, and never replaced, so repeated requests return exactly what was released.
"""

import json
import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrine.errors import LedgerError
from terrine.files import atomic_file, remove_temporary
from terrine.privacy.accounting.events import Event, UnsupportedEventError, from_json, to_json
from terrine.privacy.ledger.site_key import canonical_json, keyed_digest

Arrays = dict[str, NDArray[np.generic]]

# Members of an .npz file. Released arrays are in a separate folder within it, so they may have any name.
_SEAL = "seal"
_EVENT = "event"
_INPUTS = "inputs"
_ARRAYS = "arrays/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, eq=False)
class StoredArrays:
    """Stored content of a release.

    Attributes:
        arrays: Released arrays by name.
        event: Cost of the release.
        digest: HMAC of release ID, noise kind, event, arrays and inputs.
        inputs: Digests of the inputs by name. Private, for the operator.
    """

    arrays: Arrays
    event: Event
    digest: str
    inputs: Mapping[str, str]


class ReleaseStore:
    """Folder of releases, `<release_id>.npz`.

    Args:
        folder: Path of the folder.
        key: Key of the ledger.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self.folder = folder
        self._key = key

    def path(self, release_id: str) -> Path:
        """Return the path of a release, which may not exist.

        Raises:
            LedgerError: If the identity is not a safe file name.
        """
        if not _NAME.fullmatch(release_id):
            raise LedgerError(f"A release ID consists of letters, digits, '.', '_' and '-', got {release_id!r}.")
        return self.folder / f"{release_id}.npz"

    def files(self) -> list[str]:
        """Return the file names of all stored releases."""
        return [name for name in os.listdir(self.folder) if name.endswith(".npz")]

    def read(self, release_id: str, noise_kind: str) -> StoredArrays | None:
        """Return a stored release, or None.

        Raises:
            LedgerError: If the release's file was changed, truncated or replaced.
        """
        path = self.path(release_id)
        try:
            with np.load(path, allow_pickle=False) as file:
                members = {name: file[name] for name in file.files}
            seal = members.pop(_SEAL).tobytes().decode()
            event_text = members.pop(_EVENT).tobytes()
            # A release without inputs has no such member.
            inputs_text = members.pop(_INPUTS).tobytes() if _INPUTS in members else b""
            arrays = {name.removeprefix(_ARRAYS): array for name, array in members.items()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(path) from error
        if seal != self._digest(release_id, noise_kind, event_text, arrays, inputs_text):
            raise self._damaged(path)
        try:
            event = from_json(json.loads(event_text))
        except UnsupportedEventError as error:
            raise LedgerError(f"A stored release cannot be priced: {error}") from error
        return StoredArrays(arrays, event, seal, json.loads(inputs_text or b"{}"))

    def clear(self, release_id: str) -> None:
        """Remove temporary files of this release left by killed processes."""
        remove_temporary(self.path(release_id))

    def write(
        self, release_id: str, noise_kind: str, arrays: Arrays, event: Event, inputs: Mapping[str, str]
    ) -> StoredArrays:
        """Store a release that is not stored yet.

        Raises:
            LedgerError: If the release is stored already, or an array contains Python objects.
        """
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise LedgerError(f"The array {name!r} of a release contains objects. Release numbers only.")
        event_text = canonical_json(to_json(event))
        inputs_text = canonical_json(dict(inputs)) if inputs else b""
        digest = self._digest(release_id, noise_kind, event_text, arrays, inputs_text)
        members: dict[str, NDArray[np.generic]] = {
            **{_ARRAYS + name: array for name, array in arrays.items()},
            _EVENT: np.frombuffer(event_text, dtype=np.uint8),
            _SEAL: np.frombuffer(digest.encode(), dtype=np.uint8),
        }
        if inputs_text:
            members[_INPUTS] = np.frombuffer(inputs_text, dtype=np.uint8)

        path = self.path(release_id)
        try:
            with atomic_file(path, replace=False, owner_only=True) as file:
                np.savez(file, allow_pickle=False, **members)
        except FileExistsError as error:
            raise LedgerError(
                f"The release {path} exists already and is never replaced. Nothing was released."
            ) from error
        except OSError as error:
            raise LedgerError(
                f"The release {path} could not be written: {error.strerror}. Nothing was released."
            ) from error
        return StoredArrays(arrays, event, digest, dict(inputs))

    def _digest(self, release_id: str, noise_kind: str, event_text: bytes, arrays: Arrays, inputs_text: bytes) -> str:
        parts = [release_id.encode(), noise_kind.encode(), event_text]
        for name in sorted(arrays):
            array = np.ascontiguousarray(arrays[name])
            parts += [name.encode(), array.dtype.str.encode(), repr(arrays[name].shape).encode(), array.tobytes()]
        if inputs_text:
            parts += [_INPUTS.encode(), inputs_text]
        return keyed_digest(self._key, "terrine release payload", *parts)

    def _damaged(self, path: Path) -> LedgerError:
        return LedgerError(
            f"The stored release {path} was changed by hand or cut short. It cannot be drawn again at no cost. Nothing "
            "was released. Restore the file from a backup."
        )
