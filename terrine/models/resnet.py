"""ResNets and DenseNet121 for small images, without their last layer."""

from typing import Any, Literal

from terrine.errors import SettingError
from terrine.geometry import Size, in_json, sides
from terrine.models.architecture import Built, Stemmed, Trained

SMALLEST_STANDARD = 32
"""Images of a smaller side do not survive DenseNet's stock stem."""
_BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class ResNet(Stemmed, Trained):
    """A residual network of 10, 18 or 34 layers: 512 features (He et al. 2016, section 3)."""

    kind: Literal["resnet10", "resnet18", "resnet34"] = "resnet18"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"stem": self.stem}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, stem: str = "standard") -> Built:
        return build_resnet(int(kind.removeprefix("resnet")), channels, stem), 512


def build_resnet(depth: int, channels: int, stem: str = "standard", norm_layer: Any = None) -> Any:
    """Return a ResNet of `depth` 10, 18 or 34 from float images [B, channels, H, W] to features [B, 512].

    stem: `standard` is torchvision's 7x7 convolution of stride 2 and max pooling (DIET-PATE does not state its stem;
    presets use this one, at 28x28 too); `small` is one 3x3 convolution of stride 1 and no pooling: better features for
    small images at about ten times the arithmetic. norm_layer: class of its normalisation, torch's by default. Initial
    weights come from torch's global generator.

    Raises SettingError for another depth.
    """
    from torch import nn

    from terrine import vision
    from terrine.models.networks import SmallMapConv2d

    if depth not in _BLOCKS:
        raise SettingError(f"resnet: depth {depth} is unknown. Use one of {sorted(_BLOCKS)}.")
    block_type = vision.torchvision.models.resnet.BasicBlock
    network = vision.torchvision.models.ResNet(block_type, list(_BLOCKS[depth]), norm_layer=norm_layer)
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


class DenseNet121(Stemmed, Trained):
    """torchvision's DenseNet121 (Huang et al. 2017, table 1); its small stem is one 3x3 convolution of stride 1."""

    kind: Literal["densenet121"] = "densenet121"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"stem": self.stem if min(sides(size)) >= SMALLEST_STANDARD else "small"}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, stem: str = "small") -> Built:
        from torch import nn

        from terrine import vision

        if stem == "standard" and min(sides(size)) < SMALLEST_STANDARD:
            raise SettingError(
                f"densenet121: the standard stem needs images of side {SMALLEST_STANDARD} or more, and these have "
                f"{in_json(size)}. Use stem 'small'."
            )
        network = vision.torchvision.models.densenet121()
        width = network.features.conv0.out_channels
        if stem == "standard":
            network.features.conv0 = nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)
        else:
            network.features.conv0 = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
            network.features.pool0 = nn.Identity()
        nn.init.kaiming_normal_(network.features.conv0.weight)
        network.classifier = nn.Identity()
        return network, 1024
