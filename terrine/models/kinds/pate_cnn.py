"""The teachers of the first PATE papers."""

from typing import Literal

from terrine.geometry import Size, sides
from terrine.models.architecture import Built, Trained

FEATURES = 384


class PateCNN(Trained):
    """Two convolutions of 5x5 kernels, maps halved after each, and a linear layer: 384 features; made for teachers.

    "Two convolutional layers with max-pooling and one fully connected layer with ReLUs" (Papernot et al. 2017, section
    4; Dodwadmath and Stich 2022, section 3), without batch normalisation. What the papers leave open is taken from
    their published code.
    """

    kind: Literal["pate_cnn"] = "pate_cnn"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        layers: list[nn.Module] = []
        for width, next_width in ((channels, 64), (64, 128)):
            convolution = nn.Conv2d(width, next_width, 5, padding=2)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
            layers += [convolution, nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        height, width = sides(size)
        layers += [nn.Flatten(), nn.Linear(128 * (height // 4) * (width // 4), FEATURES), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers), FEATURES
