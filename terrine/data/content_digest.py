"""Digests of what records contain, by which a ledger recognises them.

A digest is that of decoded contents at their native size: it does not depend on the file's name or format, on the size
that a run brings images to, or on labels. A black image, or any other of a single value, has the digest 0, which equals
nothing: people who have nothing to do with each other share such images.

Digests are private: whoever can guess a record can look it up. What leaves the private zone is keyed
(`terrine.privacy.ledger.people`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

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
