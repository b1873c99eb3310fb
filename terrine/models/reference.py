"""Reference statistics: what `original` means for a backbone that was never trained.

A network's running statistics come from its training. One without weights, such as the scattering transform, gets them
from a pass over public images, batch by batch, averaged over all of them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from terrine.models.backbone import Backbone


@torch.no_grad()
def fit_reference(
    backbone: Backbone, images: np.ndarray, batches: Sequence[np.ndarray], device: torch.device | str = "cpu"
) -> None:
    """Set the running statistics of `backbone` to the average over batches of public uint8 `images` [N, C, H, W].

    batches: index arrays. The backbone is moved to `device` and ends in evaluation mode. Deterministic on the CPU.
    """
    backbone.to(device)
    layers = [layer for layer in backbone.modules() if isinstance(layer, _BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # cumulative average
    backbone.train()
    try:
        for batch in batches:
            backbone(torch.from_numpy(np.ascontiguousarray(images[batch])).to(device))
    finally:
        backbone.eval()
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
