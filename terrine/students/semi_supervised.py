"""What FixMatch, FreeMatch and VAT share: answers teach through their likelihood, other images through a term."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from terrine.errors import SettingError
from terrine.students.finetune import all_that_has_weights
from terrine.students.kind import Material, Progress, Trained
from terrine.students.settings import TrainingSettings
from terrine.students.term import UnlabelledTerm
from terrine.students.training import train


@dataclass(frozen=True)
class SemiSupervised(TrainingSettings):
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

    def train(
        self,
        material: Material,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> Trained:
        """See `StudentKind.train`."""
        return train(
            material,
            self,
            lambda: self.term(material.answers.classes),
            kind=self.name,
            percent=all_that_has_weights(self.trainable, material.backbone),
            seed=seed,
            device=device,
            work=work,
            progress=progress,
        )
