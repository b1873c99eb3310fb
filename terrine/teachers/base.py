"""Base classes of teachers: their settings, the object that trains them and casts their votes, and the registry.

A kind of teacher is a subclass of `Teachers` in a module listed in `TEACHERS`: it contains the kind's settings and
`build`, which returns its `TeacherKind`. These modules import torch inside functions, so reading settings needs none.

Formal guarantees of every kind:
- A teacher is a function of its records, its settings, the seed and its number. No record of another teacher enters
  it, not even through batch statistics, so one record affects one teacher and moves one vote.
- The number of other teachers' records has no effect on it either, not even in the last bit: no precision, shape, batch
  or order of its arithmetic depends on it. Teachers are trained and vote one after the other, with two exceptions.
  `linear` (and heads of `averaged`) stacks teachers with equally many records on the CPU, in products that treat
  matrices separately; `prompt` teachers share passes through a frozen network whose shapes are fixed by settings.
- On the CPU a teacher is the same to the last bit for every grouping of teachers into tasks and every number of
  threads; a `prompt` teacher is the same in every group up to floating-point error.
- A teacher with fewer than `min_records` records, or fewer than its features need, is not trained; this is not an error
  (`terrine.teachers.ensemble.fallback_votes`). A teacher's record count affects only that teacher.
- The state of a teacher consists of named numeric arrays, stored as safetensors; nothing is pickled.
- Votes are cast on fixed batches of queries, the same for all teachers, and change no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from terrine.determinism.randomness import derive_seed
from terrine.errors import SettingError
from terrine.geometry import Size, size_of
from terrine.settings import Field, Kinds, Settings, Unit

if TYPE_CHECKING:
    import torch

    from terrine.aggregation.votes import Findings
    from terrine.data.dataset import Dataset
    from terrine.data.partition import Parts
    from terrine.models.backbone import Backbone
    from terrine.npy import Rows
    from terrine.queries import Queries
    from terrine.teachers.averaging.averaged import RoundState
    from terrine.teachers.ensemble import FittedTeachers
    from terrine.teachers.records import Arrays, AugmentedCopies, Records

    Device = torch.device | str
    TrainedStates = Iterator[tuple[int, Arrays]]


class TeacherKind(ABC):
    """Object that trains teachers of one kind and casts their votes; made by `Teachers.build`.

    Attributes:
        stacked: Whether states are small and have equal shapes, so that one file holds those of all teachers.
        block: Number of teachers that vote together.
        min_records: Minimum number of records; a teacher with fewer is not trained.
    """

    stacked: bool = True
    block: int = 64
    min_records: int = 1

    @abstractmethod
    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """Yield (number, state) of each teacher, in order, each trained on its own records.

        Teachers with too few records are skipped. Pass them nevertheless, because a shared computation reserves a place
        for each teacher.

        Raises:
            InputError: This kind of teacher cannot learn from the records.
        """

    @abstractmethod
    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return each teacher's class for each query: unsigned integers [queries, teachers], smallest type that fits.

        If states are `stacked`, zeros replace the state of an untrained teacher, and the caller replaces its column by
        fallback votes (`terrine.teachers.ensemble`): all arithmetic has the same shapes with that teacher as without.
        """


@dataclass(frozen=True)
class TeacherContext:
    """Facts about a run from which `Teachers.build` makes a kind.

    Attributes:
        backbone: Function that loads the public backbone.
        seed: The run's seed; averaged teachers start from public weights that depend on it.
        parties: Number of parties that average with one another.
        start: Function that loads the averages of earlier rounds.
        by_teacher: Whether features come from a backbone, so that they must have been computed teacher by teacher
            (`terrine.teachers.records`).
        findings: Number and bound of findings; None if a record has a single class.
    """

    classes: int
    channels: int
    size: Size
    backbone: Callable[[], Backbone]
    seed: int = 0
    parties: int = 0
    start: Callable[[], RoundState] | None = None
    by_teacher: bool = False
    findings: Findings | None = None


