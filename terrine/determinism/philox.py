"""Counter-based random numbers: image i's randomness is a function of (seed, name, i, draw).

Philox4x32-10 (Salmon et al. 2011) maps a 128-bit counter and a 64-bit key to four 32-bit words. The key is derived from
(seed, name), and the counter consists of the draw and the image's index. The generator has no state, so batches,
workers and devices cannot change its output. The arithmetic on 32-bit words in int64 tensors is exact on every device.

    >>> import torch
    >>> both = words(0, "leaves", torch.tensor([6, 7]), 5)
    >>> torch.equal(both[1:], words(0, "leaves", torch.tensor([7]), 5))
    True
"""

import torch
from torch import Tensor

from terrine.determinism.portable_math import box_muller
from terrine.determinism.randomness import derive_seed

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Return the four 32-bit output words of Philox4x32-10, int64 tensors of the broadcast shape.

    Args:
        counter: Four int64 tensors of 32-bit words that broadcast together.
        key: Two 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # Bits above 31 of c1 and c3 are arbitrary between rounds; the masks on c0 and c2 suffice.
        p0 = c0 * MULTIPLIERS[0]
        p1 = c2 * MULTIPLIERS[1]
        c0, c2 = (
            ((p1 >> 32) ^ (c1 ^ k0)).bitwise_and_(WORD),
            ((p0 >> 32) ^ (c3 ^ k1)).bitwise_and_(WORD),
        )
        c1, c3 = p1, p0
        k0 = (k0 + WEYL[0]) & WORD
        k1 = (k1 + WEYL[1]) & WORD
    return c0, c1 & WORD, c2, c3 & WORD


def blocks(seed: int, name: str, index: Tensor, count: int, first: int | Tensor = 0) -> tuple[Tensor, ...]:
    """Return `count` Philox blocks per image: four int64 tensors [images, count] of 32-bit words.

    Args:
        seed: Seed.
        name: Name of the stream.
        index: Image indices, int64 [images].
        count: Number of blocks.
        first: Number of the first block: one for all images, or one per image, int64 [images].
    """
    key = derive_seed(seed, name)
    draw = torch.arange(count, device=index.device)
    draw = draw + first[:, None] if isinstance(first, Tensor) else (draw + first)[None]
    zero = torch.zeros((1, 1), dtype=torch.int64, device=index.device)
    return philox((draw, zero, (index & WORD)[:, None], (index >> 32)[:, None]), (key & WORD, key >> 32))


def block_at(seed: int, name: str, index: Tensor, draw: Tensor) -> tuple[Tensor, ...]:
    """Return one Philox block for each pair of an image index and a draw: four int64 tensors of their common shape."""
    key = derive_seed(seed, name)
    return philox((draw, torch.zeros_like(draw), index & WORD, index >> 32), (key & WORD, key >> 32))


def words(seed: int, name: str, index: Tensor, count: int) -> Tensor:
    """Return `count` uniform 32-bit words per image, int64 [images, count]; word j does not depend on `count`."""
    lanes = blocks(seed, name, index, -(-count // 4))
    return torch.stack(torch.broadcast_tensors(*lanes), dim=-1).flatten(1)[:, :count]


def uniforms(seed: int, name: str, index: Tensor, count: int) -> Tensor:
    """Return `count` uniforms on [0, 1) per image, float32 [images, count], multiples of 2^-24."""
    return to_uniform(words(seed, name, index, count))


def normals(seed: int, name: str, index: Tensor, count: int) -> Tensor:
    """Return `count` standard normals per image, float32 [images, count] (Box-Muller on pairs of lanes)."""
    a, b, c, d = torch.broadcast_tensors(*blocks(seed, name, index, -(-count // 4)))
    pairs = (*box_muller(a, b), *box_muller(c, d))
    return torch.stack(pairs, dim=-1).flatten(1)[:, :count]


def to_uniform(word: Tensor) -> Tensor:
    """Return the upper 24 bits of 32-bit words as float32 uniforms on [0, 1), which are exact."""
    return (word >> 8).to(torch.float32) * 2.0**-24


def below(word: Tensor, bound: int) -> tuple[Tensor, Tensor]:
    """Split 32-bit words into an integer uniform on 0..bound-1 and a remaining 32-bit word.

    The integer has a bias below bound / 2^32, and 32 - log2(bound) bits of randomness remain.
    """
    product = word * bound
    return product >> 32, product & WORD
