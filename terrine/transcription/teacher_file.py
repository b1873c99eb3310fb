"""A teacher from a file: weights that were trained elsewhere, in an architecture of timm, torchvision or Terrine.

Nothing in a file is run: it is safetensors, or a state dict that torch reads with `weights_only`. It must hold all
weights of the architecture with as many classes as the data have, which is checked before anything else is done.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from terrine import vision
from terrine.errors import InputError, SettingError, first_line
from terrine.models.backbone import as_float
from terrine.models.registry import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.models.weights import read_state
from terrine.teachers.networks import Classifier
from terrine.transcription.settings import TranscriptionTeacher


class FileTeacher:
    """One client: a whole model. See `terrine.transcription.clients.Clients`.

    channels: the model's own. Grey images are given to a model of colour three times over.
    """

    def __init__(
        self, model: nn.Module, channels: int, settings: TranscriptionTeacher, device: torch.device | str = "cpu"
    ) -> None:
        self.model = model.to(device).eval().requires_grad_(False)
        self.mean, self.deviation = (
            torch.tensor(value, dtype=torch.float32, device=device).reshape(1, -1, 1, 1)
            for value in (settings.mean, settings.deviation)
        )
        self.settings, self.channels = settings, channels

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """See `Clients.probabilities`: float32 [1, B, classes]."""
        images = as_float(images)
        if self.channels == 3 and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        images = (images - self.mean) / self.deviation
        with batch_statistics(self.model, self.settings.statistics):
            return (self.model(images).float() / self.settings.temperature).softmax(-1)[None]


def load_model(
    path: Path, settings: TranscriptionTeacher, *, channels: int, size: int, classes: int
) -> tuple[nn.Module, int]:
    """Return the model in the file, images [B, C, size, size] to scores [B, classes], and its number of channels.

    Raises:
        SettingError: an architecture that nobody knows, or that takes no images of this size or of so many channels as
            it is said to be standardised with.
        InputError: a file that is missing, damaged, of another architecture, or of another number of classes.
    """
    architecture = settings.architecture
    model, taken = _build(architecture, channels, size, classes)
    _try(model, architecture, taken, size, classes)
    state = read_state(path, "transcription.teacher.file")
    _check(path, architecture, model, state, classes)
    own = model.state_dict()
    model.load_state_dict({name: state[name] for name in own if name in state}, strict=False)
    for name, value in (("mean", settings.mean), ("deviation", settings.deviation)):
        if isinstance(value, tuple) and len(value) not in (1, taken):
            raise SettingError(
                f"transcription.teacher.{name} has {len(value)} numbers, and the model {taken} channel(s). Give one "
                "number, or one for each channel."
            )
    return model, taken


def _build(architecture: str, channels: int, size: int, classes: int) -> tuple[nn.Module, int]:
    library, colon, name = architecture.partition(":")
    if not colon:
        backbone = build_backbone(architecture, channels=channels, size=size, seed=0)
        return Classifier(backbone.network, backbone.feature_dim, classes, 0), channels
    if library == "timm":
        if not vision.timm.is_model(name):
            raise SettingError(f"transcription.teacher.architecture={architecture}: timm has no such model.")
        return vision.timm.create_model(name, pretrained=False, num_classes=classes, in_chans=channels), channels
    if library == "torchvision":
        try:
            models = vision.torchvision.models
            if name not in models.list_models(module=models):  # detectors and others would fetch weights, too
                raise ValueError(name)
            return models.get_model(name, weights=None, num_classes=classes), 3
        except ValueError as error:
            raise SettingError(
                f"transcription.teacher.architecture={architecture}: torchvision has no such model that classifies "
                "images."
            ) from error
    raise SettingError(f"transcription.teacher.architecture={architecture}: use timm:NAME or torchvision:NAME.")


@torch.no_grad()
def _try(model: nn.Module, architecture: str, channels: int, size: int, classes: int) -> None:
    """Raise SettingError where the model makes no scores of images of this size: many take one size alone."""
    try:
        scores = model.eval()(torch.zeros(2, channels, size, size))
        fits = isinstance(scores, Tensor) and scores.shape == (2, classes)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise SettingError(
            f"transcription.teacher.architecture={architecture} takes no images of {size} × {size} pixels "
            f"({first_line(error)}). Set data.size as it was trained."
        ) from error
    if not fits:
        raise SettingError(
            f"transcription.teacher.architecture={architecture} makes no {classes} scores of an image. Take a model "
            "that classifies images."
        )


def _check(path: Path, architecture: str, model: nn.Module, state: Mapping[str, Tensor], classes: int) -> None:
    own = model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in own]
    if missing or foreign:
        which = f"it lacks '{missing[0]}'" if missing else f"it has '{foreign[0]}'"
        raise InputError(
            f"{path} holds no {architecture}: {which} ({len(missing)} missing, {len(foreign)} foreign). Set "
            "transcription.teacher.architecture to what it was trained as."
        )
    for name, value in own.items():
        given = state.get(name, value)
        if given.shape == value.shape:
            continue
        if value.dim() and value.shape[0] == classes and given.shape[1:] == value.shape[1:]:
            raise InputError(
                f"{path} is a teacher of {given.shape[0]} classes, and the data have {classes}. Give a teacher of the "
                "same classes, or the dataset it was trained for."
            )
        raise InputError(
            f"{path}: '{name}' is {list(given.shape)} where {architecture} has {list(value.shape)}. Set data.channels "
            "and data.size as it was trained."
        )
