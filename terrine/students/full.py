"""The whole network: every weight of the backbone, and the head, on the released answers alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from terrine.errors import SettingError
from terrine.students.kind import Material, Progress, Trained
from terrine.students.settings import TrainingSettings
from terrine.students.training import train


@dataclass(frozen=True)
class Full(TrainingSettings):
    """The student kind `full`. trainable: None or 100."""

    name: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainable not in (None, 100):
            raise SettingError(
                f"student: trainable is {self.trainable}, and kind=full trains all weights. Use kind=finetune."
            )

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
        common: dict[str, Any] = {"seed": seed, "device": device, "work": work, "progress": progress}
        return train(material, self, None, kind=self.name, percent=100.0, **common)
