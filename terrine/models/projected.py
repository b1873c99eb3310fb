"""Fixed transforms of images whose many coefficients are standardised and projected to fewer features."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError


class ProjectedNetwork(nn.Module):
    """Features of float images [B, C, size, size] in [0, 1]: [B, projection], or the coefficients [B, D] themselves.

    The batch normalisation decides by the usual rules (`terrine.models.statistics`) whether a batch is standardised by
    its own statistics or by recorded ones. The projection is random until another one is learned.
    """

    chunk = 64
    """Images at a time on a CPU: their maps stay in its cache, and matrices are read once for each."""
    projection: Tensor | None

    def __init__(self, kind: str, coefficients: int, projection: int | None, seed: int) -> None:
        super().__init__()
        if projection is not None and projection < 1:
            raise SettingError(f"{kind}: projection is {projection}. Give a positive number, or null for none.")
        self.standardise = nn.BatchNorm1d(coefficients, affine=False)
        matrix = None
        if projection is not None:
            generator = torch_generator(seed, f"{kind} projection")
            matrix = torch.randn(coefficients, projection, generator=generator) / math.sqrt(coefficients)
        self.register_buffer("projection", matrix)
        self.feature_dim = projection or coefficients

    @abstractmethod
    def described(self, images: Tensor) -> Tensor:
        """Return the coefficients [B, D] of float images, of each image by itself."""

    def forward(self, images: Tensor) -> Tensor:
        # An exported program takes batches of any size, so it cannot be cut into a number of chunks.
        whole = images.device.type != "cpu" or torch.compiler.is_exporting()
        parts: Sequence[Tensor] = [images] if whole else images.split(self.chunk)
        if images.requires_grad and torch.is_grad_enabled():
            # The maps of a whole batch would not fit into memory: a chunk's are computed again for its gradient.
            parts = images.split(self.chunk)
            rows = [checkpoint(self.described, part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        else:
            rows = [self.described(part) for part in parts]
        features = self.standardise(torch.cat(rows))
        return features if self.projection is None else features @ self.projection
