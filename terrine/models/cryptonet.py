"""CryptoNet-ReLU: the small network on which encrypted inference is compared (Anonymous 2025, Table 13).

The layers are those of HE-transformer's example (Boemer et al. 2020), without the last one: 100 features. It has no
batch normalisation, so current and original statistics are the same thing.
"""

from torch import nn

FEATURES = 100


def build_cryptonet(channels: int, size: int) -> nn.Module:
    """Return CryptoNet-ReLU from float images [B, channels, size, size] to features [B, 100], for sides from 8 on.

    5x5 convolution to 5 maps, stride 2; ReLU; 3x3 average; 5x5 convolution to 50 maps, stride 2; 3x3 average; a linear
    layer to 100; ReLU. Averages do not count padding. Initial weights come from torch's global generator.
    """
    side = (size + 1) // 2
    side = (side + 1) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 5, 5, stride=2, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.Conv2d(5, 50, 5, stride=2, padding=2),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.Flatten(),
        nn.Linear(50 * side * side, FEATURES),
        nn.ReLU(inplace=True),
    )
