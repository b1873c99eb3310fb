"""Fine-tuning: the last x per cent of the backbone's weights, and the head, on the released answers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from terrine.models.backbone import Backbone
from terrine.students.kind import Material, Progress, Trained
from terrine.students.settings import TrainingSettings
from terrine.students.training import train

DEFAULT_PERCENT = 10.0


@dataclass(frozen=True)
class FineTune(TrainingSettings):
    """The student kind `finetune`. trainable: None is 10 %; 0 trains the head alone, with a hidden layer or without."""

    name: ClassVar[str] = "finetune"

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
        percent = DEFAULT_PERCENT if self.trainable is None else self.trainable
        common: dict[str, Any] = {"seed": seed, "device": device, "work": work, "progress": progress}
        return train(material, self, None, kind=self.name, percent=percent, **common)


def all_that_has_weights(trainable: float | None, backbone: Backbone) -> float:
    """Return the share of weights to train that was asked for; where none was, all, or 0 where there are none."""
    if trainable is not None:
        return trainable
    return 100.0 if any(parameter.requires_grad for parameter in backbone.network.parameters()) else 0.0
