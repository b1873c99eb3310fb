"""Torch modules of backbones: layers for small maps, ResNets, backbones side by side, and architectures of timm."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine import vision
from terrine.errors import SettingError, first_line
from terrine.geometry import Size, in_json, sides, size_of


class SmallMapConv2d(nn.Conv2d):
    """A 3x3 convolution with padding 1 and no bias that is fast on maps of 1x1 and 2x2.

    There, most of the nine taps multiply padding (on 1x1, eight). On the CPU only the remaining matrix product is
    computed, which makes a training step of ResNet18 at 28x28 1.5 times as fast.
    """

    @classmethod
    def like(cls, other: nn.Conv2d) -> "SmallMapConv2d":
        """Return this layer with the same weight parameter as an ordinary convolution."""
        shape = other.kernel_size, other.padding, other.dilation, other.groups
        if shape != ((3, 3), (1, 1), (1, 1), 1) or other.bias:
            raise ValueError(f"not a plain 3x3 convolution with padding 1: {other}")
        stride = cast(tuple[int, int], other.stride)
        layer = cls(other.in_channels, other.out_channels, 3, stride, padding=1, bias=False, device="meta")
        layer.weight = other.weight
        return layer

    def forward(self, maps: Tensor) -> Tensor:
        side = maps.shape[-1]
        if side > 2 or maps.shape[-2] != side or maps.device.type != "cpu":
            return super().forward(maps)
        stride = self.stride[0]
        places = range(0, side, stride)
        # The output at (i, j) meets the input at (0..side-1)^2 with the taps from 1 - i and 1 - j on.
        windows = [self.weight[:, :, 1 - i : 1 - i + side, 1 - j : 1 - j + side] for i in places for j in places]
        matrix = torch.stack(windows, dim=1).flatten(2).flatten(0, 1)
        return F.linear(maps.flatten(1), matrix).view(maps.shape[0], self.out_channels, len(places), len(places))


_RESNET_BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def build_resnet(depth: int, channels: int, stem: str = "standard", norm_layer: Any = None) -> Any:
    """Return a ResNet of `depth` 10, 18 or 34 from float images [B, channels, H, W] to features [B, 512].

    stem: `standard` is torchvision's 7x7 convolution of stride 2 and max pooling (DIET-PATE does not state its stem;
    presets use this one, at 28x28 too); `small` is one 3x3 convolution of stride 1 and no pooling: better features for
    small images at about ten times the arithmetic. norm_layer: class of its normalisation, torch's by default. Initial
    weights come from torch's global generator.

    Raises SettingError for another depth.
    """
    if depth not in _RESNET_BLOCKS:
        raise SettingError(f"resnet: depth {depth} is unknown. Use one of {sorted(_RESNET_BLOCKS)}.")
    block_type = vision.torchvision.models.resnet.BasicBlock
    network = vision.torchvision.models.ResNet(block_type, list(_RESNET_BLOCKS[depth]), norm_layer=norm_layer)
    if stem == "standard":
        network.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    else:
        network.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.fc = nn.Identity()
    for block in network.modules():
        if isinstance(block, block_type):
            block.conv1, block.conv2 = SmallMapConv2d.like(block.conv1), SmallMapConv2d.like(block.conv2)
    return network


def averaged(maps: Tensor, parts: int) -> Tensor:
    """Return the means [B, K, parts, parts] over parts of maps [B, K, h, w], never in half precision.

    Adaptive average pooling as a matrix product, whose backward pass is deterministic on CUDA.
    """
    with torch.autocast(maps.device.type, enabled=False):
        maps = maps.to(torch.promote_types(maps.dtype, torch.float32))
        impulses = (torch.eye(side, dtype=maps.dtype, device=maps.device) for side in maps.shape[-2:])
        rows, columns = (F.adaptive_avg_pool1d(impulse[None], parts)[0] for impulse in impulses)
        return (maps.flatten(2) @ torch.kron(rows, columns)).unflatten(2, (parts, parts))


class PartsAverage(nn.Module):
    """`averaged` as a layer."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, maps: Tensor) -> Tensor:
        return averaged(maps, self.parts)


