"""What FixMatch, FreeMatch and VAT share: answers teach through their likelihood, other images through a term."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar

from terrine.settings import Field, Unit
from terrine.students.by_gradient import GradientStudent

if TYPE_CHECKING:
    from terrine.students.term import UnlabelledTerm


class SemiSupervisedStudent(GradientStudent):
    """A student that looks at images without answers as well."""

    looks_at_more: ClassVar[bool] = True

    trainable: Annotated[float | None, Unit("per cent")] = Field(None, ge=0, le=100)
    """Of the backbone's weights, from its end, that are trained; 0: the head alone; null: all, where it has any."""
    pool: Annotated[int | None, Unit("images")] = Field(None, ge=0)
    """Most of those for pretraining that are looked at beside the queries; null is all."""
    unlabelled_weight: float = Field(1.0, ge=0)
    """λ: of the term."""
    unlabelled_ratio: int = Field(4, ge=1)
    """μ: images of the term in a step, in batches of answers."""

    @property
    def share(self) -> float | None:
        return self.trainable

    @abstractmethod
    def term(self, classes: int) -> UnlabelledTerm:
        """Return the kind's term at the beginning of a training."""
