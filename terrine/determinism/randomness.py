"""Independent random generators derived from one seed.

Every consumer derives a generator from (seed, name, index...), so results do not depend on the number of workers, batch
sizes or the order of tasks. These generators are for *public* randomness: initial weights, synthetic images, shuffles.
Noise for privacy comes only from `terrine.privacy.noise`.

    >>> numpy_generator(0, "partition").integers(10) == numpy_generator(0, "partition").integers(10)
    True
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, name: str, *index: int) -> int:
    """Return a 63-bit seed for the consumer `name` and its `index`.

    The seed is a truncated SHA-256 of an unambiguous encoding of the arguments: equal arguments give equal seeds on
    every machine, and different arguments give unrelated seeds.
    """
    text = "\x1f".join([str(int(seed)), name, *(str(int(i)) for i in index)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, name: str, *index: int) -> np.random.Generator:
    """Return a NumPy generator (Philox) for this consumer."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, name, *index)))


def torch_generator(seed: int, name: str, *index: int) -> torch.Generator:
    """Return a torch generator on the CPU for this consumer."""
    import torch  # takes seconds

    return torch.Generator().manual_seed(derive_seed(seed, name, *index))
