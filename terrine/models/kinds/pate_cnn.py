"""The teachers of the first PATE papers: two convolutions with pooling and one fully connected layer; 384 features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.models.architecture import Trained

if TYPE_CHECKING:
    from torch import nn

FEATURES = 384
_WIDTHS = (64, 128)


class PateCNN(Trained):
    """Two convolutions of 5x5 kernels, maps halved after each, without batch normalisation; made for teachers.

    "Two convolutional layers with max-pooling and one fully connected layer with ReLUs" (Papernot et al. 2017, section
    4; 004_79a4560d3bf51d97, section 3). What the papers leave open is taken from their published code.
    """

    kind: Literal["pate_cnn"] = "pate_cnn"

    @staticmethod
    def network(kind: str, channels: int, size: int, seed: int) -> tuple[nn.Module, int]:
        from torch import nn

        layers: list[nn.Module] = []
        width = channels
        for next_width in _WIDTHS:
            convolution = nn.Conv2d(width, next_width, 5, padding=2)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
            layers += [convolution, nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            width = next_width
        layers += [nn.Flatten(), nn.Linear(width * (size // 4) ** 2, FEATURES), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers), FEATURES
