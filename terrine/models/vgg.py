"""VGG9 with batch normalisation, without its last layer: 512 features (an ablation of DIET-PATE, Anonymous 2025)."""

from torch import nn

FEATURES = 512
_STAGES = ((64,), (128,), (256, 256), (512, 512))


def build_vgg9(channels: int) -> nn.Module:
    """Return six 3x3 convolutions and two of VGG9's three linear layers: float images [B, channels, H, W] to [B, 512].

    Maps are halved after each of the first three stages and averaged over all places at the end, so that sides from 8
    on work.
    """
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
    return nn.Sequential(*layers, nn.ReLU(inplace=True))
