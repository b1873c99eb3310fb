"""CryptoNet-ReLU: the small network on which encrypted inference is compared (Anonymous 2025, table 13)."""

import math
from typing import Literal

from terrine.geometry import Size, sides
from terrine.models.architecture import Built, Trained

FEATURES = 100


class CryptoNet(Trained):
    """The layers of HE-transformer's example (Boemer et al. 2020), without the last one; made for teachers.

    Averages do not count padding. It has no batch normalisation, so current and original statistics are the same thing.
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
            nn.Linear(50 * math.prod((side + 3) // 4 for side in sides(size)), FEATURES),
            nn.ReLU(inplace=True),
        )
        return network, FEATURES
