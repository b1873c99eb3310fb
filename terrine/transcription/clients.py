"""What a client is to the loop: class probabilities for the images that the generator poses.

Heads on shared public layers are one matrix product after one pass of the layers, networks of their own a pass each.

A client's answer depends on its own weights and on the batch of images, never on another client. One that was not
trained, because it has too few records, says that all classes are equally likely: its scores are zero.
"""

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from terrine.determinism.parallel import side_by_side
from terrine.device import fixed_kernels
from terrine.errors import SettingError
from terrine.models.backbone import Backbone, as_float
from terrine.models.statistics import batch_statistics
from terrine.teachers.kind import Arrays
from terrine.teachers.linear import LinearHeads
from terrine.teachers.networks import Classifier, load_state
from terrine.transcription.settings import TranscriptionTeacher


class Clients(Protocol):
    """A group of clients."""

    def probabilities(self, images: Tensor) -> Tensor:
        """Return float32 [clients, B, classes] for one batch of uint8 or float images [B, C, H, W], B ≥ 2. Private."""


class LinearClients:
    """Heads on one public backbone."""

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
    """Networks of one architecture, each with weights of its own.

    frame: the architecture; states: what replaces its entries, one client after the other.
    """

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
        """Return features and scores of the only client, with gradients for the images: NOT PRIVATE."""
        if len(self.networks) != 1:
            raise SettingError("Only a single teacher can take the student's place as discriminator.")
        network = self.networks[0]
        with batch_statistics(network, self.settings.statistics):
            features = network.network(as_float(images))
            return features, network.head(features)

    @torch.no_grad()
    def _scores(self, network: Classifier, images: Tensor) -> Tensor:
        with batch_statistics(network, self.settings.statistics), fixed_kernels(self.device):
            return network(images).float()
