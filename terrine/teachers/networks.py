"""Teachers that are networks: trained from scratch, or a public backbone whose last layers are fine-tuned.

**scratch** (classic PATE, Papernot et al. 2017): a whole network each, on its own records alone. With `original`
statistics a teacher votes with the batch-norm statistics of its own records, recorded with the final weights; with
`current` statistics with those of the query batch at hand.

**finetune**: the shared public backbone, its last x % of parameters and a head trained on a teacher's own records. With
`current` statistics batch normalisation uses the batch at hand, when training and when voting; with `original`
statistics the backbone's stored ones, which never change: a teacher that trains no layer of the backbone is the linear
teacher of the same features.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import torch_generator
from terrine.device import fixed_kernels
from terrine.errors import SettingError
from terrine.geometry import Size
from terrine.queries import Queries
from terrine.settings import Field, Unit
from terrine.teachers.base import GradientTeachers, TeacherContext, start_seed
from terrine.teachers.records import Arrays, Records, teacher_rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from terrine.models.backbone import Backbone
    from terrine.models.statistics import Statistics
    from terrine.teachers.network_training import Classifier

BLOCK = 16
"""Networks whose votes are kept together."""

Architecture = Literal["small_cnn", "resnet10", "resnet18", "resnet34", "vgg9", "cryptonet", "pate_cnn"]

Trainable = Annotated[float, Unit("per cent"), Field(ge=0.5, le=100)]
"""Percentage of the backbone's parameters, the last ones, that are trained at least; the head always is."""


class NetworkTeachers(GradientTeachers):
    """Teachers that are networks, each trained by Adam (Kingma and Ba 2015) on its own images."""

    epochs: int = Field(50, ge=1)
    """Passes over a teacher's records."""
    batch: Annotated[int | None, Unit("records")] = Field(256, ge=2)
    """Records per teacher and step, at least 2 because batch statistics need them. null: all records in every step."""

    @property
    def inputs(self) -> Literal["features", "images"]:
        return "images"


class ScratchTeachers(NetworkTeachers):
    """Classic PATE: a network each, on its own records alone (Papernot et al. 2017).

    statistics: `original` are those of the teacher's own records, recorded under its final weights.
    """

    kind: Literal["scratch"] = "scratch"
    architecture: Architecture = "small_cnn"
    """Network architecture."""

    def build(self, context: TeacherContext) -> ScratchKind:
        return ScratchKind(self, context.channels, context.size, context.classes)


class FinetuneTeachers(NetworkTeachers):
    """Transfer-PATE (Li et al. 2023, section 4): all teachers start from one public backbone and train its end.

    statistics: `original` are the backbone's own, when it learns and when it votes.
    """

    kind: Literal["finetune"] = "finetune"
    trainable: Trainable = 25.0
    """Minimum share of the backbone's weights that is trained, from the output side."""

    def check(self, run: Any) -> None:
        """Raise ValueError for a backbone without weights."""
        super().check(run)
        check_weights(run, "kind")

    def build(self, context: TeacherContext) -> FinetuneKind:
        return FinetuneKind(self, context.backbone(), context.classes)


def check_weights(run: Any, key: str) -> None:
    """Raise ValueError for a backbone without weights; key: the setting that is `finetune`."""
    if not run.backbone.has_weights:
        raise ValueError(
            f"teachers.{key}=finetune trains weights of the backbone, and backbone.kind={run.backbone.kind} has none. "
            f"Set teachers.{key}=linear, or backbone.kind to resnet10 or resnet18"
        )


class NetworkKind:
    """What kinds that are networks share: how their teachers are trained, kept one by one, and vote."""

    stacked = False
    block = BLOCK

    def __init__(self, settings: NetworkTeachers, classes: int) -> None:
        self.settings, self.classes = settings, classes

    def classifier(self, seed: int) -> Classifier:
        """Return a classifier with the initial weights of `seed`; what is not trained requires no gradient."""
        raise NotImplementedError

    @property
    def kept(self) -> list[str]:
        """Names of the state's entries in the classifier's `state_dict`."""
        raise NotImplementedError

    @property
    def training_statistics(self) -> Statistics:
        """Of batch normalisation while a teacher learns."""
        return self.settings.statistics

    def finish(self, classifier: Classifier, images: Tensor) -> None:
        """Record statistics of a trained classifier's images, uint8 [records, C, H, W], where they are wanted."""

    @cached_property
    def least(self) -> int:
        """See `TeacherKind`."""
        from terrine.teachers.network_training import least_records

        return least_records(self.classifier(0), self.training_statistics)

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each teacher that has enough records, in their order.

        Raises InputError for images of another type.
        """
        import torch

        from terrine.teachers.network_training import forget_attention, train_classifier

        device, settings, values = torch.device(device), self.settings, records.of("images")
        teachers, kept = records.enough(teachers, self.least), self.kept
        rows = dict(zip(teachers, teacher_rows(records.assignment, teachers), strict=True))

        def prepared(teacher: int) -> tuple[int, Classifier]:
            # In the calling thread: initial weights come from a generator that threads share.
            return teacher, self.classifier(start_seed(seed, teacher, settings.initialisation)).to(device)

        def train(item: tuple[int, Classifier]) -> tuple[int, Arrays]:
            teacher, classifier = item
            index = rows[teacher]
            images = torch.from_numpy(np.ascontiguousarray(values[index])).to(device)
            labels = torch.from_numpy(records.labels[index].astype(np.int64, copy=False)).to(device)
            with fixed_kernels(device):
                generator = torch_generator(seed, "teacher shuffle", teacher)
                train_classifier(classifier, images, labels, generator, self.training_statistics, settings)
                forget_attention(classifier)
                self.finish(classifier, images)
            state = classifier.state_dict()
            return teacher, {name: state[name].detach().cpu().numpy() for name in kept}

        yield from side_by_side(train, map(prepared, teachers), device)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]; see `vote_with_networks`."""
        from terrine.teachers.network_training import vote_with_networks

        frame = self.classifier(0)
        return vote_with_networks(states, frame, queries, self.settings.statistics, device=device)


