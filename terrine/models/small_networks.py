"""Small convolutional networks, mostly for teachers: SmallCNN, the PATE papers' CNN, CryptoNet-ReLU and VGG9."""

import math
from typing import Literal

from terrine.geometry import Size, sides
from terrine.models.architecture import Built, Trained


class SmallCNN(Trained):
    """Three normalised 3x3 convolutions and a linear layer: 128 features, 0.15 million weights; made for teachers.

    Maps are halved after each of the first two convolutions and averaged to 4x4 places at the end, so that sides of 8
    or more work.
    """

    kind: Literal["small_cnn"] = "small_cnn"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        from terrine.models.networks import PartsAverage

        layers: list[nn.Module] = []
        widths, width = (16, 32, 64), channels
        for number, next_width in enumerate(widths):
            convolution = nn.Conv2d(width, next_width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
            layers += [convolution, nn.BatchNorm2d(next_width), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2) if number < len(widths) - 1 else PartsAverage(4))
            width = next_width
        layers += [nn.Flatten(), nn.Linear(width * 16, 128), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers), 128


class PateCNN(Trained):
    """Two 5x5 convolutions, with maps halved after each, and a linear layer: 384 features; made for teachers.

    "Two convolutional layers with max-pooling and one fully connected layer with ReLUs" (Papernot et al. 2017, section
    4; Dodwadmath and Stich 2022, section 3), without batch normalisation. Other details follow the published code.
    """

    kind: Literal["pate_cnn"] = "pate_cnn"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        layers: list[nn.Module] = []
        for width, next_width in ((channels, 64), (64, 128)):
            convolution = nn.Conv2d(width, next_width, 5, padding=2)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
            layers += [convolution, nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        height, width = sides(size)
        layers += [nn.Flatten(), nn.Linear(128 * (height // 4) * (width // 4), 384), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers), 384


class CryptoNet(Trained):
    """CryptoNet-ReLU, a benchmark network for encrypted inference (Anonymous 2025, table 13).

    The layers of HE-transformer's example (Boemer et al. 2020), without the last one; made for teachers.

    Average pooling does not count padding. The network has no batch normalisation, so current and original statistics
    give the same result.
    """

    kind: Literal["cryptonet"] = "cryptonet"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        network = nn.Sequential(
            nn.Conv2d(channels, 5, 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
            nn.Conv2d(5, 50, 5, stride=2, padding=2),
            nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
            nn.Flatten(),
            nn.Linear(50 * math.prod((side + 3) // 4 for side in sides(size)), 100),
            nn.ReLU(inplace=True),
        )
        return network, 100


class VGG9(Trained):
    """Six 3x3 convolutions and two of VGG9's three linear layers: 512 features.

    An ablation of DIET-PATE (Anonymous 2025). Maps are halved after each of the first three stages and averaged over
    all places at the end, so that sides of 8 or more work.
    """

    kind: Literal["vgg9"] = "vgg9"

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int) -> Built:
        from torch import nn

        layers: list[nn.Module] = []
        width, stages = channels, ((64,), (128,), (256, 256), (512, 512))
        for stage, widths in enumerate(stages):
            for next_width in widths:
                convolution = nn.Conv2d(width, next_width, 3, padding=1, bias=False)
                nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
                layers += [convolution, nn.BatchNorm2d(next_width), nn.ReLU(inplace=True)]
                width = next_width
            layers.append(nn.MaxPool2d(2) if stage < len(stages) - 1 else nn.AdaptiveAvgPool2d(1))
        layers += [nn.Flatten(), nn.Linear(width, 512), nn.ReLU(inplace=True), nn.Linear(512, 512)]
        return nn.Sequential(*layers, nn.ReLU(inplace=True)), 512