class ConcatenatedNetwork(nn.Module):
    """Several networks on the same images, whose features are concatenated; each part is standardised over the batch.

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
        """Return the networks that have weights, concatenated, and their total number of features."""
        chosen = [
            (network, width)
            for network, width in zip(self.networks, self.widths, strict=True)
            if any(parameter.requires_grad for parameter in network.parameters())
        ]
        if len(chosen) == 1:
            return chosen[0]
        networks, widths = [network for network, _ in chosen], [width for _, width in chosen]
        return ConcatenatedNetwork(networks, widths), sum(widths)


class TimmNetwork(nn.Module):
    """timm's network `name`, from float images [B, channels, *size] to pooled features or scores [B, `feature_dim`].

    Images in [0, 1] are standardised as timm's weights for the architecture expect, grey ones by the mean over colours.
    The constants are stored with the weights.

    enlarge: side to which images are resized (bilinearly) first, for architectures that cannot take small images;
    None leaves them unchanged. from_tensorflow: for weights trained in TensorFlow, so convolutions are padded at the
    bottom and right if no symmetric padding fits, and pixels run from -1 to 1. levels: features are the means of the
    maps at every level, concatenated (`forward_intermediates` of timm). mirrored: features are averaged over an image
    and its mirror image. classifier: return the scores of timm's own classifier instead of features. Raises
    SettingError if the architecture cannot take the images or this padding.
    """

    def __init__(
        self,
        name: str,
        channels: int,
        size: Size,
        enlarge: int | None = None,
        *,
        from_tensorflow: bool = False,
        levels: bool = False,
        mirrored: bool = False,
        classifier: bool = False,
    ) -> None:
        super().__init__()
        self.side, self.levels, self.mirrored = enlarge, levels, mirrored
        size = enlarge or size
        self.model = _create(name, channels, size, from_tensorflow, classifier)
        usual = ((0.5,), (0.5,)) if from_tensorflow else _standardisation(self.model, channels)
        for key, values in zip(("mean", "deviation"), usual, strict=True):
            self.register_buffer(key, torch.tensor(values).reshape(1, -1, 1, 1))
        try:
            with torch.no_grad():
                features = self.eval()(torch.zeros(2, channels, *sides(size)))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise SettingError(
                f"backbone: timm's '{name}' cannot take images of side {in_json(size)} ({first_line(error)}). Set "
                "enlarge to a larger side, 64 or 224 say: images are then resized before they enter."
            ) from error
        self.feature_dim = int(features.shape[1])

    mean: Tensor
    deviation: Tensor

    def forward(self, images: Tensor) -> Tensor:
        if self.side is not None and self.side != size_of(images.shape):
            images = F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)
        # Channels last: depthwise convolutions (MobileNet) then take half the time on a CPU.
        images = ((images - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)
        if not self.mirrored:
            return self._features(images)
        # Two passes instead of one batch of both, since callers that weight or group images count them.
        return (self._features(images) + self._features(images.flip(-1))) / 2

    def _features(self, images: Tensor) -> Tensor:
        if not self.levels:
            return self.model(images)
        maps = self.model.forward_intermediates(images, intermediates_only=True)
        return torch.cat([level.mean((2, 3)) for level in maps], dim=1)


def _create(name: str, channels: int, size: Size, from_tensorflow: bool, classifier: bool) -> Any:
    arguments: dict[str, Any] = {"pretrained": False, "in_chans": channels}
    if not classifier:
        arguments["num_classes"] = 0
    if from_tensorflow:
        try:
            return vision.timm.create_model(name, **arguments, pad_type="same")
        except TypeError as error:
            raise SettingError(
                f"backbone: timm's '{name}' has no padding of TensorFlow's. Set backbone.from_tensorflow=false."
            ) from error
    try:
        return vision.timm.create_model(name, img_size=size, **arguments)  # transformers fix their grid when built
    except (TypeError, AssertionError):
        return vision.timm.create_model(name, **arguments)


def _standardisation(model: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, with which timm's published weights were trained."""
    config = model.pretrained_cfg
    mean, deviation = (tuple(config.get(key, (plain,))) for key, plain in (("mean", 0.0), ("std", 1.0)))
    if channels != len(mean):
        mean, deviation = (sum(mean) / len(mean),), (sum(deviation) / len(deviation),)
    return mean, deviation
