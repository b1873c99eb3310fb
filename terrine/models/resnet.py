"""ResNets and DenseNet121 for small images, without their last layer."""

from typing import Any, Literal

from terrine.errors import SettingError
from terrine.geometry import Size, in_json, sides
from terrine.models.architecture import Built, Stemmed, Trained

SMALLEST_STANDARD = 32
"""Images of a smaller side do not survive DenseNet's stock stem."""


class ResNet(Stemmed, Trained):
    """A residual network of 10, 18 or 34 layers: 512 features (He et al. 2016, section 3)."""

    kind: Literal["resnet10", "resnet18", "resnet34"] = "resnet18"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"stem": self.stem}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, stem: str = "standard") -> Built:
        from terrine.models.networks import build_resnet

        return build_resnet(int(kind.removeprefix("resnet")), channels, stem), 512


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
