"""Any architecture of timm as a backbone, without its classifier and with initial weights."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine import vision
from terrine.errors import SettingError, first_line
from terrine.geometry import Size, in_json, sides, size_of


class TimmNetwork(nn.Module):
    """timm's `name` from float images [B, channels, *size] to its pooled features [B, `feature_dim`].

    Images in [0, 1] are standardised as timm's own weights for the architecture expect them; grey ones by the mean over
    its colours. How, is stored with the weights.

    enlarge: side to which images are resized (bilinearly) first, for architectures that small images do not survive;
    None feeds them as they are. from_tensorflow: for weights from there; convolutions are padded below and to the
    right, where no even padding fits, and pixels run from -1 to 1. levels: features are the means of the maps at every
    level, one after the other (`forward_intermediates` of timm). mirrored: they are averaged over an image and its
    mirror image. Raises SettingError when the architecture cannot take the images, or cannot be padded so.
    """

    def __init__(
        self,
        name: str,
        channels: int,
        size: Size,
        enlarge: int | None = None,
        *,
        from_tensorflow: bool = False,
        levels: bool = False,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.side, self.levels, self.mirrored = enlarge, levels, mirrored
        size = enlarge or size
        self.model = _create(name, channels, size, from_tensorflow)
        usual = ((0.5,), (0.5,)) if from_tensorflow else _standardisation(self.model, channels)
        for key, values in zip(("mean", "deviation"), usual, strict=True):
            self.register_buffer(key, torch.tensor(values).reshape(1, -1, 1, 1))
        try:
            with torch.no_grad():
                features = self.eval()(torch.zeros(2, channels, *sides(size)))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise SettingError(
                f"backbone: timm's '{name}' cannot take images of side {in_json(size)} ({first_line(error)}). Set "
                "enlarge to a larger side, 64 or 224 say: images are then resized before they enter."
            ) from error
        self.feature_dim = int(features.shape[1])

    mean: Tensor
    deviation: Tensor

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        # Weights that were stored without standardisation were trained without.
        state.setdefault(prefix + "mean", torch.zeros_like(self.mean))
        state.setdefault(prefix + "deviation", torch.ones_like(self.deviation))
        super()._load_from_state_dict(state, prefix, *others)

    def forward(self, images: Tensor) -> Tensor:
        if self.side is not None and self.side != size_of(images.shape):
            images = F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)
        # Channels last: on a CPU convolutions of each channel by itself (MobileNet) take half the time then.
        images = ((images - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)
        if not self.mirrored:
            return self._features(images)
        # Not as one batch of both: whoever weighs images, or groups them, counts those there are.
        return (self._features(images) + self._features(images.flip(-1))) / 2

    def _features(self, images: Tensor) -> Tensor:
        if not self.levels:
            return self.model(images)
        maps = self.model.forward_intermediates(images, intermediates_only=True)
        return torch.cat([level.mean((2, 3)) for level in maps], dim=1)


def _create(name: str, channels: int, size: Size, from_tensorflow: bool) -> Any:
    arguments = {"pretrained": False, "num_classes": 0, "in_chans": channels}
    if from_tensorflow:
        try:
            return vision.timm.create_model(name, **arguments, pad_type="same")
        except TypeError as error:
            raise SettingError(
                f"backbone: timm's '{name}' has no padding of TensorFlow's. Set backbone.from_tensorflow=false."
            ) from error
    try:
        return vision.timm.create_model(name, img_size=size, **arguments)  # transformers fix their grid when built
    except (TypeError, AssertionError):
        return vision.timm.create_model(name, **arguments)


def _standardisation(model: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of every channel, as the weights that timm publishes were trained with."""
    config = model.pretrained_cfg
    mean, deviation = (tuple(config.get(key, (plain,))) for key, plain in (("mean", 0.0), ("std", 1.0)))
    if channels != len(mean):
        mean, deviation = (sum(mean) / len(mean),), (sum(deviation) / len(deviation),)
    return mean, deviation
