"""A dictionary of patches, learned from public images without labels (Coates and Ng 2011): settings and learning.

`learn_dictionary` whitens patches of public images and clusters them by direction (spherical k-means, Dhillon & Modha
2001). The network that compares images with the dictionary is `terrine.models.projected.PatchNetwork`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import numpy as np
from pydantic import Field

from terrine.determinism.randomness import torch_generator
from terrine.geometry import Size
from terrine.models.architecture import PROJECTION_BATCHES, Built, Projected
from terrine.models.deformations import Deformations
from terrine.settings import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from terrine.models.backbone import Backbone
    from terrine.models.projected import PatchNetwork
    from terrine.npy import Rows

_WHITENING = 0.1
_PATCHES = 100_000
_ROUNDS = 10


class Patches(Projected):
    """Similarity to a dictionary of patches (Coates and Ng 2011), projected to be invariant to small deformations.

    For colour photographs, for which a wavelet transform is less informative.
    """

    learns_projection: ClassVar[bool] = True
    reference: ClassVar[Literal["queries", "pretraining"] | None] = "queries"

    kind: Literal["patches"] = "patches"
    words: Annotated[int, Unit("patches")] = Field(400, ge=2, multiple_of=2)
    """Number of words in the patch dictionary."""
    mirrored: bool = True
    """Treat an image and its mirror image as the same. Use false for letters and digits."""
    deformations: Deformations = Deformations(rotation=10, scale=0.15, shift=0.15)
    """Deformations that preserve an image's class."""

    def adapt(
        self, backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], *, seed: int, device: torch.device | str
    ) -> None:
        learn_dictionary(cast("PatchNetwork", backbone.network), images, batches[:PROJECTION_BATCHES], seed=seed)
        super().adapt(backbone, images, batches, seed=seed, device=device)

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"words": self.words, "mirrored": self.mirrored, "projection": self.projection}

    @staticmethod
    def network(
        kind: str,
        channels: int,
        size: Size,
        seed: int,
        *,
        words: int = 400,
        mirrored: bool = True,
        projection: int | None = 1000,
    ) -> Built:
        from terrine.models.projected import PatchNetwork

        network = PatchNetwork(channels, size, seed, words, mirrored, projection)
        return network, network.feature_dim


def learn_dictionary(network: PatchNetwork, images: Rows, batches: Sequence[np.ndarray], *, seed: int) -> None:
    """Set the network's dictionary to one learned from public uint8 images [N, C, size, size], on the CPU.

    The result does not depend on the number of threads.

    Args:
        network: Network whose `kernels` and `offset` are replaced.
        images: An array or a memory map.
        batches: Index arrays.
        seed: Seed for the choice of patches and of the initial words.
    """
    import torch

    from terrine.determinism.parallel import side_by_side

    with torch.no_grad():
        ((kernels, offset),) = side_by_side(lambda _: _dictionary(network, images, batches, seed), [0])
        network.kernels.copy_(kernels.view_as(network.kernels))
        network.offset.copy_(offset)


def _dictionary(network: PatchNetwork, images: Rows, batches: Sequence[np.ndarray], seed: int) -> tuple[Tensor, Tensor]:
    import torch
    import torch.nn.functional as F

    from terrine.models.projected import SIDE

    generator = torch_generator(seed, "patches")
    patches = torch.cat(
        [_patches(images[batch], -(-_PATCHES // len(batches)), network.mirrored, generator) for batch in batches]
    )
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T.double()))
    whitening = ((vectors / (values + _WHITENING).sqrt()) @ vectors.T).float()
    white = (patches - mean) @ whitening
    length = white.norm(dim=1)
    white = white[length > length.median() / 2]  # flat patches have no direction
    words = len(network.offset) // (1 + network.mirrored)
    centres = F.normalize(white[torch.randperm(len(white), generator=generator)[:words]])
    for _ in range(_ROUNDS):
        likeness, nearest = (white @ centres.T).max(dim=1)
        # Centres that are nearest to no patch stay unchanged.
        sums = (centres * 1e-6).index_add(0, nearest, likeness.clamp(min=0)[:, None] * white)
        centres = F.normalize(sums)
    kernels = centres @ whitening
    offset = kernels @ mean
    kernels = (kernels - kernels.mean(1, keepdim=True)).view(words, -1, SIDE, SIDE)  # for patches that are not centred
    if network.mirrored:
        kernels, offset = torch.cat([kernels, kernels.flip(-1)]), torch.cat([offset, offset])
    return kernels, offset


def _patches(images: np.ndarray, count: int, mirrored: bool, generator: torch.Generator) -> Tensor:
    """Return random patches of uint8 images, centred and divided by their deviation, [count or 2 count, C * SIDE²]."""
    import torch
    import torch.nn.functional as F

    from terrine.models.projected import CONTRAST, SIDE, STRIDE

    pixels = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
    places = F.unfold(pixels, SIDE, stride=STRIDE).transpose(1, 2).flatten(0, 1)
    chosen = places[torch.randint(len(places), (count,), generator=generator)]
    if mirrored:
        chosen = torch.cat([chosen, chosen.view(count, -1, SIDE, SIDE).flip(-1).flatten(1)])
    chosen = chosen - chosen.mean(1, keepdim=True)
    return chosen / (chosen.var(1, keepdim=True) + CONTRAST).sqrt()
