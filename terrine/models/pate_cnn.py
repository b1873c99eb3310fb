"""The teachers of the first PATE papers: two convolutions with pooling and one fully connected layer; 384 features."""

from torch import nn

FEATURES = 384
_WIDTHS = (64, 128)


def build_pate_cnn(channels: int, size: int) -> nn.Module:
    """Return float images [B, channels, size, size] to [B, 384], without batch normalisation.

    "Two convolutional layers with max-pooling and one fully connected layer with ReLUs" (Papernot et al. 2017, section
    4; Dodwadmath and Stich 2022, section 3): 5x5 kernels, 64 and 128 of them, maps halved after each. What the papers
    leave open is taken from their published code.
    """
    layers: list[nn.Module] = []
    width = channels
    for next_width in _WIDTHS:
        convolution = nn.Conv2d(width, next_width, 5, padding=2)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.zeros_(convolution.bias)
        layers += [convolution, nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        width = next_width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (size // 4) ** 2, FEATURES), nn.ReLU(inplace=True))
