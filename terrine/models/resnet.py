"""ResNet10, ResNet18 and ResNet34 for small images, without their last layer: 512 features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine import vision
from terrine.errors import SettingError

FEATURES = 512
_BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def build_resnet(depth: int, channels: int, stem: str = "standard") -> nn.Module:
    """Return a ResNet of `depth` 10, 18 or 34 from float images [B, channels, H, W] to features [B, 512].

    stem: `standard` is torchvision's 7x7 convolution of stride 2 and max pooling, which the DIET-PATE paper uses at
    28x28 too (Anonymous 2025, appendix); `small` is one 3x3 convolution of stride 1 and no pooling: better features of
    small images for about ten times the arithmetic. Initial weights come from torch's global generator.

    Raises SettingError for another depth.
    """
    if depth not in _BLOCKS:
        raise SettingError(f"resnet: depth {depth} is unknown. Use one of {sorted(_BLOCKS)}.")
    block_type = vision.torchvision.models.resnet.BasicBlock
    network = vision.torchvision.models.ResNet(block_type, list(_BLOCKS[depth]))
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


class SmallMapConv2d(nn.Conv2d):
    """A 3x3 convolution with padding 1 and no bias that wastes nothing on maps of 1x1 and 2x2.

    There most of the nine taps meet nothing but padding: on 1x1 eight of them. On the CPU it is computed as the matrix
    product that remains, which makes a training step of ResNet18 at 28x28 one and a half times as fast.
    """

    @classmethod
    def like(cls, other: nn.Conv2d) -> "SmallMapConv2d":
        """Return this layer with the weight, the very parameter, of an ordinary convolution."""
        if (other.kernel_size, other.padding, other.dilation, other.groups) != (
            (3, 3),
            (1, 1),
            (1, 1),
            1,
        ) or other.bias:
            raise ValueError(f"not a plain 3x3 convolution with padding 1: {other}")
        layer = cls(other.in_channels, other.out_channels, 3, stride=other.stride, padding=1, bias=False, device="meta")
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
