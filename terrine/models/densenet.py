"""DenseNet121 without its last layer: 1,024 features."""

from torch import nn

from terrine import vision
from terrine.errors import SettingError

FEATURES = 1024
SMALLEST_STANDARD = 32


def build_densenet121(channels: int, size: int, stem: str) -> nn.Module:
    """Return torchvision's DenseNet121 from float images [B, channels, size, size] to features [B, 1024].

    stem: `standard` is the stock 7x7 convolution and pooling, which images below 32x32 do not survive; `small` is one
    3x3 convolution of stride 1. Raises SettingError for another stem, or the standard one on images too small for it.
    """
    if stem not in ("standard", "small"):
        raise SettingError(f"densenet121: stem '{stem}' is unknown. Use 'standard' or 'small'.")
    if stem == "standard" and size < SMALLEST_STANDARD:
        raise SettingError(
            f"densenet121: the standard stem needs images of side {SMALLEST_STANDARD} or more, and these have {size}. "
            "Use stem 'small'."
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
    return network