class ScratchKind(NetworkKind):
    """The kind `scratch`, see `terrine.teachers.base`: a state is all weights, and recorded statistics if they count.

    channels, size: of the images.
    """

    settings: ScratchTeachers

    def __init__(self, settings: ScratchTeachers, channels: int, size: Size, classes: int) -> None:
        super().__init__(settings, classes)
        self.channels, self.size = channels, size

    def classifier(self, seed: int) -> Classifier:
        """Return a classifier with the initial weights of `seed`."""
        from terrine.models.architecture import build_backbone
        from terrine.teachers.network_training import Classifier

        backbone = build_backbone(self.settings.architecture, channels=self.channels, size=self.size, seed=seed)
        return Classifier(backbone.network, backbone.feature_dim, self.classes, seed)

    @property
    def kept(self) -> list[str]:
        classifier = self.classifier(0)
        recorded = classifier.named_buffers() if self.settings.statistics == "original" else ()
        buffers = [name for name, value in recorded if value.is_floating_point()]
        return [name for name, _ in classifier.named_parameters()] + buffers

    @property
    def training_statistics(self) -> Statistics:
        """It learns under current statistics, whatever it votes with."""
        return "current"

    def finish(self, classifier: Classifier, images: Tensor) -> None:
        import torch

        from terrine.models.backbone import as_float
        from terrine.models.statistics import has_batch_norm, record_statistics
        from terrine.teachers.network_training import parts

        if self.settings.statistics == "original" and has_batch_norm(classifier):
            batches = torch.tensor_split(images, parts(len(images), self.settings.batch))
            record_statistics(classifier, map(as_float, batches), "all")

    def initial(self, seed: int) -> Arrays:
        """Return the state of a classifier with the initial weights of `seed`."""
        state = self.classifier(seed).state_dict()
        return {name: state[name].numpy() for name in self.kept}


class FinetuneKind(NetworkKind):
    """The kind `finetune`, see `terrine.teachers.base`: a state is the trained parameters alone.

    backbone: what all teachers start from; it is not changed. Its last parameters are trained as whole tensors
    (`terrine.models.weights`). Raises SettingError for a backbone that has no parameters.
    """

    def __init__(self, settings: FinetuneTeachers, backbone: Backbone, classes: int) -> None:
        from terrine.models.weights import last_parameters

        if not any(value.requires_grad for value in backbone.network.parameters()):
            raise SettingError(
                f"The backbone '{backbone.describe()['kind']}' has no weights to fine-tune. Use teachers.kind=linear, "
                "or a backbone with weights (resnet10, resnet18)."
            )
        super().__init__(settings, classes)
        self.backbone = backbone
        self.names = [name for name, _ in last_parameters(backbone.network, settings.trainable)]

    @property
    def share(self) -> float:
        """The percentage of the backbone's parameters that is trained, as whole tensors allow."""
        sizes = {name: value.numel() for name, value in self.backbone.network.named_parameters()}
        return 100 * sum(sizes[name] for name in self.names) / sum(sizes.values())

    def classifier(self, seed: int) -> Classifier:
        """Return the backbone with the initial head of `seed`; only what is trained requires a gradient."""
        from terrine.teachers.network_training import Classifier

        classifier = Classifier(copy.deepcopy(self.backbone.network), self.backbone.feature_dim, self.classes, seed)
        for name, value in classifier.network.named_parameters():
            value.requires_grad_(name in set(self.names))
        return classifier

    @property
    def kept(self) -> list[str]:
        """See `NetworkKind`; the backbone's statistics stay as they are."""
        return [*(f"network.{name}" for name in self.names), "head.weight", "head.bias"]
