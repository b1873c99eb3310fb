"""Virtual adversarial training: answers must not change in the direction in which they would most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from terrine.settings import Field
from terrine.students.semi_supervised import SemiSupervisedStudent

if TYPE_CHECKING:
    from terrine.students.vat import VATTerm


class VATStudent(SemiSupervisedStudent):
    """Keeps its answers in the direction in which they would change most (Miyato et al. 2018, section 3)."""

    kind: Literal["vat"] = "vat"
    perturbation: float = Field(0.3, gt=0)
    """ε: length of the perturbation, in units of the inputs' distance from their mean."""
    power_iterations: int = Field(1, ge=1)
    """Steps of the search for the worst direction."""

    def term(self, classes: int) -> VATTerm:
        from terrine.students.vat import VATTerm

        return VATTerm(self)
