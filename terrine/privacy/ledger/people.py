"""Digests of the records that an account protects or published.

A budget belongs to people, but an account is only a name. The ledger therefore stores keyed digests of every record
that a release protects and of every record declared public: of its contents, its name and its group. Three rules
follow:

- A record that was private in a release is never published in that account or a linked one. A published record stays
  public.
- Records about which another account has released are refused, since a second account would be a second budget.
- From the second edition of the data on, records need ids or groups, to distinguish removed records from moved ones.

Digests of contents come from `terrine.data.content_digest`. The files are meaningless without the ledger's key. Rows of
the ledger refer to a file by a digest of its content, so changed or deleted files are detected.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from terrine.errors import LedgerError
from terrine.files import atomic_file, private_folder
from terrine.privacy.ledger.site_key import canonical_json, keyed_digest

Digests = NDArray[np.uint64]
OnColumns = Callable[[tuple[str, ...]], Digests | None]

TAUGHT, HELD_OUT, PUBLIC = 0, 1, 2
"""Uses of a record: private training record, held-out record for evaluation, or published record."""

NO_NAME = -1
"""Code for a record without a name, or without a group."""

SKETCHED = 2**14
"""Number of digests of each kind in a sketch (`People.sketch`)."""

SHARED = 1 / 200
"""Share of the smaller of two tables that may be equal by chance if rows repeat."""


@dataclass(frozen=True, eq=False)
class People:
    """Digests of the records of one dataset.

    Attributes:
        contents: uint64 [N, K], 0 if missing. Images: as stored and at the run's size. Rows: features and all cells.
        sides: uint8 [N], role of each record: TAUGHT, HELD_OUT or PUBLIC.
        names: int64 [N], code of each record's name (`terrine.data.units`); NO_NAME if only its position identifies it.
        groups: int64 [N], code of the group if groups are protected; otherwise NO_NAME.
        columns: Columns covered by the first digest of a table; empty for images.
        settings: Settings that select the public records, by name.
        edition: The operator's name of this version of the data.
        on: Function that computes the first digest of each record over other columns, or returns None if a column is
            missing. Not stored.
    """

    contents: Digests
    sides: NDArray[np.uint8]
    names: NDArray[np.int64]
    groups: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    edition: str = "1"
    on: OnColumns | None = None

    @classmethod
    def of(cls, contents: Digests, **known: Any) -> Self:
        """Return digests of private records about which nothing else is known."""
        contents = contents.reshape(len(contents), -1)
        blank = np.full(len(contents), NO_NAME, np.int64)
        return cls(contents, np.full(len(contents), TAUGHT, np.uint8), blank, blank, **known)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def named(self) -> bool:
        """Return whether every training and public record has its own name or group."""
        return bool(((self.names != NO_NAME) | (self.groups != NO_NAME))[self.sides != HELD_OUT].all())

    @property
    def distinct(self) -> bool:
        """Return whether equal contents identify the same record: images, and tables without equal rows."""
        if not self.columns:
            return True
        return len(distinct_values(self.contents[:, 0])) == len(self)

    def sketch(self) -> Digests:
        """Return the smallest distinct digests of each kind of the private records, uint64 [at most K · SKETCHED].

        A bottom-k sketch (Cohen and Kaplan 2007): complete for up to SKETCHED records. Of n records shared by two
        datasets of N, it shows about n · SKETCHED / N.
        """
        private = self.contents[self.sides != PUBLIC]
        kinds = [distinct_values(column[column != 0])[:SKETCHED] for column in private.T]
        return distinct_values(np.concatenate(kinds))

    def save(self, path: Path) -> None:
        """Write the digests to `path`, readable only by its owner."""
        described = self._described()
        with atomic_file(path, owner_only=True) as file:
            np.savez(
                file,
                contents=self.contents,
                sides=self.sides,
                names=self.names,
                groups=self.groups,
                described=np.frombuffer(described, np.uint8),
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file that `save` wrote.

        Raises:
            OSError, ValueError, KeyError or BadZipFile: If the file's content does not match the digest in its name.
        """
        with np.load(path, allow_pickle=False) as file:
            described = json.loads(file["described"].tobytes())
            arrays = {name: file[name] for name in ("contents", "sides", "names", "groups")}
        return cls(**arrays, **(described | {"columns": tuple(described["columns"])}))

    def _described(self) -> bytes:
        return canonical_json({"columns": list(self.columns), "settings": dict(self.settings), "edition": self.edition})

    def keyed(self, key: bytes) -> Self:
        """Return the digests encrypted with a key: AES-256 as a pseudorandom function."""
        cipher = Cipher(algorithms.AES256(bytes.fromhex(keyed_digest(key, "terrine people"))), modes.ECB())

        def encrypted(values: NDArray[Any], kind: int, nothing: int) -> NDArray[Any]:
            blocks = np.zeros((values.size, 2), "<u8")
            blocks[:, 0], blocks[:, 1] = values.reshape(-1).view(np.uint64), kind
            digests = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), "<u8")[::2].reshape(values.shape)
            return np.where(values == nothing, np.array(nothing, values.dtype), digests.view(values.dtype))

        contents, on = np.ascontiguousarray(self.contents), self.on
        return replace(
            self,
            contents=encrypted(contents, 1, 0),
            names=encrypted(np.ascontiguousarray(self.names), 2, NO_NAME),
            groups=encrypted(np.ascontiguousarray(self.groups), 3, NO_NAME),
            on=None if on is None else lambda columns: None if (own := on(columns)) is None else encrypted(own, 1, 0),
        )


