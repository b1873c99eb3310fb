"""How a student is trained by gradient: the settings that all such kinds share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from terrine.errors import SettingError
from terrine.students.linear import StudentSettings


@dataclass(frozen=True)
class TrainingSettings:
    """How a student is trained by gradient.

    l2: precision of the prior on a score (`StudentSettings.l2`). None has it chosen for the start, on held-out answers,
        and takes 0.3 afterwards, when early stopping does its work.
    hidden: units of the head's hidden layer; None is a linear head.
    trainable: share of the backbone's weights that is trained, in per cent, from its end; 0 trains a head alone. None
        is the kind's own.
    steps: of Adam, at most. batch: answers in a step.
    learning_rate: None is 1e-3 where a head alone is trained and 1e-4 where a backbone is.
    weight_decay: of Adam, decoupled; on all that is trained.
    augment: whether answered images are seen in weak views instead of as they are.
    flip: whether a mirrored image has the class of the image.
    views: frozen backbone: how many weak and strong views of each image are made.
    ema: share of the moving average of the weights that one step leaves as it was; 0 keeps the weights themselves.
    patience: evaluations without an improvement after which training ends. None holds no answer out: all are fitted,
        for all steps, and the last weights are kept.
    """

    l2: float | None = 0.3
    hidden: int | None = None
    trainable: float | None = None
    steps: int = 2000
    batch: int = 128
    learning_rate: float | None = None
    weight_decay: float = 0.0
    augment: bool = False
    flip: bool = False
    views: int = 4
    ema: float = 0.99
    patience: int | None = 5

    def __post_init__(self) -> None:
        StudentSettings(l2=self.l2)
        for name, lowest in (("steps", 1), ("batch", 2), ("patience", 1), ("views", 0)):
            if getattr(self, name) is not None and getattr(self, name) < lowest:
                raise SettingError(f"student: {name} is {getattr(self, name)}, and must be at least {lowest}.")
        if self.hidden is not None and self.hidden < 1:
            raise SettingError(f"student: hidden is {self.hidden}. Give a positive number, or null for a linear head.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise SettingError(f"student: learning_rate is {self.learning_rate}, and must be above 0.")
        if self.trainable is not None and not 0 <= self.trainable <= 100:
            raise SettingError(f"student: trainable is {self.trainable}, outside 0 to 100 per cent.")
        if not self.weight_decay >= 0 or not 0 <= self.ema < 1:
            raise SettingError(
                f"student: weight_decay {self.weight_decay} and ema {self.ema} must be at least 0, ema also below 1."
            )
