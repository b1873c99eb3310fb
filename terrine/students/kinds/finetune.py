"""Fine-tuning: the last x per cent of the backbone's weights, and the head, on the released answers alone."""

from typing import Annotated, Literal

from terrine.settings import Field, Unit
from terrine.students.by_gradient import GradientStudent


class FinetuneStudent(GradientStudent):
    """The last per cents of the backbone's weights, and the head, trained on the released answers alone."""

    kind: Literal["finetune"] = "finetune"
    trainable: Annotated[float, Unit("per cent")] = Field(10.0, ge=0, le=100)
    """Of the backbone's weights, from its end, that are trained; 0: the head alone."""

    @property
    def share(self) -> float:
        return self.trainable
