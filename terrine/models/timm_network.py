"""Any architecture of timm as a backbone, without its classifier and with initial weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine import vision
from terrine.errors import SettingError


class TimmNetwork(nn.Module):
    """timm's `name` from float images [B, channels, size, size] to its pooled features [B, `feature_dim`].

    enlarge: side to which images are resized (bilinearly) first, for architectures that small images do not survive;
    None feeds them as they are. Raises SettingError when the architecture cannot take the images.
    """

    def __init__(self, name: str, channels: int, size: int, enlarge: int | None = None) -> None:
        super().__init__()
        self.side = enlarge
        side = enlarge or size
        self.model = _create(name, channels, side)
        try:
            with torch.no_grad():
                features = self.model.eval()(torch.zeros(2, channels, side, side))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise SettingError(
                f"backbone: timm's '{name}' cannot take images of side {side} ({_first_line(error)}). Set enlarge to a "
                "larger side, 64 or 224 say: images are then resized before they enter."
            ) from error
        self.feature_dim = int(features.shape[1])

    def forward(self, images: Tensor) -> Tensor:
        if self.side is not None and self.side != images.shape[-1]:
            images = F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)
        return self.model(images)


def _create(name: str, channels: int, side: int) -> Any:
    arguments = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    try:
        return vision.timm.create_model(name, img_size=side, **arguments)  # transformers fix their grid when built
    except (TypeError, AssertionError):
        return vision.timm.create_model(name, **arguments)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
