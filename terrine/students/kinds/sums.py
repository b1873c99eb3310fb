"""The student of sums: a linear head that follows from what was released, with nothing trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from terrine.errors import SettingError
from terrine.students.student import Student

if TYPE_CHECKING:
    from terrine.aggregation.aggregation import Aggregation
    from terrine.students.material import Material, TrainedStudent


class SumsStudent(Student):
    """The linear head of released moments or gradients, on the frozen public backbone."""

    kind: Literal["sums"] = "sums"
    statistics: Literal["current", "original"] = "original"
    """The backbone's own: sums are of features that hang on one image alone."""

    def train(self, material: Material, **how: Any) -> TrainedStudent:
        """Raise SettingError: it learns from no answers. Its head is that of `Sums.head`."""
        raise SettingError(
            "A student of kind sums learns from released sums, not from answers. Use student.kind=linear."
        )

    def check_mechanism(self, mechanism: Aggregation) -> None:
        """Raise SettingError for answers: it learns from none."""
        if mechanism.reveals != "sums":
            raise SettingError(
                f"student.kind=sums does not go with aggregation.mechanism={mechanism.mechanism}, which answers "
                "queries: it is the head of released sums. Leave one of the two out: each chooses the other"
            )
