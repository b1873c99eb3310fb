"""Teachers that are networks, trained from scratch or fine-tuned from a public backbone.

**scratch** (classic PATE, Papernot et al. 2017): a whole network per teacher, trained on its own records. With
`original` statistics a teacher votes with the batch-norm statistics of its own records, recorded with the final
weights; with `current` statistics it votes with those of the query batch.

**finetune**: the last x % of a shared public backbone's parameters and a head are trained on a teacher's records.
With `current` statistics batch normalisation uses the current batch in training and in voting. With `original`
statistics it uses the backbone's stored ones, which never change. A teacher that trains no layer of the backbone then
equals a linear teacher on the same features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.device import fixed_kernels
from terrine.errors import SettingError
from terrine.geometry import Size
from terrine.queries import Queries
from terrine.settings import Field, Unit
from terrine.teachers.base import GradientTeachers, TeacherContext, TeacherKind, start_seed
from terrine.teachers.records import Arrays, Records, teacher_rows

if TYPE_CHECKING:
    from torch import Tensor

    from terrine.models.backbone import Backbone
    from terrine.models.statistics import Statistics
    from terrine.teachers.base import Device, TrainedStates
    from terrine.teachers.network_training import Classifier

BLOCK = 16
"""Number of networks whose votes are stored together."""

Architecture = Literal["small_cnn", "resnet10", "resnet18", "resnet34", "vgg9", "cryptonet", "pate_cnn"]

Trainable = Annotated[float, Unit("per cent"), Field(ge=0.5, le=100)]
"""Minimum percentage of the backbone's parameters, from its end, that are trained in addition to the head."""


class NetworkTeachers(GradientTeachers):
    """Teachers that are networks, each trained by Adam (Kingma and Ba 2015) on its own images."""

    inputs: ClassVar[Literal["features", "images"]] = "images"

    epochs: int = Field(50, ge=1)
    """Passes over a teacher's records."""
    batch: Annotated[int | None, Unit("records")] = Field(256, ge=2)
    """Records per teacher and step, at least 2 because batch statistics need them. null: all records in every step."""


class ScratchTeachers(NetworkTeachers):
    """Classic PATE: one network per teacher, trained on its own records (Papernot et al. 2017).

    With `original` statistics, the statistics of the teacher's own records under its final weights are recorded.
    """

    kind: Literal["scratch"] = "scratch"
    architecture: Architecture = "small_cnn"
    """Network architecture."""

    def build(self, context: TeacherContext) -> ScratchKind:
        return ScratchKind(self, context.channels, context.size, context.classes)


class FinetuneTeachers(NetworkTeachers):
    """Transfer-PATE (Li et al. 2023, section 4): teachers start from one public backbone and train its last layers.

    With `original` statistics, teachers use the backbone's stored statistics in training and in voting.
    """

    kind: Literal["finetune"] = "finetune"
    trainable: Trainable = 25.0
    """Minimum share of the backbone's weights that is trained, from the output side."""

    def check(self, run: Any) -> None:
        """Raise ValueError if the backbone has no weights."""
        super().check(run)
        check_weights(run, "kind")

    def build(self, context: TeacherContext) -> FinetuneKind:
        return FinetuneKind(self, context.backbone(), context.classes)


def check_weights(run: Any, key: str) -> None:
    """Raise ValueError if the backbone has no weights although the setting `key` is `finetune`."""
    if not run.backbone.has_weights:
        raise ValueError(
            f"teachers.{key}=finetune trains weights of the backbone, and backbone.kind={run.backbone.kind} has none. "
            f"Set teachers.{key}=linear, or backbone.kind to resnet10 or resnet18"
        )


