"""Settings of students trained by gradient descent, and the kinds `finetune` and `full`."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import model_validator

from terrine.settings import Field, Unit
from terrine.students.student import Student

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from terrine.models.backbone import Backbone
    from terrine.students.inputs import Inputs, View
    from terrine.students.student import StudentData, TrainedStudent


USB: dict[str, Any] = {
    "start": "shared",
    "steps": 204_800,
    "train_batch": 8,
    "unlabelled_ratio": 1,
    "learning_rate": 5e-4,
    "weight_decay": 5e-4,
    "augment": True,
    "ema": 0.0,
    "patience": None,
    "decay": 0.999,
    "fairness": 0.001,
}
"""FixMatch and FreeMatch in USB (github.com/microsoft/Semi-supervised-learning, usb_cv), without its decay of the
learning rate by 0.5 per layer."""


class GradientStudent(Student):
    """A student that trains the head and a share of the backbone's weights (`terrine.students.training`).

    If `l2` is null it is chosen for the initial head, on held-out answers, and is 0.3 during training, when early
    stopping regularises.
    """

    views_wanted: ClassVar[tuple[View, ...]] = ()
    """Kinds of views of unlabelled images that the student's loss needs."""

    start: Literal["fitted", "shared"] = "fitted"
    """Initial head: that of the linear student, or the shared random one of the teachers, as published."""
    steps: Annotated[int, Unit("steps")] = Field(2000, ge=1)
    """Maximum number of Adam steps."""
    epochs: Annotated[int | None, Unit("passes")] = Field(None, ge=1)
    """Passes over the answers; replaces `steps`."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate schedule."""
    train_batch: Annotated[int, Unit("answers")] = Field(128, ge=2)
    """Number of answers per training step."""
    micro_batch: Annotated[int | None, Unit("images")] = Field(None, ge=1)
    """Number of images whose activations are kept at once while the backbone is trained; null is the whole step. Parts
    are computed twice: less memory for more time, with the same loss."""
    learning_rate: float | None = Field(None, gt=0)
    """Adam learning rate. null: 0.001 if only the head is trained, otherwise 0.0001."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay on all trained weights."""
    augment: bool = False
    """Train on weakly augmented images instead of the originals."""
    flip: bool = False
    """Augment by mirroring: true for tissue, false for digits."""
    views: Annotated[int, Unit("views")] = Field(4, ge=0)
    """Number of weak and strong views per image whose features are computed for a frozen backbone."""
    ema: float = Field(0.99, ge=0, lt=1)
    """Decay of the moving average of the weights, which becomes the result. 0: no average."""
    patience: Annotated[int | None, Unit("evaluations")] = Field(5, ge=1)
    """Evaluations on held-out answers without improvement before training stops. null: no early stopping."""

    def percent(self, backbone: Backbone) -> float:
        """Return the share of this backbone's weights that is trained, in per cent from the output side."""
        share: float | None = getattr(self, "trainable", 100.0)
        if share is not None:
            return share
        return 100.0 if any(parameter.requires_grad for parameter in backbone.network.parameters()) else 0.0

    def train(self, data: StudentData, **how: Any) -> TrainedStudent:
        from terrine.students.training import train

        return train(data, self, **how)

    def check(self, run: Any) -> None:
        """Raise ValueError for columns, or for a backbone without weights to train."""
        super().check(run)
        share = getattr(self, "trainable", 100.0)
        if run.backbone.kind == "columns":
            raise ValueError(f"student.kind={self.kind} learns from images, not columns. Use linear or forest")
        if share and not run.backbone.has_weights:
            raise ValueError(
                f"student.kind={self.kind} with trainable={share:g} does not go with backbone.kind="
                f"{run.backbone.kind}, which has no weights to train. Set student.kind=finetune and "
                "student.trainable=0 to train only a head, or use a resnet"
            )


class FinetuneStudent(GradientStudent):
    """The head and the last share of the backbone's weights, trained on the released answers only."""

    kind: Literal["finetune"] = "finetune"
    trainable: Annotated[float, Unit("per cent")] = Field(10.0, ge=0, le=100)
    """Share of the backbone's weights that is trained, from the output side. 0: only the head."""


class FullStudent(GradientStudent):
    """The head and every weight of the backbone, trained on the released answers only."""

    kind: Literal["full"] = "full"


class SemiSupervisedStudent(GradientStudent):
    """A student that also learns from images without answers, by an unlabelled loss.

    A kind may keep tensors from step to step: `initial_state` returns these tensors, and checkpoints store them.
    """

    uses_unlabelled: ClassVar[bool] = True

    defaults: Literal["own", "usb"] = "own"
    """`usb`: settings that are not given are USB's for vision transformers, without layer-wise learning rate decay."""
    trainable: Annotated[float | None, Unit("per cent")] = Field(None, ge=0, le=100)
    """Share of the backbone's weights that is trained, from the output side. 0: only the head. null: all."""
    pool: Annotated[int | None, Unit("images")] = Field(None, ge=0)
    """Maximum number of pretraining images used in addition to the queries. null: all."""
    unlabelled_weight: float = Field(1.0, ge=0)
    """λ: weight of the unlabelled loss."""
    unlabelled_ratio: int = Field(4, ge=1)
    """μ: unlabelled images per step, as a multiple of `train_batch`."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("defaults") != "usb":
            return given
        return {name: value for name, value in USB.items() if name in cls.model_fields} | given

    def initial_state(self, classes: int) -> dict[str, Tensor]:
        """Return the initial values, by name, of the tensors that change from step to step."""
        return {}

    @abstractmethod
    def unlabelled_loss(self, inputs: Inputs, rows: np.ndarray, seed: int, state: dict[str, Tensor]) -> Tensor:
        """Return the weighted loss of unlabelled images.

        Args:
            inputs: Images and the scores of the student in training.
            rows: Image numbers in one group of `inputs`.
            seed: Seed of the training step.
            state: The tensors of `initial_state`, updated in place.
        """
