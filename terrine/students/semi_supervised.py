"""What FixMatch, FreeMatch and VAT share: answers teach through their likelihood, other images through a term."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.students.by_gradient import ByGradient
from terrine.students.term import UnlabelledTerm


@dataclass(frozen=True)
class SemiSupervised(ByGradient):
    """A student kind that looks at images without answers as well; see `terrine.students.kind.StudentKind`.

    unlabelled_weight: λ, of the term. unlabelled_ratio: μ, images of the term in a step, in batches of answers.
    """

    name: ClassVar[str]
    unlabelled_weight: float = 1.0
    unlabelled_ratio: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.unlabelled_weight < float("inf") or self.unlabelled_ratio < 1:
            raise SettingError(
                f"student: unlabelled_weight {self.unlabelled_weight} and unlabelled_ratio {self.unlabelled_ratio} "
                "must be at least 0 and at least 1."
            )

    @abstractmethod
    def term(self, classes: int) -> UnlabelledTerm:
        """Return the kind's term at the beginning of a training."""

    def percent(self, backbone: Backbone) -> float:
        """See `ByGradient.percent`: what was asked for; where nothing was, all, or 0 where there are no weights."""
        if self.trainable is not None:
            return self.trainable
        return 100.0 if any(parameter.requires_grad for parameter in backbone.network.parameters()) else 0.0
