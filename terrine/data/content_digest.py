"""Digests of record contents, by which a ledger recognises records.

A digest covers the decoded content in its stored size. The digest does not depend on the file's name or format, the
run's image size or labels. An image of a single value, such as a black one, has the digest 0, which matches nothing:
images of unrelated people may be black.

Digests are private, because a guessed record can be looked up. Only keyed digests leave the private zone
(`terrine.privacy.ledger.people`).

Duplicates: two identical images probably show one person, who then moves two votes, twice what the accounting assumes.
Duplicates are reported but not kept together: if the partition depended on contents, replacing one record could move
others. Pixels cannot distinguish near-duplicates (another crop or compression) from similar people. Only a `group` that
identifies the person keeps a person's records together.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

_CHUNK = 4096


def digest_of_image(pixels: np.ndarray) -> int:
    """Return the digest of an image, [H, W] or [H, W, 3], of any numeric type; 0 if all values are equal.

    Equal pixels have equal digests regardless of type, and three equal channels equal a grey image.
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
    """Return the digest of each row of a table, uint64 [N].

    Args:
        columns: Cells of each column as texts. Different notations of a number count as equal.
        ordered: Whether the order of the columns matters.
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
    """Return the HMAC-SHA256, as hex, of a title and of the names, dtypes, shapes and contents of arrays.

    Args:
        title: Purpose of the digest. Digests for different purposes differ.
        arrays: By name, an array or None and the dtype in which it is encoded. Equal values give equal digests on
            every machine, regardless of memory layout.
        key: Secret key.
    """
    digest = hmac.new(key, title.encode(), hashlib.sha256)
    for name, (array, dtype) in arrays.items():
        if array is None:
            digest.update(f"\n{name} none\n".encode())
            continue
        # The header determines the number of bytes that follow, so the encoding is unambiguous.
        digest.update(f"\n{name} {dtype} {list(array.shape)}\n".encode())
        digest.update(np.ascontiguousarray(array, dtype=dtype).data)
    return digest.hexdigest()


def exact_duplicates(images: np.ndarray) -> np.ndarray:
    """Return, for each record [N, ...], the index of the first record with the same pixels, int64 [N].

    Labels are not compared: an image with two labels is one image.
    """
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, i) for i, digest in enumerate(_row_digests(images))], dtype=np.int64)


def duplicate_counts(ids: np.ndarray) -> dict[str, int]:
    """Return the number of `sets` of identical records that `exact_duplicates` found, and of `records` in them."""
    _, counts = np.unique(ids, return_counts=True)
    repeated = counts[counts > 1]
    return {"sets": len(repeated), "records": int(repeated.sum())}


def seen_images(known: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return whether each of `images` [N, ...] has the same pixels as one of `known` [M, ...], bool [N]."""
    seen = {*_row_digests(known)}
    return np.array([digest in seen for digest in _row_digests(images)], dtype=bool)


def _row_digests(images: np.ndarray) -> Iterator[bytes]:
    rows = np.ascontiguousarray(images).reshape(len(images), math.prod(images.shape[1:]))
    return (hashlib.blake2b(row.data, digest_size=16).digest() for row in rows)
