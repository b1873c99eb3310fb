"""What the kinds share that are trained by gradient: all but the linear one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from terrine.models.backbone import Backbone
from terrine.students.kind import Material, Progress, Trained
from terrine.students.settings import TrainingSettings
from terrine.students.term import UnlabelledTerm
from terrine.students.training import train


@dataclass(frozen=True)
class ByGradient(TrainingSettings):
    """A student kind that says which weights it trains and, if it has one, its term on images without answers."""

    name: ClassVar[str]

    @abstractmethod
    def percent(self, backbone: Backbone) -> float:
        """Return the share of the backbone's weights that is trained, in per cent from its end."""

    def term(self, classes: int) -> UnlabelledTerm | None:
        """Return the kind's term at the beginning of a training; None for a kind that learns from answers alone."""
        return None

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
            percent=self.percent(material.backbone),
            seed=seed,
            device=device,
            work=work,
            progress=progress,
        )
