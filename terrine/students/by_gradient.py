"""What the kinds share that are trained by gradient: all but the linear one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from terrine.settings import Field, Unit
from terrine.students.student import Student

if TYPE_CHECKING:
    from terrine.models.backbone import Backbone
    from terrine.students.material import Material, TrainedStudent
    from terrine.students.term import UnlabelledTerm


class GradientStudent(Student):
    """A student that says which weights it trains and, if it has one, its term on images without answers.

    Where `l2` is null it is chosen for the start, on held-out answers, and is 0.3 afterwards, when early stopping does
    its work.
    """

    hidden: Annotated[int | None, Unit("units")] = Field(None, ge=1)
    """Of the head's hidden layer; null is a linear head."""
    start: Literal["fitted", "shared"] = "fitted"
    """The head at the beginning: the linear student's, or the random one that all teachers begin with, as published."""
    steps: Annotated[int, Unit("steps")] = Field(2000, ge=1)
    """Of Adam, at most."""
    epochs: Annotated[int | None, Unit("passes")] = Field(None, ge=1)
    """Over the answers, in the place of `steps`."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Of the learning rate."""
    train_batch: Annotated[int, Unit("answers")] = Field(128, ge=2)
    """How many make a step."""
    learning_rate: float | None = Field(None, gt=0)
    """null: 0.001 for a head alone, 0.0001 with a backbone."""
    weight_decay: float = Field(0.0, ge=0)
    """Of Adam, decoupled; on all that is trained."""
    augment: bool = False
    """Learn from weak views of answered images instead of the images as they are."""
    flip: bool = False
    """A mirrored image has the class of the image: true for tissue, false for digits."""
    views: Annotated[int, Unit("views")] = Field(4, ge=0)
    """Frozen backbone: weak and strong views of each image whose features are computed."""
    ema: float = Field(0.99, ge=0, lt=1)
    """Memory of the moving average of the weights, which is what is kept; 0 keeps the weights themselves."""
    patience: Annotated[int | None, Unit("evaluations")] = Field(5, ge=1)
    """On held-out answers, without an improvement, after which training ends; null never holds any out."""

    @model_validator(mode="after")
    def _shared_start(self) -> GradientStudent:
        if self.start == "shared" and self.hidden is not None:
            raise ValueError("start=shared is the teachers' head, which has no hidden layer. Set hidden to null")
        return self

    def total_steps(self, answers: int) -> int:
        """Return how many steps a training on so many answers takes at most."""
        return self.steps if self.epochs is None else self.epochs * -(-answers // self.train_batch)

    @property
    @abstractmethod
    def share(self) -> float | None:
        """Per cent of the backbone's weights that are trained, from its end; None: all, where it has any."""

    def percent(self, backbone: Backbone) -> float:
        """Return the share of this backbone's weights that is trained, in per cent from its end."""
        if self.share is not None:
            return self.share
        return 100.0 if any(parameter.requires_grad for parameter in backbone.network.parameters()) else 0.0

    def term(self, classes: int) -> UnlabelledTerm | None:
        """Return the kind's term at the beginning of a training; None for a kind that learns from answers alone."""
        return None

    def train(self, material: Material, **how: Any) -> TrainedStudent:
        from terrine.students.training import train

        return train(material, self, **how)

    def check(self, run: Any) -> None:
        """See `Settings.check`: it learns from images, and can only train weights that there are."""
        super().check(run)
        if run.backbone.kind == "columns":
            raise ValueError(f"student.kind={self.kind} learns from images, not columns. Use linear or forest")
        if self.share and not run.backbone.has_weights:
            raise ValueError(
                f"student.kind={self.kind} with trainable={self.share:g} does not go with backbone.kind="
                f"{run.backbone.kind}, which has no weights to train. Set student.kind=finetune and "
                "student.trainable=0 to train a head alone, or use a resnet"
            )
