"""VGG9 with batch normalisation, without its last layer."""

from typing import Literal

from terrine.geometry import Size
from terrine.models.architecture import Built, Trained

FEATURES = 512
_STAGES = ((64,), (128,), (256, 256), (512, 512))


class VGG9(Trained):
    """Six 3x3 convolutions and two of VGG9's three linear layers: 512 features.

    An ablation of DIET-PATE (Anonymous 2025). Maps are halved after each of the first three stages and averaged over
    all places at the end, so that sides from 8 on work.
    """

    kind: Literal["vgg9"] = "vgg9"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        layers: list[nn.Module] = []
        width = channels
        for stage, widths in enumerate(_STAGES):
            for next_width in widths:
                convolution = nn.Conv2d(width, next_width, 3, padding=1, bias=False)
                nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
                layers += [convolution, nn.BatchNorm2d(next_width), nn.ReLU(inplace=True)]
                width = next_width
            layers.append(nn.MaxPool2d(2) if stage < len(_STAGES) - 1 else nn.AdaptiveAvgPool2d(1))
        layers += [nn.Flatten(), nn.Linear(width, FEATURES), nn.ReLU(inplace=True), nn.Linear(FEATURES, FEATURES)]
        return nn.Sequential(*layers, nn.ReLU(inplace=True)), FEATURES
