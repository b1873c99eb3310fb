"""The kind `estimator`: any classifier of scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from terrine.settings import Field, Settings
from terrine.teachers.teachers import FeatureTeachers

if TYPE_CHECKING:
    from terrine.teachers.estimator import EstimatorKind
    from terrine.teachers.registry import TeacherContext


class Estimator(Settings):
    """A classifier of scikit-learn."""

    name: str = Field("RandomForestClassifier", min_length=1)
    """The classifier's class in scikit-learn."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Where it has a `random_state` that is not among them, it comes from the run's seed: the same for all teachers
    with `shared` initialisation, else each its own."""


class EstimatorTeachers(FeatureTeachers):
    """Classifiers of scikit-learn on features, or on a table's columns (random forests: Papernot et al. 2017)."""

    kind: Literal["estimator"] = "estimator"
    estimator: Estimator = Estimator()

    def build(self, context: TeacherContext) -> EstimatorKind:
        from terrine.teachers.estimator import EstimatorKind

        return EstimatorKind(self, context.classes, by_teacher=context.by_teacher)
