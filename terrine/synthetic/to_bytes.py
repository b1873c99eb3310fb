"""From a picture of any range to bytes: every channel gets a given mean and deviation."""

import torch
from torch import Tensor

from terrine.determinism.portable_math import tree_sum


def to_bytes(picture: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Shift and scale every channel of every image, and write bytes: uint8 of the shape of `picture`.

    `picture` is float32 [images, channels, height, width]; `mean` and `deviation`, as fractions of white, broadcast to
    [images, channels, 1]. A channel without contrast stays flat. Values outside 0..255 are clipped, so the deviation
    of the bytes may be a little smaller than the one asked for.
    """
    share = 1 / (picture.shape[2] * picture.shape[3])
    flat = picture.flatten(2)
    centred = flat - tree_sum(flat, 2) * share
    spread = (tree_sum(centred * centred, 2) * share).sqrt_()
    level = centred * (deviation / spread.clamp_(min=1e-3)) + mean
    return (level * 255.0).round_().clamp_(0, 255).to(torch.uint8).view(picture.shape)