class Mention(NamedTuple):
    """Reference in a ledger row to stored digests.

    Attributes:
        file: Name of the stored digests.
        role: `taught`: a release protects the training records; `tested`: also the held-out records; `published`: the
            public records were published.
    """

    file: str
    role: str


class PeopleStore:
    """Folder of keyed digests, one file per dataset and combination of settings.

    Args:
        folder: Path of the folder, created on the first write.
        key: Key of the ledger.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self._folder, self._key = folder, key
        self.read = lru_cache(maxsize=8)(self._read)

    def write(self, people: People) -> tuple[str, People]:
        """Store digests unless they exist; return their name and the keyed digests."""
        keyed = people.keyed(self._key)
        name = self._name(keyed)
        path = self._folder / f"{name}.npz"
        if not path.is_file():
            private_folder(self._folder)
            try:
                keyed.save(path)
            except OSError as error:
                raise LedgerError(
                    f"The digests of records cannot be written to {path}: {error.strerror}. Nothing was released."
                ) from error
        return name, keyed

    def _read(self, name: str) -> People:
        path = self._folder / f"{name}.npz"
        try:
            found = People.load(path)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise self._damaged(path) from error
        if self._name(found) != name:
            raise self._damaged(path)
        return found

    def _name(self, keyed: People) -> str:
        arrays = (keyed.contents, keyed.sides, keyed.names, keyed.groups)
        parts = [
            part for array in arrays for part in (str(array.shape).encode(), np.ascontiguousarray(array).tobytes())
        ]
        return keyed_digest(self._key, "terrine people file", keyed._described(), *parts)

    def _damaged(self, path: Path) -> LedgerError:
        return LedgerError(
            f"The digests of records in {path} are missing or were changed by hand. Nothing was released. Restore the "
            "file from a backup."
        )


def mentioned(store: PeopleStore, mentions: Sequence[Mention], *roles: str) -> Iterator[tuple[People, Mention]]:
    """Yield the digests referred to in one of these roles, each file once per role."""
    for mention in dict.fromkeys(mention for mention in mentions if mention.role in roles):
        yield store.read(mention.file), mention


def shared_people(now: People, before: People) -> int:
    """Return the number of records that are private in another dataset, or 0 if chance explains them.

    In tables with repeated rows, equal rows may belong to different people. Any other equal record is shared.
    """
    if not _alike(now, before):
        return 0
    common, private = 0, before.contents[before.sides != PUBLIC]
    for kind in range(min(now.contents.shape[1], before.contents.shape[1])):
        own: Digests | None = now.contents[:, kind]
        if kind == 0 and now.columns != before.columns:
            own = None if now.on is None else now.on(before.columns)
        if own is not None:
            common = max(common, int(among(distinct_values(own[own != 0]), private[:, kind]).sum()))
    return common if is_shared(common, len(now), len(before), now.distinct and before.distinct) else 0


def _alike(now: People, before: People) -> bool:
    """Return whether both are images or both are rows; images are never comparable with rows."""
    return bool(now.columns) == bool(before.columns)


def is_shared(common: int, one: int, other: int, distinct: bool) -> bool:
    """Return whether `common` equal records, of datasets of these sizes, are more than chance."""
    return common >= (1 if distinct else max(1, math.ceil(SHARED * min(one, other))))


def private_before(now: People, store: PeopleStore, mentions: Sequence[Mention]) -> tuple[NDArray[np.bool_], set[str]]:
    """Return the records that earlier releases protect from publication, and the settings that changed.

    Args:
        now: Keyed digests of the run that publishes.
        store: Stored digests of earlier runs.
        mentions: References in the rows of the account and of linked accounts.

    Returns:
        bool [N], true only for PUBLIC records; and names of settings that had other values when they were private.

    Raises:
        LedgerError: If a table lacks columns needed to recognise its rows, and its records have no names.
    """
    published = np.zeros(len(now), bool)
    counts: Counter[tuple[tuple[str, ...], int]] = Counter()
    for before, _ in mentioned(store, mentions, "published"):
        public = before.sides == PUBLIC
        own = _recognisable(now, before)
        published |= _any_among(own, before.contents[public])
        if not before.distinct:
            repeated = Counter(before.contents[public, 0].tolist())
            for content, count in repeated.items():
                key = (before.columns, content)
                counts[key] = max(counts[key], count)
    refused, settings = np.zeros(len(now), bool), set[str]()
    for before, mention in mentioned(store, mentions, "taught", "tested"):
        private = before.sides != PUBLIC if mention.role == "tested" else before.sides == TAUGHT
        own = _recognisable(now, before)
        found: NDArray[np.bool_] = np.zeros(len(now), bool)
        for codes, known in ((now.names, before.names), (now.groups, before.groups)):
            found |= among(codes, known[private & (known != NO_NAME)])
        if before.distinct:
            found |= _any_among(own, before.contents[private])
        found &= ~published
        if not before.distinct:
            found |= _moved(own[:, 0], now.sides, before.contents[private, 0], before.columns, counts)
        found &= now.sides == PUBLIC
        if found.any():
            settings |= {
                name
                for name in (*before.settings, *now.settings)
                if before.settings.get(name) != now.settings.get(name)
            }
        refused |= found
    return refused, settings


def _recognisable(now: People, before: People) -> Digests:
    """Return digests of current records that are comparable with earlier ones, uint64 [N, 1 or more]."""
    if not _alike(now, before):
        return np.zeros((len(now), 1), np.uint64)
    if now.columns == before.columns:
        return now.contents[:, :1] if now.columns else now.contents
    own = None if now.on is None else now.on(before.columns)
    if own is None and not (now.named and before.named):
        missing = ", ".join(sorted(set(before.columns) - set(now.columns))) or "some"
        raise LedgerError(
            "Rows of this table cannot be recognised: columns of an earlier run of the account are missing "
            f"({missing}) and rows have no ids, so private rows might be published. Restore the columns, or publish no "
            "rows. Nothing was written."
        )
    return np.zeros((len(now), 1), np.uint64) if own is None else own.reshape(-1, 1)


def distinct_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted distinct values, many times faster than `numpy.unique` for a million digests."""
    ordered = np.sort(values)
    first = np.concatenate([np.array([True]), ordered[1:] != ordered[:-1]])[: len(ordered)]
    distinct: NDArray[Any] = ordered[first]
    return distinct


