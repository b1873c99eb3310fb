"""Features of images of which each is a function of its own image alone, to the bit.

What is summed over private records has the sensitivity that is charged only if no record moves another's features.
Under stored statistics none does but by rounding: a batch of another size may be computed in another order. So images
are computed on the CPU in blocks of one size, each by one thread, the last block filled up with blank images.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from terrine.determinism.parallel import side_by_side
from terrine.models.backbone import Backbone
from terrine.npy import Rows

BLOCK = 64


def features_one_by_one(
    backbone: Backbone, images: Rows, then: Callable[[np.ndarray], np.ndarray], order: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield `then` of the features [BLOCK, features] of uint8 images [N, C, H, W], without what fills a block.

    then: of which row i is a function of row i. order: int64, the numbers of the images that are wanted; None: of all.
    """
    network = backbone.cpu().eval()
    wanted = np.arange(len(images)) if order is None else order
    return blocks_one_by_one(backbone, lambda block: then(network.features(block, "original").numpy()), images, wanted)


def blocks_one_by_one(
    backbone: Backbone, compute: Callable[[torch.Tensor], np.ndarray], images: Rows, order: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield what `compute` makes of the images [BLOCK, C, H, W] of these numbers, without what fills a block."""

    def block(first: int) -> np.ndarray:
        chosen = order[first : first + BLOCK]
        filled = torch.zeros((BLOCK, *backbone.shape), dtype=torch.uint8)
        filled[: len(chosen)] = torch.from_numpy(np.ascontiguousarray(images[chosen]))
        return compute(filled)[: len(chosen)]

    yield from side_by_side(block, range(0, len(order), BLOCK))
