"""A proposal: the terms and all public inputs, in a folder or an archive of it that is sent to every party.

    terms.yaml          the agreement; it contains the SHA-256 of all other files
    images/             the public queries
    backbone/           the public backbone

Parties compare the digest of the terms by telephone. This digest is also in the path of every request, so parties with
different terms cannot compute together.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tasks.config.values import as_document, read_yaml
from tasks.parties.config import TERMS
from tasks.parties.terms import Terms, checked
from tasks.runtime.store import link, read_json, write_text
from tasks.serving.pages import unpacked
from terrine.errors import ArtefactError, InputError
from terrine.files import file_digest

MANIFEST, BACKBONE = "manifest.json", "backbone.safetensors"


@dataclass(frozen=True)
class Proposal:
    """A proposal whose files all have the digests of its terms."""

    folder: Path
    terms: Terms

    @property
    def shown(self) -> str:
        """The first 96 bits of the digest, in groups, the form in which people compare it."""
        return grouped(self.terms.digest)

    def copy(self, folder: Path) -> Proposal:
        """Return a verified copy that contains only the files named in the terms."""
        for name in _files(self.terms, self.folder / "images"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / name, folder / name)
        return read_proposal(folder, self.terms.digest)


def grouped(digest: str) -> str:
    """Return the beginning of a digest in groups.

    >>> grouped("0123456789abcdef01234567ffff")
    '0123-4567-89ab-cdef-0123-4567'
    """
    return "-".join(digest[place : place + 4] for place in range(0, 24, 4))


def write_proposal(folder: Path, terms: Terms, images: Path, backbone: Path) -> Proposal:
    """Write a proposal into an empty folder, with the queries of `images` and without pretraining images."""
    sources = {"images": images, "backbone": backbone}
    write_text(folder / TERMS, as_document(terms.public()))
    for name in _files(terms, images)[1:]:
        part, _, file = name.partition("/")
        (folder / part).mkdir(exist_ok=True)
        link(sources[part] / file, folder / name)
    return read_proposal(folder)


def archive(folder: Path) -> Path:
    """Pack a proposal into one file beside its folder; return the file."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


@contextmanager
def opened(path: Path, expected: str | None = None) -> Iterator[Proposal]:
    """Yield the proposal in a folder or an archive. Raises like `unpacked` and `read_proposal`."""
    with unpacked(path) as folder:
        yield read_proposal(folder, expected)


def read_proposal(folder: Path, expected: str | None = None) -> Proposal:
    """Read a proposal and check every byte.

    Args:
        folder: The proposal.
        expected: The digest of the terms, or its beginning, as received over another channel.

    Raises:
        InputError: A file is missing or changed, or the digest differs.
        SettingError: The terms are impossible.
    """
    if not (folder / TERMS).is_file():
        raise InputError(f"{folder} is not a proposal: {TERMS} is missing.")
    terms: Terms = checked(read_yaml(folder / TERMS))
    if expected is not None:
        wanted = expected.replace("-", "").replace(" ", "").lower()
        if len(wanted) < 16 or not terms.digest.startswith(wanted):
            raise InputError(
                f"{folder} has the digest {grouped(terms.digest)}, and {expected} was expected. It may have been "
                "changed in transit: have it sent again."
            )
    check_public(folder / "images", folder / "backbone", terms)
    return Proposal(folder, terms)


def check_public(images: Path, backbone: Path, terms: Terms) -> None:
    """Check the bytes of query images and backbone.

    Raises:
        InputError: The files do not have the digests in the terms.
    """
    _check(images / MANIFEST, terms.queries_digest)
    try:
        names, columns = _shards(images), read_json(images / MANIFEST).get("columns")
    except (KeyError, TypeError, ArtefactError) as error:
        raise InputError(f"{images / MANIFEST} is not a manifest of images.") from error
    if len(names) != len(terms.query_shards) or any("/" in name or name.startswith(".") for name in names):
        raise InputError(f"{images / MANIFEST} names other files than the {len(terms.query_shards)} of the terms.")
    if columns != (None if terms.table is None else terms.table.describe()):
        raise InputError(f"{images / MANIFEST} has other columns than the terms. Have the proposal sent again.")
    for name, digest in zip(names, terms.query_shards, strict=True):
        _check(images / name, digest)
    _check(backbone / BACKBONE, terms.backbone)
    if terms.backbone_manifest is not None:
        _check(backbone / MANIFEST, terms.backbone_manifest)


def _check(path: Path, digest: str) -> None:
    found = file_digest(path) if path.is_file() else "missing"
    if found != digest:
        raise InputError(
            f"{path} is not the agreed file: its SHA-256 is {found[:16]}, and the terms have {digest[:16]}. Have the "
            "proposal sent again."
        )


def _shards(images: Path) -> list[str]:
    return [shard["file"] for shard in read_json(images / MANIFEST)["shards"]["queries"]]


def _files(terms: Terms, images: Path) -> list[str]:
    """Return the names of a proposal's files."""
    manifest = [] if terms.backbone_manifest is None else [f"backbone/{MANIFEST}"]
    shards = (f"images/{name}" for name in _shards(images))
    return [TERMS, f"images/{MANIFEST}", *shards, *manifest, f"backbone/{BACKBONE}"]
