"""One seed, one generator per consumer.

Every consumer derives its own generator from (seed, name, index...), so results do not depend on the number of
workers, on batch sizes or on the order in which tasks happen to run. These generators are for *public* randomness:
initial weights, synthetic images, shuffles. Noise that protects privacy comes from `terrine.privacy.noise` alone.

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
    """Return a 63-bit seed for the consumer `name` and its `index`, independent of every other consumer's.

    The seed is a truncated SHA-256 of an unambiguous encoding of the arguments, so equal arguments give equal seeds on
    every machine and different arguments give unrelated ones.
    """
    text = "\x1f".join([str(int(seed)), name, *(str(int(i)) for i in index)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_generator(seed: int, name: str, *index: int) -> np.random.Generator:
    """Return a NumPy generator (Philox) for this consumer."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, name, *index)))


def torch_generator(seed: int, name: str, *index: int) -> torch.Generator:
    """Return a torch generator on the CPU for this consumer."""
    import torch  # here, since most consumers draw with NumPy and torch takes seconds to import

    return torch.Generator().manual_seed(derive_seed(seed, name, *index))
