"""Digests of what records contain, by which a ledger recognises them.

A digest is that of decoded contents at their native size: it does not depend on the file's name or format, on the size
that a run brings images to, or on labels. A black image, or any other of a single value, has the digest 0, which equals
nothing: people who have nothing to do with each other share such images.

Digests are private: whoever can guess a record can look it up. What leaves the private zone is keyed
(`terrine.privacy.ledger.people`).

Duplicates: two byte-identical images are most likely one person's, who then moves two votes, twice what the accounting
pays for. They are counted and reported, not kept together: a partition that looks for copies reads contents, so that
exchanging one record could move others. Near-duplicates (a second crop, another compression) cannot even be told from
two similar people by pixels alone: only a `group` that names the person keeps a person together.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

_CHUNK = 4096


def digest_of_image(pixels: np.ndarray) -> int:
    """Return the digest of an image, [H, W] or [H, W, 3], of any type of number; 0 if all of its values are equal.

    Equal pixels have equal digests, whatever their type: a grey image that is stored in three equal channels is grey.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]
    if not pixels.size or (pixels == pixels.flat[0]).all():
        return 0
    if pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    if pixels.dtype != np.uint8:
        whole = pixels.dtype.kind in "iu" or bool((pixels == np.trunc(pixels)).all())
        small = whole and pixels.min() >= 0 and pixels.max() <= 255
        pixels = pixels.astype(np.uint8 if small else "<f8")
    header = f"{pixels.shape} {pixels.dtype.str}".encode()
    return _digest(header + np.ascontiguousarray(pixels).tobytes())


def digests_of_images(images: np.ndarray) -> np.ndarray:
    """Return `digest_of_image` of uint8 images [N, C, H, W]: uint64 [N]."""
    found = np.empty(len(images), np.uint64)
    for start in range(0, len(images), _CHUNK):
        chunk = np.ascontiguousarray(images[start : start + _CHUNK]).transpose(0, 2, 3, 1)
        chunk = chunk[..., 0] if chunk.shape[3] == 1 else chunk
        found[start : start + len(chunk)] = [digest_of_image(image) for image in chunk]
    return found


def digests_of_cells(columns: Sequence[Sequence[str]], *, ordered: bool) -> np.ndarray:
    """Return the digest of each row of a table: uint64 [N].

    Args:
        columns: The cells of each column as text. Numbers that are written in two ways are equal.
        ordered: Whether columns count in the order given; otherwise rows with the same cells in another order are
            equal.
    """
    shared: dict[str, str] = {}
    plain = [[shared[cell] if cell in shared else shared.setdefault(cell, _plain(cell)) for cell in column]
             for column in columns]  # fmt: skip
    rows: Iterable[tuple[str, ...]] = zip(*plain, strict=True)
    texts = ("\x1f".join(row if ordered else sorted(row)) for row in rows)
    return np.fromiter((_digest(text.encode("utf-8", "surrogatepass")) for text in texts), dtype=np.uint64)


def _plain(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return repr(number) if math.isfinite(number) else cell


def _digest(contents: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(contents, digest_size=8, person=b"terrine record").digest(), "big")


def digest_of_arrays(title: str, arrays: Mapping[str, tuple[np.ndarray | None, str]], key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of `arrays` under `key`: of title, names, dtypes, shapes and bytes.

    `arrays` maps a name to an array, or None, and the dtype it is encoded in, with its byte order. Equal values give
    equal digests on every machine, whatever their layout in memory.
    """
    digest = hmac.new(key, title.encode(), hashlib.sha256)
    for name, (array, dtype) in arrays.items():
        if array is None:
            digest.update(f"\n{name} none\n".encode())
            continue
        # The header fixes the number of bytes that follow, so no two different sets of arrays have one encoding.
        digest.update(f"\n{name} {dtype} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()


def exact_duplicates(images: np.ndarray) -> np.ndarray:
    """Return int64 [N]: for each record the index of the first record with the same pixels (its own when unique).

    `images` is any array [N, ...]; labels are not compared, since one image with two labels is still one image.
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, i) for i, digest in enumerate(_row_digests(images))], dtype=np.int64)


def duplicate_counts(ids: np.ndarray) -> dict[str, int]:
    """Return how many `sets` of identical records `exact_duplicates` found and how many `records` they hold."""
    _, counts = np.unique(ids, return_counts=True)
    repeated = counts[counts > 1]
    return {"sets": len(repeated), "records": int(repeated.sum())}


def seen_images(known: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return bool [N]: whether each of `images` [N, ...] has the very pixels of one of `known` [M, ...]."""
    seen = {*_row_digests(known)}
    return np.array([digest in seen for digest in _row_digests(images)], dtype=bool)


def _row_digests(images: np.ndarray) -> Iterator[bytes]:
    rows = np.ascontiguousarray(images).reshape(len(images), math.prod(images.shape[1:]))
    return (hashlib.blake2b(row.data, digest_size=16).digest() for row in rows)