class Teachers(Settings):
    """Models that each learn from their own part of the private records, and vote (Papernot et al. 2017, section 2)."""

    shares_passes: ClassVar[bool] = False
    """True if teachers share passes; their isolation was tested only on the CPU."""
    inputs: ClassVar[Literal["features", "images"]] = "features"
    """Training inputs: features of the frozen backbone (of a table: its columns), or images."""
    averages: ClassVar[bool] = False
    """True if every teacher depends on the records of all others."""
    releases_averages: ClassVar[bool] = False
    """True if averages among teachers are released with noise."""
    unprotected: ClassVar[bool] = False
    """True if teachers average without noise, so that noise on votes guarantees nothing."""
    party_restriction: ClassVar[str | None] = None
    """Error message if separate institutions cannot use these settings, or None."""

    kind: str
    statistics: Literal["current", "original"] = "current"
    """Batch normalisation statistics: those of the current batch, or the original ones of the backbone."""
    initialisation: Literal["shared", "own"] = "shared"
    """Initial weights: the same public random weights for all teachers, or different ones for each."""
    per_task: Annotated[int, Unit("teachers")] = Field(25, ge=1)
    """Number of teachers trained together in one task."""

    def build(self, context: TeacherContext) -> TeacherKind:
        """Return the object that trains and votes. Raises SettingError if the settings do not suit the context."""
        raise NotImplementedError

    def fit(
        self, data: Dataset, parts: Parts, backbone: Backbone | None = None, *, seed: int = 0, device: Device = "cpu"
    ) -> FittedTeachers:
        """Train teachers, each on its own part of the records; no batch mixes records of two teachers.

        Args:
            data: Dataset with the training records and labels.
            parts: The assignment of this dataset's records to teachers (`terrine.data.partition.partition`).
            backbone: Computes features; None for teachers that learn from images or a table's rows.
            seed: Seed of the training and of deformed copies.
            device: Device of the computation.

        Returns:
            The trained teachers, which are private. A teacher with too few records is not trained, and its votes are
            pseudorandom.

        Raises:
            SettingError: The settings do not suit the data, or teachers learn from one another.
            InputError: The parts belong to another dataset.
        """
        import torch

        from terrine.data.partition import check_parts
        from terrine.teachers.ensemble import FittedTeachers
        from terrine.teachers.memory import train_within_memory
        from terrine.teachers.records import PrivateFeatures, Records, private_features

        device = torch.device(device)
        if self.averages:
            raise SettingError(
                f"teachers.kind={self.kind} average in rounds that are separate releases. Run them in the pipeline, "
                "which accounts for both."
            )
        if data.several:
            raise SettingError(f"{data.name} has several findings: run it in the pipeline (docs/targets.md).")
        self.refuse_shared_passes(device, public=data.public)
        check_parts(parts, data)

        def given() -> Backbone:
            if backbone is None:
                raise SettingError(f"teachers.kind={self.kind} needs a backbone: fit(data, parts, backbone).")
            return backbone

        inputs: np.ndarray | PrivateFeatures = data.train_images
        features = self if isinstance(self, FeatureTeachers) else None
        by_teacher = features is not None and data.column_names is None
        labels, assignment = data.train_labels, parts.assignment
        if features is not None and by_teacher:
            images = features.augmented_images(data.train_images, assignment, seed=seed)
            labels, assignment = features.repeat_for_copies(labels), features.repeat_for_copies(assignment)
            inputs = private_features(
                given(), images, assignment, self.statistics, most=features.feature_batch, device=device
            )
        elif features is not None:
            if features.repeat_for_copies(labels) is not labels:
                raise SettingError(f"{data.name} is a table, whose rows have no deformed copies. Set copies to 0.")
            inputs = PrivateFeatures.of_rows(data.train_images)
        records = Records(inputs, labels, assignment, data.classes)
        channels, size = data.train_images.shape[1], size_of(data.train_images.shape)
        kind = self.build(
            TeacherContext(data.classes, channels, size, given, seed, parts.teachers, by_teacher=by_teacher)
        )
        states: dict[int, Arrays] = {}
        train_within_memory(
            lambda part: kind.train(records, part, seed=seed, device=device),
            range(self.voters(parts.teachers)),
            states.__setitem__,
            public=data.public,
        )
        return FittedTeachers(self, kind, states, data, parts, backbone, seed, device)

    def refuse_shared_passes(self, device: torch.device, *, public: bool) -> None:
        """Raise SettingError for shared passes over private data on an accelerator: isolation is untested there."""
        if device.type != "cpu" and self.shares_passes and not public:
            raise SettingError(
                f"teachers.kind={self.kind} shares passes between teachers. Their isolation was tested only on the "
                f"CPU, not on {device.type}, and the data are not public: set device=cpu, or use another kind."
            )

    def voters(self, parties: int) -> int:
        """Return the number of models that vote: one per party, or per group of parties."""
        return parties

    def check(self, run: Any) -> None:
        """Raise ValueError if the teachers need images but the data are a table."""
        if run.data.name == "table" and self.inputs == "images":
            raise ValueError(
                f"teachers.kind={self.kind} learns from images, and data.name=table has none. Set teachers.kind to "
                "estimator or linear"
            )


class FeatureTeachers(Teachers):
    """Teachers that learn from features of the frozen backbone."""

    feature_batch: Annotated[int, Unit("records")] = Field(500, ge=2)
    """Maximum number of records of one teacher that share batch statistics."""

    def augmented_images(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | AugmentedCopies:
        """Return the images [records, C, H, W] from which features are computed, followed by deformed copies if any."""
        return images

    def repeat_for_copies(self, values: np.ndarray) -> np.ndarray:
        """Return labels or teachers [records], repeated for each image of `augmented_images`."""
        return values


class GradientTeachers(Teachers):
    """Teachers that learn by gradient steps."""

    learning_rate: float = Field(1e-3, gt=0)
    """Adam learning rate, or the local step size of averaged teachers."""
    weight_decay: float = Field(0.0, ge=0)
    """λ of the penalty λ/2 ‖w‖², added to the mean cross-entropy for every weight matrix and kernel w."""
    batch: Annotated[int | None, Unit("records")] = Field(256, ge=1)
    """Records per teacher and step. null: all records in every step."""


TEACHERS = Kinds(
    "teachers",
    Teachers,
    *("terrine.teachers." + name for name in ("linear", "networks", "estimator", "prompt", "averaging.averaged")),
    default="linear",
)


def start_seed(seed: int, teacher: int, initialisation: str) -> int:
    """Return the seed of a teacher's initial weights: the run's if `shared`, otherwise a different one per teacher.

    Both are public, so they cost no privacy. A shared start makes teachers agree more (Anonymous 2025, section 4).
    """
    return seed if initialisation == "shared" else derive_seed(seed, "own initialisation", teacher)
