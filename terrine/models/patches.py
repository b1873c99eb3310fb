"""Patches compared with a dictionary of patches: a backbone of one layer, learned without labels.

Coates, Lee & Ng 2011 and Coates & Ng 2011: patches of `SIDE` x `SIDE` pixels, two apart, are centred, divided by their
own deviation and whitened; each is compared with the words of a dictionary, and what exceeds a threshold, on the side
of likeness and of its opposite, is averaged over 3 x 3 parts of the image. The dictionary is made of patches of public
images: `learn_dictionary` whitens them and clusters them by direction (spherical k-means, Dhillon & Modha 2001).

Where an image and its mirror image mean the same, half of the words are the other half mirrored, and the coefficients
of a word in one place and of its mirror image in the mirrored place are replaced by their sum: mirroring an image of an
even side changes nothing, at no cost.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError
from terrine.geometry import Size
from terrine.models.parts import averaged
from terrine.models.projected import ProjectedNetwork
from terrine.npy import Rows

SIDE = 6
STRIDE = 2
PARTS = 3
THRESHOLD = 0.5

_CONTRAST = 10 / 255**2  # added to a patch's variance: a flat one is not blown up to noise
_WHITENING = 0.1
_PATCHES = 100_000
_ROUNDS = 10


class PatchNetwork(ProjectedNetwork):
    """Likeness to words of a dictionary of patches, of float images [B, C, size, size]."""

    chunk = 8
    kernels: Tensor
    offset: Tensor

    def __init__(
        self, channels: int, size: Size, seed: int, words: int, mirrored: bool, projection: int | None
    ) -> None:
        if words < 2 or words % 2:
            raise SettingError(f"patches: words is {words}, and must be an even number from 2 on.")
        super().__init__("patches", 2 * words * PARTS**2 // (1 + mirrored), projection, seed)
        self.mirrored = mirrored
        self.register_buffer("kernels", torch.zeros(words, channels, SIDE, SIDE))
        self.register_buffer("offset", torch.zeros(words))

    def described(self, images: Tensor) -> Tensor:
        """See `ProjectedNetwork.described`: [B, 2 * words * 9], or half as many."""
        likeness = torch.addcdiv(
            -self.offset[:, None, None], F.conv2d(images, self.kernels, stride=STRIDE), _deviations(images)
        )
        beyond = F.softshrink(likeness, THRESHOLD)
        # Likeness and its opposite are the halves of the sum of these, and of their difference.
        size, signed = averaged(beyond.abs(), PARTS), averaged(beyond, PARTS)
        maps = torch.cat([size + signed, size - signed], dim=1) / 2
        if self.mirrored:
            one, other = maps.view(len(maps), 2, 2, -1, PARTS, PARTS).unbind(2)
            maps = one + other.flip(-1)
        return maps.flatten(1)


def _deviations(images: Tensor) -> Tensor:
    """Return the deviation [B, 1, h, w] of every patch's pixels."""
    count = images.shape[1] * SIDE**2
    ones = images.new_ones(1, images.shape[1], SIDE, SIDE)
    sums, squares = F.conv2d(images, ones, stride=STRIDE), F.conv2d(images.square(), ones, stride=STRIDE)
    return ((squares - sums.square() / count).clamp(min=0) / (count - 1) + _CONTRAST).sqrt()


@torch.no_grad()
def learn_dictionary(network: PatchNetwork, images: Rows, batches: Sequence[np.ndarray], *, seed: int) -> None:
    """Give the network words learned from public uint8 images [N, C, size, size], in place, on the CPU.

    batches: index arrays. The result does not depend on the number of threads.
    """
    ((kernels, offset),) = side_by_side(lambda _: _dictionary(network, images, batches, seed), [0])
    network.kernels.copy_(kernels.view_as(network.kernels))
    network.offset.copy_(offset)


def _dictionary(network: PatchNetwork, images: Rows, batches: Sequence[np.ndarray], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch_generator(seed, "patches")
    patches = torch.cat(
        [_patches(images[batch], -(-_PATCHES // len(batches)), network.mirrored, generator) for batch in batches]
    )
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T.double()))
    whitening = ((vectors / (values + _WHITENING).sqrt()) @ vectors.T).float()
    white = (patches - mean) @ whitening
    length = white.norm(dim=1)
    white = white[length > length.median() / 2]  # what is flat has no direction
    words = len(network.offset) // (1 + network.mirrored)
    centres = F.normalize(white[torch.randperm(len(white), generator=generator)[:words]])
    for _ in range(_ROUNDS):
        likeness, nearest = (white @ centres.T).max(dim=1)
        # Those that are nearest to nothing stay.
        sums = (centres * 1e-6).index_add(0, nearest, likeness.clamp(min=0)[:, None] * white)
        centres = F.normalize(sums)
    kernels = centres @ whitening
    offset = kernels @ mean
    kernels = (kernels - kernels.mean(1, keepdim=True)).view(words, -1, SIDE, SIDE)  # of a patch that is not centred
    if network.mirrored:
        kernels, offset = torch.cat([kernels, kernels.flip(-1)]), torch.cat([offset, offset])
    return kernels, offset


def _patches(images: np.ndarray, count: int, mirrored: bool, generator: torch.Generator) -> Tensor:
    """Return random patches of uint8 images, centred and divided by their deviation, [count or 2 count, C * SIDE²]."""
    pixels = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
    places = F.unfold(pixels, SIDE, stride=STRIDE).transpose(1, 2).flatten(0, 1)
    chosen = places[torch.randint(len(places), (count,), generator=generator)]
    if mirrored:
        chosen = torch.cat([chosen, chosen.view(count, -1, SIDE, SIDE).flip(-1).flatten(1)])
    chosen = chosen - chosen.mean(1, keepdim=True)
    return chosen / (chosen.var(1, keepdim=True) + _CONTRAST).sqrt()
