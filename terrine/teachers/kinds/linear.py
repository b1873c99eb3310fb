"""The kind `linear`: a head on the frozen backbone's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from terrine.models.kinds.scattering import Deformations
from terrine.settings import Field, Unit
from terrine.teachers.teachers import FeatureTeachers, GradientTeachers

if TYPE_CHECKING:
    from terrine.npy import Rows
    from terrine.teachers.deformed import DeformedCopies
    from terrine.teachers.linear import LinearKind
    from terrine.teachers.registry import TeacherContext


class CopyDeformations(Deformations):
    """The largest amount of each deformation of a copy: unless said otherwise, half of what features may forget."""

    rotation: Annotated[float, Unit("degrees")] = Field(7.5, ge=0, le=180)
    scale: float = Field(0.06, ge=0, lt=1)
    shear: float = Field(0.1, ge=0)
    shift: float = Field(1 / 14, ge=0)


class LinearTeachers(FeatureTeachers, GradientTeachers):
    """Linear heads; a ridge regression is the better teacher of few records, `adam` is the setting of DIET-PATE.

    `initialisation` and the settings of gradient steps are `adam`'s: a closed form has no start.
    """

    kind: Literal["linear"] = "linear"
    statistics: Literal["current", "original", "halfway"] = "current"
    """Batch normalisation by the batch at hand, by statistics that were stored before, or by the batch's mean and the
    geometric mean of both deviations."""
    optimiser: Literal["adam", "ridge"] = "ridge"
    """`ridge`: least squares on one-hot labels, solved exactly. `adam`: cross-entropy (Kingma and Ba 2015)."""
    ridge: float = Field(0.1, ge=1e-6)
    """Penalty in units of a record's mean squared distance from its teacher's mean; as much for each deformed copy."""
    prior: float = Field(0.5, gt=0, le=1)
    """`ridge`: how much of the classes' frequencies among its own records a teacher's scores keep. Teachers of few
    records call what they are unsure of by the larger class, and a majority of them does so more often than each: less
    than 1 takes some of that back. A teacher that has records of one class alone then votes for a class by lot."""
    epochs: int = Field(50, ge=1)
    """`adam`: passes over a teacher's records."""
    copies: int = Field(0, ge=0, le=100)
    """Deformed copies of each of its images that a teacher learns from beside it. They cost time, and no privacy."""
    deformations: CopyDeformations = CopyDeformations()
    """What is done to a copy: what leaves an image the same."""

    def repeated(self, values: np.ndarray) -> np.ndarray:
        return values if not self.copies else np.concatenate([values] * (1 + self.copies))

    def shown(self, images: Rows, assignment: np.ndarray, *, seed: int) -> Rows | DeformedCopies:
        if not self.copies:
            return images
        from terrine.teachers.deformed import DeformedCopies

        return DeformedCopies(images, assignment, self.copies, self.deformations, seed=seed)

    def check(self, run: Any) -> None:
        """Raise ValueError where there are no images to copy."""
        super().check(run)
        if run.data.name == "table" and self.copies:
            raise ValueError(
                f"teachers.copies={self.copies} are deformed images, and data.name=table has none. Set teachers.copies "
                "to 0"
            )

    def build(self, context: TeacherContext) -> LinearKind:
        from terrine.teachers.linear import LinearKind

        return LinearKind(self, by_teacher=context.by_teacher, findings=context.findings)
