"""The kind `linear`: a head on the frozen backbone's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.settings import Field
from terrine.teachers.teachers import FeatureTeachers, GradientTeachers

if TYPE_CHECKING:
    from terrine.teachers.linear import LinearKind
    from terrine.teachers.registry import TeacherContext


class LinearTeachers(FeatureTeachers, GradientTeachers):
    """Linear heads; a ridge regression is the better teacher of few records, `adam` is the setting of DIET-PATE.

    `initialisation` and the settings of gradient steps are `adam`'s: a closed form has no start.
    """

    kind: Literal["linear"] = "linear"
    optimiser: Literal["adam", "ridge"] = "ridge"
    """`ridge`: least squares on one-hot labels, solved exactly. `adam`: cross-entropy (Kingma and Ba 2015)."""
    ridge: float = Field(0.1, ge=1e-6)
    """Penalty in units of a record's mean squared distance from its teacher's mean."""
    epochs: int = Field(50, ge=1)
    """`adam`: passes over a teacher's records."""

    def build(self, context: TeacherContext) -> LinearKind:
        from terrine.teachers.linear import LinearKind

        return LinearKind(self, by_teacher=context.by_teacher, findings=context.findings)