def among(own: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are in `known`, bool [N]."""
    if not len(known):
        return np.zeros(len(own), bool)
    ordered = np.sort(known)
    place = np.minimum(np.searchsorted(ordered, own), len(ordered) - 1)
    return np.asarray(ordered[place] == own)


def _any_among(own: Digests, known: Digests) -> NDArray[np.bool_]:
    """Return which records, with digests [N, K], share a digest with other records [M, K or more]."""
    known = known[:, : own.shape[1]].reshape(-1)
    return np.asarray(among(own.reshape(-1), known[known != 0]).reshape(own.shape).any(axis=1))


def _moved(
    own: Digests, sides: NDArray[np.uint8], private: Digests, columns: tuple[str, ...], published: Mapping[Any, int]
) -> NDArray[np.bool_]:
    """Return the public rows whose contents became rarer among private records and more frequent among public ones.

    In tables with equal rows, a public row may equal a private one by chance. A public row counts as a moved private
    row only if an equal private row has disappeared.
    """
    before = Counter(private.tolist())
    still, public = (Counter(own[sides == side].tolist()) for side in (TAUGHT, PUBLIC))
    moved = [
        content
        for content, count in public.items()
        if still[content] < before.get(content, 0) and count > published.get((columns, content), 0)
    ]
    return among(own, np.array(moved, np.uint64))
