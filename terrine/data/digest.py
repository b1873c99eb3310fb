"""A keyed digest of arrays: it tells whether two are equal and, without the key, nothing about what they hold."""

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np


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
