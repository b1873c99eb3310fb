"""Fine-tuning: the last x per cent of the backbone's weights, and the head, on the released answers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from terrine.models.backbone import Backbone
from terrine.students.by_gradient import ByGradient

DEFAULT_PERCENT = 10.0


@dataclass(frozen=True)
class FineTune(ByGradient):
    """The student kind `finetune`. trainable: None is 10 %; 0 trains the head alone, with a hidden layer or without."""

    name: ClassVar[str] = "finetune"

    def percent(self, backbone: Backbone) -> float:
        """See `ByGradient.percent`."""
        return DEFAULT_PERCENT if self.trainable is None else self.trainable
