"""Mixtures: convex combinations of six images with Dirichlet(1) weights.

After the MixUp form of Baradad et al. (2022). The six components of an image are images of other programs, drawn with a
separate seed, so they differ from these programs' own images. Each component's program is chosen uniformly from the
mixture's sources.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import log, tree_sum
from terrine.determinism.randomness import derive_seed
from terrine.synthetic.program import Program, chunks, image_program
from terrine.synthetic.programs.shaders import shaders

COMPONENTS = 6


@dataclass(frozen=True)
class Mixup:
    """The program that mixes images of `sources`."""

    sources: tuple[Program, ...]

    def __call__(self, seed: int, index: Tensor, size: int, channels: int) -> Tensor:
        """Return the mixtures `index` (int64 [images]): uint8 [images, channels, size, size]."""
        parts = chunks(index, size, cpu=1 << 20, gpu=1 << 24)
        return torch.cat([self._mix(seed, part, size, channels) for part in parts])

    def _mix(self, seed: int, index: Tensor, size: int, channels: int) -> Tensor:
        word = philox.words(seed, "mixup", index, 2 * COMPONENTS)
        chosen, _ = philox.below(word[:, COMPONENTS:], len(self.sources))
        chosen = chosen.flatten()
        component = (index[:, None] * COMPONENTS + torch.arange(COMPONENTS, device=index.device)).flatten()
        images = torch.empty((len(component), channels, size, size), dtype=torch.uint8, device=index.device)
        for number, source in enumerate(self.sources):
            place = (chosen == number).nonzero()[:, 0]
            if len(place):
                images[place] = source(derive_seed(seed, "mixup", number), component[place], size, channels)
        images = images.view(-1, COMPONENTS, channels, size, size)
        share = weights(word[:, :COMPONENTS])
        total = torch.zeros(images[:, 0].shape, device=index.device)
        for k in range(COMPONENTS):
            total += images[:, k].to(torch.float32) * share[:, k, None, None, None]
        return total.round_().to(torch.uint8)


def weights(word: Tensor) -> Tensor:
    """Turn uniform 32-bit words [images, n] into Dirichlet(1, ..., 1) weights, float32 of the same shape."""
    exponential = -log(((word >> 9).to(torch.float32) + 0.5) * 2.0**-23)
    return exponential / tree_sum(exponential, 1)


image_program("mixup")(Mixup((shaders,)))
