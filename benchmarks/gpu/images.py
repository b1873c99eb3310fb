"""Colour images to pretrain on: several programs, and a half of them in two layers with an outline between."""

import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.synthetic.program import draw

MIXTURES = {
    "programs": {
        "stylegan": 5,
        "shaders": 4,
        "dead_leaves": 3,
        "mixup:shaders+stylegan": 1,
        "fractal": 1,
        "spectrum": 1,
    },
    "stylegan": {"stylegan": 1},
}
"""Programs and their shares."""


def colour_images(mixture: str, count: int, side: int, seed: int, device: torch.device, *, layered: float) -> Tensor:
    """Return public images, uint8 [count, 3, side, side] on `device`; `layered`: share of images in two layers."""
    weights = MIXTURES[mixture]
    parts = []
    for number, (kind, weight) in enumerate(weights.items()):
        wanted = round(count * weight / sum(weights.values()))
        if number == len(weights) - 1:
            wanted = count - sum(map(len, parts))
        for first in range(0, wanted, 20_000):
            drawn = min(20_000, wanted - first)
            parts.append(draw(kind, seed=seed, first=first, count=drawn, size=side, channels=3, device=device))
    images = torch.cat(parts)
    generator = torch.Generator(device=device).manual_seed(seed)
    images = images[torch.randperm(count, generator=generator, device=device)]
    for first in range(0, int(layered * count), 4_096):
        here = slice(first, min(first + 4_096, int(layered * count)))
        images[here] = _layered(images, here, generator)
    return images[torch.randperm(count, generator=generator, device=device)]


def _layered(images: Tensor, here: slice, generator: torch.Generator) -> Tensor:
    """Return images with another image before them, inside a smooth random outline."""
    below = images[here]
    count, side, device = len(below), images.shape[-1], images.device
    other = torch.randint(len(images), (count,), generator=generator, device=device)
    coarse = torch.randn((count, 1, 6, 6), generator=generator, device=device)
    smooth = F.interpolate(coarse, (side, side), mode="bicubic", align_corners=False)
    axis = torch.linspace(-1, 1, side, device=device)
    centre = torch.rand((count, 2, 1, 1), generator=generator, device=device) - 0.5
    down, across = axis[None, :, None] - centre[:, :1, :, 0], axis[None, None, :] - centre[:, 1:, :, 0]
    height = 0.5 * smooth[:, 0] - 1.5 * (down.square() + across.square())
    share = 0.15 + 0.45 * torch.rand((count, 1), generator=generator, device=device)
    level = height.flatten(1).sort(1, descending=True).values
    level = level.gather(1, (share * (side * side - 1)).long())
    inside = (height.flatten(1) >= level).view(count, 1, side, side)
    return torch.where(inside, images[other], below)
