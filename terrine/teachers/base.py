"""Teachers: the settings that kinds have in common, what a kind builds, and the registry.

A kind is a class below `Teachers` in a file that `TEACHERS` names: its settings, and `build`, which makes what trains
and votes (`TeacherKind`). Files of kinds import torch inside functions, so that reading parameters needs none.

Formal guarantees of every kind:
- A teacher is a function of its own records, its settings, the seed and its number. No other teacher's record enters
  it, not even through batch statistics, so one record touches one teacher and moves one vote.
- How many records other teachers have does not enter it either, not by a bit: no precision, shape, batch or order of
  its arithmetic follows from their numbers. Teachers are trained and vote one after the other, with two exceptions.
  `linear` (and heads of `averaged`) stacks teachers with equally many records on the CPU, in products that treat them
  one by one; `prompt` teachers share passes through a frozen network whose shapes are fixed by settings alone.
- On the CPU it is the same to the last bit however teachers are grouped into tasks and however many threads there are;
  a `prompt` teacher agrees with itself in another group within floating point.
- A teacher with fewer than `least` records, or fewer than its features need, is not trained and is no error
  (`terrine.teachers.ensemble.fallback_votes`): how many a teacher has decides about that teacher alone.
- Its state is arrays of numbers by name, so it travels as safetensors; nothing is pickled.
- Votes are cast on fixed batches of queries, which all teachers share, and touch no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

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


class TeacherKind(Protocol):
    """What trains and votes: made by `Teachers.build` of a kind's settings.

    stacked: states of all teachers have equal shapes and are small, so they are kept in one file.
    block: teachers that vote together.
    least: records without which a teacher is not trained.
    """

    stacked: bool
    block: int

    @property
    def least(self) -> int:
        """See the class."""
        ...

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each of the teachers, in their order, each trained on its own records.

        Teachers with too few records are passed over. They are to be asked for all the same: where teachers share a
        computation, it has a place for each that is asked for.
        """
        ...

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str) -> np.ndarray:
        """Return the class of every query by every teacher: unsigned integers [queries, teachers], smallest type.

        Where states are `stacked`, zeros take the place of a teacher that was not trained, and what comes out there is
        not its vote (`terrine.teachers.ensemble`): the others' arithmetic has the same shapes with it and without.
        """
        ...


@dataclass(frozen=True)
class TeacherContext:
    """What a kind finds around it: the number of classes, the images' geometry, and the backbone, loaded if wanted.

    Averaged teachers also want the seed of the run (what they start from is public and shared), how many parties there
    are, and the averages of their rounds, loaded if wanted. by_teacher: features of records are a backbone's, so kinds
    that learn from features refuse all that were not computed teacher by teacher (`terrine.teachers.records`).
    findings: where a record has several; None where it is of one class.
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
    """Whether teachers learn in passes that they share, of which it was seen on the CPU alone that they mix nothing."""

    kind: str
    statistics: Literal["current", "original"] = "current"
    """Batch normalisation statistics: those of the current batch, or the original ones of the backbone."""
    initialisation: Literal["shared", "own"] = "shared"
    """Initial weights: the same public random weights for all teachers, or different ones for each."""
    per_task: Annotated[int, Unit("teachers")] = Field(25, ge=1)
    """Number of teachers trained together in one task."""

    def build(self, context: TeacherContext) -> TeacherKind:
        """Return what trains and votes. Raises SettingError where these settings do not suit what is found around."""
        raise NotImplementedError

    def fit(
        self,
        data: Dataset,
        parts: Parts,
        backbone: Backbone | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> FittedTeachers:
        """Train teachers, each from its own part of the records, which no batch ever mixes with another's.

        Args:
            parts: Who learns from what, of this very dataset (`terrine.data.partition.partition`).
            backbone: What makes features; None for teachers that learn from images or a table's rows.

        Returns:
            The teachers: private. One with too few records is not trained, and votes by a rule that reads none.

        Raises:
            SettingError: settings that do not suit the data, or teachers that learn from one another.
            InputError: parts of another dataset.
        """
        import torch

        from terrine.data.partition import check_parts
        from terrine.teachers.ensemble import FittedTeachers
        from terrine.teachers.memory import train_within_memory
        from terrine.teachers.records import PrivateFeatures, Records, private_features

        device = torch.device(device)
        if self.averages:
            raise SettingError(
                f"teachers.kind={self.kind} learn from one another, in rounds that are releases of their own: run them "
                "in the pipeline, which keeps account of both."
            )
        if data.several:
            raise SettingError(f"{data.name} has several findings: run it in the pipeline (docs/targets.md).")
        self.refuse_shared_passes(device, public=data.public)
        check_parts(parts, data)

        def given() -> Backbone:
            if backbone is None:
                raise SettingError(f"teachers.kind={self.kind} want a backbone: fit(data, parts, backbone).")
            return backbone

        inputs: np.ndarray | PrivateFeatures = data.train_images
        features = self if isinstance(self, FeatureTeachers) else None
        by_teacher = features is not None and data.column_names is None
        labels, assignment = data.train_labels, parts.assignment
        if features is not None and by_teacher:
            images = features.shown(data.train_images, assignment, seed=seed)
            labels, assignment = features.repeated(labels), features.repeated(assignment)
            inputs = private_features(
                given(), images, assignment, self.statistics, most=features.feature_batch, device=device
            )
        elif features is not None:
            if features.repeated(labels) is not labels:
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
        """Raise SettingError for an accelerator where it was never seen that one teacher's records do not move another,
        and the data are not public."""
        if device.type != "cpu" and self.shares_passes and not public:
            raise SettingError(
                f"teachers.kind={self.kind} shares passes between teachers. That one teacher's records move no other "
                f"was seen on the CPU alone, not on {device.type}, and the data are not public: set device=cpu, or use "
                "another kind."
            )

    @property
    def inputs(self) -> Literal["features", "images"]:
        """What they learn from: features of the frozen backbone, or a table's columns; or images."""
        return "features"

    @property
    def averages(self) -> bool:
        """Whether every teacher learns from every other."""
        return False

    @property
    def releases_averages(self) -> bool:
        """Whether what they learn from one another is a release with noise."""
        return False

    @property
    def unprotected(self) -> bool:
        """Whether they learn from one another without noise, so that votes alone guarantee nothing."""
        return False

    @property
    def party_restriction(self) -> str | None:
        """Why institutions that show one another nothing cannot have such teachers; None where they can."""
        return None

    def voters(self, parties: int) -> int:
        """Return how many vote: every party, or every group of them."""
        return parties

    def check(self, run: Any) -> None:
        """Raise ValueError where teachers that learn from images are to learn from a table."""
        if run.data.name == "table" and self.inputs == "images":
            raise ValueError(
                f"teachers.kind={self.kind} learns from images, and data.name=table has none. Set teachers.kind to "
                "estimator or linear"
            )


class FeatureTeachers(Teachers):
    """Teachers that learn from features of the frozen backbone."""

    feature_batch: Annotated[int, Unit("records")] = Field(500, ge=2)
    """Maximum number of records of one teacher that share batch statistics."""

    def shown(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | AugmentedCopies:
        """Return what features are made of: the images, and behind them what else teachers see of them."""
        return images

    def repeated(self, values: np.ndarray) -> np.ndarray:
        """Return labels or teachers [records] of what is `shown`."""
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
    """Return the seed of a teacher's initial weights: the run's if they are `shared`, one of its `own` otherwise.

    Both are public, so they cost no privacy. A shared start makes teachers agree more (Anonymous 2025, section 4).
    """
    return seed if initialisation == "shared" else derive_seed(seed, "own initialisation", teacher)
