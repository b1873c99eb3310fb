"""What the kinds of teachers have in common: the section `teachers` of a run's parameters, the models that vote.

A kind is a class below `Teachers` in a file of `terrine.teachers.kinds`: its settings, what they mean, and `build`,
which makes what trains and votes (`terrine.teachers.kind.TeacherKind`) and alone imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from terrine.errors import SettingError
from terrine.settings import Field, Settings, Unit

if TYPE_CHECKING:
    import numpy as np
    import torch

    from terrine.data.dataset import Dataset
    from terrine.data.partition import Parts
    from terrine.models.backbone import Backbone
    from terrine.npy import Rows
    from terrine.teachers.deformed import DeformedCopies
    from terrine.teachers.fitted import FittedTeachers
    from terrine.teachers.kind import TeacherKind
    from terrine.teachers.registry import TeacherContext


class Teachers(Settings):
    """Models that each learn from their own part of the private records, and vote (Papernot et al. 2017, section 2)."""

    shares_passes: ClassVar[bool] = False
    """Whether teachers learn in passes that they share, of which it was seen on the CPU alone that they mix nothing."""

    kind: str
    statistics: Literal["current", "original"] = "current"
    """Batch normalisation by the batch at hand, or by statistics that were stored before."""
    initialisation: Literal["shared", "own"] = "shared"
    """Whether all teachers start from the same public random weights, or each from its own."""
    per_task: Annotated[int, Unit("teachers")] = Field(25, ge=1)
    """Teachers trained together in one task."""

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

        from terrine.teachers.fitted import fit

        return fit(self, data, parts, backbone, seed=seed, device=torch.device(device))

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
    def not_at_parties(self) -> str | None:
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
    """Most records of one teacher that share batch statistics."""

    def shown(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | DeformedCopies:
        """Return what features are made of: the images, and behind them what else teachers see of them."""
        return images

    def repeated(self, values: np.ndarray) -> np.ndarray:
        """Return labels or teachers [records] of what is `shown`."""
        return values


class GradientTeachers(Teachers):
    """Teachers that learn by gradient steps."""

    learning_rate: float = Field(1e-3, gt=0)
    """Of Adam, or of a local step of averaged teachers."""
    weight_decay: float = Field(0.0, ge=0)
    """λ of λ/2 ‖w‖², added to the mean cross-entropy for every weight matrix and kernel w."""
    batch: Annotated[int | None, Unit("records")] = Field(256, ge=1)
    """Records of a teacher in a step; null takes all of them in every step."""


class NetworkTeachers(GradientTeachers):
    """Teachers that are networks, each trained by Adam (Kingma and Ba 2015) on its own images."""

    epochs: int = Field(50, ge=1)
    """Passes over a teacher's records."""
    batch: Annotated[int | None, Unit("records")] = Field(256, ge=2)
    """As of `GradientTeachers`; two at least, for a batch of one has no statistics."""

    @property
    def inputs(self) -> Literal["features", "images"]:
        return "images"
