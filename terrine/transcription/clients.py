"""Clients of transcription: models that return class probabilities of generated images.

`LinearClients` are heads on a shared public backbone, `NetworkClients` are separate networks, and a `FileTeacher` has
weights trained elsewhere, in an architecture of timm, torchvision or Terrine. A client's probabilities depend only on
its weights and on the batch. Clients with too few records are untrained: all their scores are zero.

A file is safetensors, or a state dict read with `weights_only`, so it cannot run code. The file must contain all
weights of the architecture for the classes of the data, which is checked first.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from terrine import vision
from terrine.determinism.parallel import side_by_side
from terrine.device import fixed_kernels
from terrine.errors import InputError, SettingError, first_line
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import batch_statistics
from terrine.models.weights import read_state
from terrine.teachers.linear import LinearHeads
from terrine.teachers.network_training import Classifier, load_state
from terrine.teachers.records import Arrays
from terrine.transcription.settings import TranscriptionTeacher


class Clients(Protocol):
    """Interface of a group of clients."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Return float32 [clients, B, classes] for a batch of uint8 or float images [B, C, H, W], B ≥ 2. Private."""


class LinearClients:
    """Clients that are linear heads on one public backbone."""

    def __init__(
        self, backbone: Backbone, heads: LinearHeads, settings: TranscriptionTeacher, device: torch.device | str = "cpu"
    ) -> None:
        self.backbone, self.temperature = backbone.to(device), settings.temperature
        self.weight = torch.tensor(heads.weight, device=device).flatten(0, 1)
        self.bias = torch.tensor(heads.bias, device=device).flatten()
        self.shape = heads.bias.shape

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """See `Clients.probabilities`."""
        scores = torch.addmm(self.bias, self.backbone.features(images, "current"), self.weight.T)
        scores = scores.view(len(images), *self.shape).transpose(0, 1)
        return (scores / self.temperature).softmax(-1)


class NetworkClients:
    """Networks of one architecture: `frame` with the weights in `states`, one entry per client."""

    def __init__(
        self,
        frame: Classifier,
        states: Sequence[Arrays],
        settings: TranscriptionTeacher,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings, self.device = settings, torch.device(device)
        self.networks = []
        for state in states:
            network = copy.deepcopy(frame)
            load_state(network, state)
            self.networks.append(network.to(self.device).requires_grad_(False))

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """See `Clients.probabilities`."""
        scores = torch.stack(list(side_by_side(lambda own: self._scores(own, images), self.networks, self.device)))
        return (scores / self.settings.temperature).softmax(-1)

    def discriminate(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and scores of the single client, with gradients for the images: NOT PRIVATE."""
        if len(self.networks) != 1:
            raise SettingError("Only a single teacher can be the discriminator.")
        network = self.networks[0]
        with batch_statistics(network, self.settings.statistics):
            features = network.network(as_float(images))
            return features, network.head(features)

    @torch.no_grad()
    def _scores(self, network: Classifier, images: Tensor) -> Tensor:
        with batch_statistics(network, self.settings.statistics), fixed_kernels(self.device):
            return network(images).float()


class FileTeacher:
    """One client with a model from a file; `channels` are the model's. Grey images are repeated for three channels."""

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
    """Load a model, images [B, C, size, size] to scores [B, classes], and its number of channels.

    Raises:
        SettingError: The architecture is unknown, or does not take these images or this normalisation.
        InputError: The file is missing, damaged, of another architecture or for another number of classes.
    """
    architecture = settings.architecture
    model, taken = _build(architecture, channels, size, classes)
    _try(model, architecture, taken, size, classes)
    state, own = read_state(path, "transcription.teacher.file"), model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in own]
    if missing or foreign:
        which = f"it lacks '{missing[0]}'" if missing else f"it has '{foreign[0]}'"
        raise InputError(
            f"{path} holds no {architecture}: {which} ({len(missing)} missing, {len(foreign)} foreign). Set "
            "transcription.teacher.architecture to the architecture of the file."
        )
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # its text names the weights whose shapes differ
        raise InputError(
            f"{path} does not fit {architecture} for {classes} classes: {' '.join(str(error).split())} Give a teacher "
            "of the same classes, and set data.channels and data.size as it was trained."
        ) from error
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
            if name not in models.list_models(module=models):  # detectors and others would also fetch weights
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
    """Raise SettingError if the model does not return scores for images of this size."""
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
            f"transcription.teacher.architecture={architecture} does not return {classes} scores per image. Use an "
            "image classifier."
        )
