"""FixMatch: a confident answer to a weak view is the label of a strong view of the same image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.settings import Field
from terrine.students.semi_supervised import SemiSupervisedStudent

if TYPE_CHECKING:
    from terrine.students.fixmatch import FixMatchTerm


class FixMatchStudent(SemiSupervisedStudent):
    """Learns from its own confident answers to weak views of images that have none (Sohn et al. 2020, section 2.2)."""

    kind: Literal["fixmatch"] = "fixmatch"
    threshold: float = Field(0.95, ge=0, le=1)
    """τ: confidence from which on the student teaches itself."""

    def term(self, classes: int) -> FixMatchTerm:
        from terrine.students.fixmatch import FixMatchTerm

        return FixMatchTerm(self)
