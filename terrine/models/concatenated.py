"""Several backbones side by side: their features one after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ConcatenatedNetwork(nn.Module):
    """Networks that see the same images; features [B, sum of theirs], each part standardised over the batch.

    The standardisation is a batch normalisation without parameters, so it follows the same rules of current and
    original statistics as all others, and no part outweighs another by its scale.
    """

    def __init__(self, networks: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.widths = list(widths)
        self.standardise = nn.BatchNorm1d(sum(widths), affine=False)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.cat([network(images) for network in self.networks], dim=1)
        return self.standardise(features)

    def trainable(self) -> tuple[nn.Module, int]:
        """Return the networks that have weights, side by side, and how many features they have together."""
        chosen = [
            (network, width)
            for network, width in zip(self.networks, self.widths, strict=True)
            if any(parameter.requires_grad for parameter in network.parameters())
        ]
        if len(chosen) == 1:
            return chosen[0]
        networks, widths = [network for network, _ in chosen], [width for _, width in chosen]
        return ConcatenatedNetwork(networks, widths), sum(widths)
