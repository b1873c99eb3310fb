"""Fixed image transforms whose coefficients are standardised and projected to fewer features.

`PatchNetwork` follows Coates, Lee & Ng 2011 and Coates & Ng 2011: patches of `SIDE` x `SIDE` pixels, `STRIDE` apart,
are centred, divided by their own deviation and whitened. Each patch is compared with the words of a dictionary. The
part of its similarity, positive or negative, above a threshold is averaged over 3 x 3 parts of the image.

If mirror images have the same meaning, half of the words are the mirrored other half, and the coefficients of a word in
one place and of its mirror image in the mirrored place are replaced by their sum. This makes features of images with an
even side invariant to mirroring, at no cost.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError
from terrine.geometry import Size
from terrine.models.networks import averaged, build_resnet

SIDE = 6
STRIDE = 2
PARTS = 3
THRESHOLD = 0.5
CONTRAST = 10 / 255**2  # added to a patch's variance, so that a flat one is not amplified to noise


class ProjectedNetwork(nn.Module):
    """Features of float images [B, C, size, size] in [0, 1]: [B, projection], or the coefficients [B, D] themselves.

    The batch normalisation decides by the usual rules (`terrine.models.statistics`) whether a batch is standardised by
    its own statistics or by recorded ones. The projection is random unless one is learned.
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
        """Return the coefficients [B, D] of float images, each row from its image only."""

    def forward(self, images: Tensor) -> Tensor:
        # An exported program takes batches of any size, so it cannot be cut into a fixed number of chunks.
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


class PatchNetwork(ProjectedNetwork):
    """Similarity of float images [B, C, size, size] to the words of a patch dictionary."""

    chunk = 8
    kernels: Tensor
    offset: Tensor

    def __init__(
        self, channels: int, size: Size, seed: int, words: int, mirrored: bool, projection: int | None
    ) -> None:
        if words < 2 or words % 2:
            raise SettingError(f"patches: words is {words}, and must be an even number from 2 on.")
        super().__init__("patches", 2 * words * PARTS**2 // (1 + mirrored), projection, seed)
        self.mirrored = mirrored
        self.register_buffer("kernels", torch.zeros(words, channels, SIDE, SIDE))
        self.register_buffer("offset", torch.zeros(words))

    def described(self, images: Tensor) -> Tensor:
        """See `ProjectedNetwork.described`: [B, 2 * words * 9], or half of that if mirrored."""
        likeness = torch.addcdiv(
            -self.offset[:, None, None], F.conv2d(images, self.kernels, stride=STRIDE), _deviations(images)
        )
        beyond = F.softshrink(likeness, THRESHOLD)
        # The positive and negative parts are half of the sum of these, and half of their difference.
        size, signed = averaged(beyond.abs(), PARTS), averaged(beyond, PARTS)
        maps = torch.cat([size + signed, size - signed], dim=1) / 2
        if self.mirrored:
            one, other = maps.view(len(maps), 2, 2, -1, PARTS, PARTS).unbind(2)
            maps = one + other.flip(-1)
        return maps.flatten(1)


class StoredBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation that uses its stored statistics outside training, whatever `batch_statistics` says.

    The features of an image therefore depend only on that image, even under current statistics.
    """

    def forward(self, maps: Tensor) -> Tensor:
        if self.training:
            return super().forward(maps)
        assert self.running_mean is not None  # tracked, as is the variance
        # `torch.batch_norm` instead of `F.batch_norm`, which the modes of `terrine.models.statistics` replace.
        stored = (self.weight, self.bias, self.running_mean, self.running_var)
        return torch.batch_norm(maps, *stored, False, 0.0, self.eps, torch.backends.cudnn.enabled)


class LevelsNetwork(ProjectedNetwork):
    """Feature maps of all levels of a ResNet10 with the small stem, averaged over 2 x 2 parts of the image.

    The last level alone, averaged over the image, is what SimCLR trains. The last level discards much that other tasks
    need: the first levels and the positions of features are worth ten points on CIFAR-10.
    """

    LEVELS = (64, 128, 256, 512)
    """Number of channels of each level."""
    PARTS = 2

    def __init__(self, channels: int, seed: int, mirrored: bool, projection: int | None) -> None:
        super().__init__("resnet_levels", sum(self.LEVELS) * self.PARTS**2, projection, seed)
        self.network = build_resnet(10, channels, "small", norm_layer=StoredBatchNorm2d)
        self.mirrored = mirrored

    def trainable(self) -> tuple[nn.Module, int]:
        """Return the ResNet, which pretraining trains, and its number of features."""
        return self.network, self.LEVELS[-1]

    def described(self, images: Tensor) -> Tensor:
        """See `ProjectedNetwork.described`: [B, 3840], the mean over an image and its mirror image if `mirrored`."""
        if not self.mirrored:
            return self._maps(images)
        return (self._maps(images) + self._maps(images.flip(-1))) / 2

    def _maps(self, images: Tensor) -> Tensor:
        network, rows = self.network, []
        maps = network.maxpool(network.relu(network.bn1(network.conv1(images))))
        for level in (network.layer1, network.layer2, network.layer3, network.layer4):
            maps = level(maps)
            rows.append(averaged(maps, self.PARTS).flatten(1))
        return torch.cat(rows, dim=1)


def _deviations(images: Tensor) -> Tensor:
    """Return the standard deviation [B, 1, h, w] of every patch's pixels."""
    count = images.shape[1] * SIDE**2
    ones = images.new_ones(1, images.shape[1], SIDE, SIDE)
    sums, squares = F.conv2d(images, ones, stride=STRIDE), F.conv2d(images.square(), ones, stride=STRIDE)
    return ((squares - sums.square() / count).clamp(min=0) / (count - 1) + CONTRAST).sqrt()
