"""A small convolutional network: what a teacher with few records can learn."""

from typing import Literal

from terrine.geometry import Size
from terrine.models.architecture import Built, Trained

FEATURES = 128
_WIDTHS = (16, 32, 64)


class SmallCNN(Trained):
    """Three normalised 3x3 convolutions and a linear layer: 128 features, 0.15 million weights; made for teachers.

    Maps are halved after each of the first two convolutions and averaged to 4x4 places at the end, so that sides from
    8 on work.
    """

    kind: Literal["small_cnn"] = "small_cnn"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        from terrine.models.parts import PartsAverage

        layers: list[nn.Module] = []
        width = channels
        for number, next_width in enumerate(_WIDTHS):
            convolution = nn.Conv2d(width, next_width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers += [convolution, nn.BatchNorm2d(next_width), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2) if number < len(_WIDTHS) - 1 else PartsAverage(4))
            width = next_width
        layers += [nn.Flatten(), nn.Linear(width * 16, FEATURES), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers), FEATURES
