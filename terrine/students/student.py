"""What every kind of student has in common: public images and released answers in, weights out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from terrine.errors import SettingError
from terrine.settings import Field, Kinds, Settings, Unit

if TYPE_CHECKING:
    import torch

    from terrine.aggregation.aggregation import Aggregation
    from terrine.aggregation.release import Release
    from terrine.models.backbone import Backbone
    from terrine.queries import Queries
    from terrine.students.fitted import FittedStudent
    from terrine.students.material import Material, TrainedStudent

Progress = Callable[[float, str], None]
"""Called with (fraction done, a line about it)."""


class Student(Settings, ABC):
    """A way to train the model that leaves the building; its fields are its settings.

    Guarantee of an implementation: what `train` returns is a function of `Material` (all of which is public or
    released), its settings and the seed. So it is post-processing, costs no privacy, and may be repeated and compared
    at will.
    """

    looks_at_more: ClassVar[bool] = False
    """Whether it looks at public images that have no answer."""

    kind: str
    statistics: Literal["current", "original"] = "current"
    """Batch statistics that the student is trained and used with: those of the batch, or the backbone's own."""
    batch: Annotated[int, Unit("images")] = Field(500, ge=2)
    """How many share batch statistics when the student is evaluated."""
    l2: float | None = Field(None, ge=0)
    """Precision of the prior on a class's score; null chooses it on released answers."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Released labels: share of each that is spread evenly over the classes."""
    forward_correction: bool = False
    """Released labels: let the student allow for the mechanism's noise, known from its sigma, the teachers and the
    classes."""

    @abstractmethod
    def train(
        self,
        material: Material,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> TrainedStudent:
        """Train a student on `device`.

        With `work`, a folder of this very training, a long training writes its state there and goes on from what it
        finds; on a CPU with equally many threads the end is the same to the last bit. Raises SettingError for settings
        that do not suit the backbone, and ArtefactError when `work` belongs to another training.
        """

    def fit(
        self,
        queries: Queries,
        release: Release,
        backbone: Backbone,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
    ) -> FittedStudent:
        """Train a student on what was released: post-processing, which costs no privacy.

        Args:
            queries: The public images that teachers were asked about, uint8 [queries, C, H, W].
            backbone: The public backbone, which stays as it is.

        Returns:
            The student: like the release, it may be published.

        Raises:
            InputError: a release about other images, or without answers.
            SettingError: settings that do not suit the backbone or the release.
        """
        from terrine.students.fitted import fit

        return fit(self, queries, release, backbone, seed=seed, device=device, progress=progress)

    @model_validator(mode="after")
    def _one_remedy(self) -> Student:
        if self.label_smoothing and self.forward_correction:
            raise ValueError(
                f"label_smoothing={self.label_smoothing:g} and forward_correction=true are two remedies for one ill. "
                "Use one of them"
            )
        return self

    def check(self, run: Any) -> None:
        self.check_mechanism(run.aggregation)

    def check_mechanism(self, mechanism: Aggregation) -> None:
        """Raise SettingError for answers that it cannot correct: that is derived for labels with Gaussian noise."""
        if self.forward_correction and not (mechanism.gaussian and mechanism.reveals == "argmax"):
            raise SettingError(
                f"student.forward_correction=true does not go with aggregation.mechanism={mechanism.mechanism}: it "
                "is derived for labels with Gaussian noise. Set it to false"
            )


STUDENTS: Kinds[Student] = Kinds("student", Student, "terrine.students.kinds", default="linear")
