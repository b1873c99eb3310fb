"""A proposal: what is mailed to every party, a folder or one archive of it. Everything in it is public.

    proposal.json       what follows, file by file with its SHA-256; the digest of the terms; where two parties listen
    terms.yaml          what all parties agree on
    params.yaml         what teacher parties train with, and the student
    images/             the public queries
    backbone/           the public backbone

The digest of proposal.json is the proposal's. Whoever changes a byte of it changes this digest: parties compare it by
telephone, or each with what the others have signed (`tasks.parties.agreement.acceptance`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.config.values import as_document, read_yaml
from tasks.parties.agreement.terms import Terms, checked
from tasks.parties.config import TERMS
from tasks.runtime.store import link, read_json, write_json, write_text
from tasks.serving.pages import LARGEST, unpacked_size
from terrine.errors import InputError, named
from terrine.files import file_digest

MANIFEST, PARAMS = "proposal.json", "params.yaml"
FORMAT = 1
_SHOWN = 24


@dataclass(frozen=True)
class Proposal:
    """A proposal that was checked: every file is the one that its manifest, whose SHA-256 is `digest`, names.

    params: of `teacher` and `student`, parameters as in params.yaml of who trains. addresses: host:port of `guardian`
    and `student`. files: the SHA-256 of each.
    """

    folder: Path
    terms: Terms
    params: dict[str, Any]
    addresses: dict[str, str]
    digest: str
    files: dict[str, str]

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def backbone(self) -> Path:
        return self.folder / "backbone"

    @property
    def shown(self) -> str:
        """Its digest as people compare it: 96 bits in groups."""
        return grouped(self.digest)

    def copy(self, folder: Path) -> Proposal:
        """Return a copy, in which nothing lies but what the manifest names, checked anew."""
        for name in (MANIFEST, *self.files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / name, folder / name)
        return read_proposal(folder, self.digest)


def grouped(digest: str) -> str:
    """Return the beginning of a digest as people compare it.

    >>> grouped("0123456789abcdef01234567ffff")
    '0123-4567-89ab-cdef-0123-4567'
    """
    return "-".join(digest[place : place + 4] for place in range(0, _SHOWN, 4))


def write_proposal(
    folder: Path, terms: Terms, params: Mapping[str, Any], addresses: Mapping[str, str], images: Path, backbone: Path
) -> None:
    """Write a proposal into an empty folder. Of images the queries go with it, and not those of pretraining."""
    shards = [shard["file"] for shard in read_json(images / "manifest.json")["shards"]["queries"]]
    for source, name in (
        *((images / file, f"images/{file}") for file in ("manifest.json", *shards)),
        *((backbone / file, f"backbone/{file}") for file in ("manifest.json", "backbone.safetensors")),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        link(source, folder / name)
    write_text(folder / TERMS, as_document(terms.public()))
    write_text(folder / PARAMS, as_document(params))
    files = {
        path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
    about = {"format": FORMAT, "terms": terms.digest, "addresses": dict(addresses), "files": files}
    write_json(folder / MANIFEST, about)


def archive(folder: Path) -> Path:
    """Pack a proposal into one file beside its folder; return the file."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


@contextmanager
def opened(path: Path, expected: str | None = None) -> Iterator[Proposal]:
    """Give the proposal in a folder, or in an archive while the block lasts. Raises as `read_proposal` does."""
    if path.is_dir():
        yield read_proposal(path, expected)
        return
    with tempfile.TemporaryDirectory(prefix="terrine-proposal-") as temporary:
        try:
            with zipfile.ZipFile(path) as packed:
                if unpacked_size(packed) > LARGEST:
                    raise InputError(
                        f"{path} would take more than {LARGEST >> 30} GiB. Whoever sent it, do not unpack it."
                    )
                # Nothing is unpacked but what the manifest names, and there only plain files within the folder.
                packed.extract(MANIFEST, temporary)
                for name in _manifest(Path(temporary))["files"]:
                    packed.extract(name, temporary)
        except (OSError, KeyError, zipfile.BadZipFile, RuntimeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} is no proposal, neither a folder nor an archive of one ({error}). Have it sent again."
            ) from error
        with named(temporary, path):
            yield read_proposal(Path(temporary), expected)


def read_proposal(folder: Path, expected: str | None = None) -> Proposal:
    """Read a proposal, and check every byte of it, and its digest if the beginning of it was told by another way.

    Raises InputError for a file that is missing or was changed and for another digest, SettingError for terms that no
    collaboration could have.
    """
    manifest = _manifest(folder)
    found = file_digest(folder / MANIFEST)
    if expected is not None:
        wanted = expected.replace("-", "").replace(" ", "").lower()
        if len(wanted) < 16 or not found.startswith(wanted):
            raise InputError(
                f"{folder} is another proposal than the one whose digest you were told: it has {grouped(found)}, and "
                f"you were told {expected}. Somebody may have changed it on its way: have it sent again."
            )
    for name, file in manifest["files"].items():
        if not (folder / name).is_file() or file_digest(folder / name) != file:
            raise InputError(
                f"{folder / name} is missing or was changed since the proposal was made: its SHA-256 is not the one in "
                f"{MANIFEST}. Have the proposal sent again; accept nothing of this one."
            )
    terms = checked(read_yaml(folder / TERMS))
    if terms.digest != manifest["terms"]:
        raise InputError(f"{folder / TERMS} are other terms than {MANIFEST} names. Have the proposal sent again.")
    params = read_yaml(folder / PARAMS)
    return Proposal(folder, terms, params, manifest["addresses"], found, manifest["files"])


def _manifest(folder: Path) -> dict[str, Any]:
    """Return a proposal's manifest, once it is one, and names nothing outside the folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files, addresses = manifest["files"], manifest["addresses"]
        known = (
            manifest["format"] == FORMAT
            and {*addresses} == {"guardian", "student"}
            and {TERMS, PARAMS} <= {*files}
            and all(isinstance(text, str) for text in (*files.values(), *addresses.values(), manifest["terms"]))
        )
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no proposal: there is no {MANIFEST} in it.") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged, or is no manifest of a proposal. Have it sent again.") from error
    if not known:
        raise InputError(f"{path} is damaged, or of another version of Terrine. Have it sent again.")
    for name in files:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or "\\" in name or name == MANIFEST or str(place) != name:
            raise InputError(f"{path} names a file outside the proposal, {name!r}. Accept nothing of it.")
    return manifest
