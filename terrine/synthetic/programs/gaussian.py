"""Gaussian noise: N(0, 1) for each pixel and channel, written as bytes.

Grey 127.5 is zero and three standard deviations reach black and white, so 0.3 % of the pixels are clipped.
"""

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.synthetic.program import chunks, image_program

CENTRE = 127.5
DEVIATION = 42.5


@image_program("gaussian")
def gaussian(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the noise images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    return torch.cat([_noise(seed, part, size, channels) for part in chunks(index, size, cpu=1 << 16, gpu=1 << 24)])


def _noise(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    noise = philox.normals(seed, "gaussian", index, channels * size * size)
    noise = (noise * DEVIATION + CENTRE).round_().clamp_(0, 255)
    return noise.to(torch.uint8).view(-1, channels, size, size)
