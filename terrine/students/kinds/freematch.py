"""FreeMatch: FixMatch whose threshold follows the student's own confidence, and fair to classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.settings import Field
from terrine.students.semi_supervised import SemiSupervisedStudent

if TYPE_CHECKING:
    from terrine.students.freematch import FreeMatchTerm


class FreeMatchStudent(SemiSupervisedStudent):
    """FixMatch with thresholds that start at chance and follow the student (Wang et al. 2023, section 4)."""

    kind: Literal["freematch"] = "freematch"
    decay: float = Field(0.99, ge=0, lt=1)
    """d: memory of the thresholds."""
    fairness: float = Field(0.01, ge=0)
    """λ_f: weight of the fairness of classes."""

    def term(self, classes: int) -> FreeMatchTerm:
        from terrine.students.freematch import FreeMatchTerm

        return FreeMatchTerm(self, classes)
