"""Reference statistics: what `original` means for a backbone that was never trained.

A network's running statistics come from its training. Parts without weights, such as the scattering transform, get
theirs from a pass over public images, batch by batch, averaged over all; parts with weights keep what they have.
"""

from collections.abc import Sequence

import numpy as np
import torch

from terrine.models.backbone import Backbone
from terrine.models.statistics import record_statistics
from terrine.npy import Rows


def fit_reference(
    backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], device: torch.device | str = "cpu"
) -> None:
    """Set the running statistics of layers without weights to the average over batches of public uint8 `images`.

    batches: index arrays of at least two images each. The backbone is moved to `device` and ends in evaluation mode.
    Deterministic on the CPU. Raises InputError when there is no batch, or one too small.
    """
    backbone.to(device).eval()
    record_statistics(backbone, (torch.from_numpy(np.ascontiguousarray(images[batch])).to(device) for batch in batches))
