"""The whole network: every weight of the backbone, and the head, on the released answers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.students.by_gradient import ByGradient


@dataclass(frozen=True)
class Full(ByGradient):
    """The student kind `full`. trainable: None or 100."""

    name: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainable not in (None, 100):
            raise SettingError(
                f"student: trainable is {self.trainable}, and kind=full trains all weights. Use kind=finetune."
            )

    def percent(self, backbone: Backbone) -> float:
        """See `ByGradient.percent`."""
        return 100.0