class NetworkKind(TeacherKind):
    """Base class of the kinds whose teachers are networks: one state per file; teachers train and vote one by one.

    Attributes:
        state_keys: Names of a state's arrays in the classifier's `state_dict`.
        training_statistics: Statistics of batch normalisation during training.
    """

    stacked = False
    block = BLOCK
    settings: NetworkTeachers
    classes: int
    training_statistics: Statistics
    state_keys: list[str]

    def classifier(self, seed: int) -> Classifier:
        """Return a classifier with the initial weights of `seed`; parameters that are not trained need no gradient."""
        raise NotImplementedError

    def _finish(self, classifier: Classifier, images: Tensor) -> None:
        """Record a trained classifier's statistics on images, uint8 [records, C, H, W], if the settings require it."""

    @cached_property
    def min_records(self) -> int:  # type: ignore[override]
        """Smallest number of records: two if the network normalises a batch by its own statistics, else one."""
        from terrine.teachers.network_training import least_records

        return least_records(self.classifier(0), self.training_statistics)

    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """See `TeacherKind.train`."""
        import torch

        from terrine.teachers.network_training import forget_attention, train_classifier

        device, settings, values = torch.device(device), self.settings, records.checked_inputs("images")
        teachers, keys = records.trainable(teachers, self.min_records), self.state_keys
        rows = dict(zip(teachers, teacher_rows(records.assignment, teachers), strict=True))

        def train(item: tuple[int, Classifier]) -> tuple[int, Arrays]:
            teacher, classifier = item
            index = rows[teacher]
            images = torch.from_numpy(np.ascontiguousarray(values[index])).to(device)
            labels = torch.from_numpy(records.labels[index].astype(np.int64, copy=False)).to(device)
            with fixed_kernels(device):
                generator = torch_generator(seed, "teacher shuffle", teacher)
                train_classifier(classifier, images, labels, generator, self.training_statistics, settings)
                forget_attention(classifier)
                self._finish(classifier, images)
            state = classifier.state_dict()
            return teacher, {name: state[name].detach().cpu().numpy() for name in keys}

        # Created lazily, in the calling thread, because initial weights come from a generator that threads share.
        seeds = ((teacher, start_seed(seed, teacher, settings.initialisation)) for teacher in teachers)
        untrained = ((teacher, self.classifier(own).to(device)) for teacher, own in seeds)
        yield from side_by_side(train, untrained, device)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; see `vote_with_networks`."""
        from terrine.teachers.network_training import vote_with_networks

        return vote_with_networks(states, self.classifier(0), queries, self.settings.statistics, device=device)


class ScratchKind(NetworkKind):
    """The kind `scratch` for images of `channels` and `size`; a state is all weights and any recorded statistics.

    Training uses current statistics; voting uses `teachers.statistics`.
    """

    settings: ScratchTeachers
    training_statistics = "current"

    def __init__(self, settings: ScratchTeachers, channels: int, size: Size, classes: int) -> None:
        self.settings, self.channels, self.size, self.classes = settings, channels, size, classes

    def classifier(self, seed: int) -> Classifier:
        """See `NetworkKind.classifier`."""
        from terrine.models.architecture import build_backbone
        from terrine.teachers.network_training import Classifier

        backbone = build_backbone(self.settings.architecture, channels=self.channels, size=self.size, seed=seed)
        return Classifier(backbone.network, backbone.feature_dim, self.classes, seed)

    @cached_property
    def state_keys(self) -> list[str]:  # type: ignore[override]
        """See the base class."""
        classifier = self.classifier(0)
        recorded = classifier.named_buffers() if self.settings.statistics == "original" else ()
        buffers = [name for name, value in recorded if value.is_floating_point()]
        return [name for name, _ in classifier.named_parameters()] + buffers

    def _finish(self, classifier: Classifier, images: Tensor) -> None:
        import torch

        from terrine.models.backbone import as_float
        from terrine.models.statistics import has_batch_norm, record_statistics
        from terrine.teachers.network_training import count_batches

        if self.settings.statistics == "original" and has_batch_norm(classifier):
            batches = torch.tensor_split(images, count_batches(len(images), self.settings.batch))
            record_statistics(classifier, map(as_float, batches), "all")

    def initial(self, seed: int) -> Arrays:
        """Return the state of a classifier with the initial weights of `seed`."""
        state = self.classifier(seed).state_dict()
        return {name: state[name].numpy() for name in self.state_keys}


class FinetuneKind(NetworkKind):
    """The kind `finetune`: a teacher's state is its trained parameters.

    All teachers start from `backbone`, which is not changed. Its last parameters are trained as whole tensors
    (`terrine.models.weights`); the backbone's statistics stay the same.

    Attributes:
        share: Percentage of the backbone's parameters that is trained.

    Raises:
        SettingError: The backbone has no parameters.
    """

    def __init__(self, settings: FinetuneTeachers, backbone: Backbone, classes: int) -> None:
        from terrine.models.weights import last_parameters

        if not any(value.requires_grad for value in backbone.network.parameters()):
            raise SettingError(
                f"The backbone '{backbone.describe()['kind']}' has no weights to fine-tune. Use teachers.kind=linear, "
                "or a backbone with weights (resnet10, resnet18)."
            )
        self.settings, self.backbone, self.classes = settings, backbone, classes
        self.training_statistics = settings.statistics
        trained = last_parameters(backbone.network, settings.trainable)
        self.names = [name for name, _ in trained]
        self.state_keys = [*(f"network.{name}" for name in self.names), "head.weight", "head.bias"]
        total = sum(value.numel() for value in backbone.network.parameters())
        self.share = 100 * sum(value.numel() for _, value in trained) / total

    def classifier(self, seed: int) -> Classifier:
        """Return the backbone with the initial head of `seed`; only trained parameters require a gradient."""
        from terrine.teachers.network_training import Classifier

        classifier = Classifier(copy.deepcopy(self.backbone.network), self.backbone.feature_dim, self.classes, seed)
        for name, value in classifier.network.named_parameters():
            value.requires_grad_(name in set(self.names))
        return classifier
