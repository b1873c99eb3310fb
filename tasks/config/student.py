"""The section `student`: the model that leaves the building."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from terrine.settings import Settings

Statistics = Literal["current", "original"]


class Student(Settings):
    """The model that leaves the building. What a kind does not use is ignored by it (docs/students.md)."""

    kind: Literal["linear", "finetune", "full", "fixmatch", "freematch", "vat"] = "linear"
    statistics: Statistics = "current"
    batch: int = Field(500, ge=2)
    """Images that share batch statistics when the student is evaluated."""
    l2: float | None = Field(None, ge=0)
    """Precision of the prior on a class's score; null chooses it on released answers."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    forward_correction: bool = False
    """Labels: let the student allow for the mechanism's noise, known from its sigma, the teachers and the classes."""
    hidden: int | None = Field(None, ge=1)
    """Units of the head's hidden layer; null is a linear head."""
    trainable: float | None = Field(None, ge=0, le=100)
    """Per cent of the backbone's weights that are trained, from its end; 0: the head alone, null: as the kind does."""
    steps: int = Field(2000, ge=1)
    train_batch: int = Field(128, ge=2)
    """Answers in a step."""
    learning_rate: float | None = Field(None, gt=0)
    """null: 0.001 for a head alone, 0.0001 with a backbone."""
    weight_decay: float = Field(0.0, ge=0)
    augment: bool = False
    """Learn from weak views of answered images instead of the images as they are."""
    flip: bool = False
    """A mirrored image has the class of the image: true for tissue, false for digits."""
    views: int = Field(4, ge=0)
    """Frozen backbone: weak and strong views of each image whose features are computed."""
    ema: float = Field(0.99, ge=0, lt=1)
    """Memory of the moving average of the weights, which is what is kept."""
    patience: int | None = Field(5, ge=1)
    """Evaluations on held-out answers without an improvement after which training ends; null never holds any out."""
    pool: int | None = Field(None, ge=0)
    """Most pretraining images that are looked at beside the queries; null is all."""
    unlabelled_weight: float = Field(1.0, ge=0)
    unlabelled_ratio: int = Field(4, ge=1)
    threshold: float = Field(0.95, ge=0, le=1)
    """`fixmatch`: confidence from which on the student teaches itself."""
    decay: float = Field(0.99, ge=0, lt=1)
    """`freematch`: memory of the thresholds."""
    fairness: float = Field(0.01, ge=0)
    """`freematch`: weight of the fairness of classes."""
    perturbation: float = Field(0.3, gt=0)
    """`vat`: length of the perturbation, in units of the inputs' distance from their mean."""
    power_iterations: int = Field(1, ge=1)
    """`vat`: steps of the search for the worst direction."""

    @model_validator(mode="after")
    def _settings_of_the_kind(self) -> Student:
        if self.label_smoothing and self.forward_correction:
            raise ValueError(
                f"label_smoothing={self.label_smoothing:g} and forward_correction=true are two remedies for one ill. "
                "Use one of them"
            )
        if self.kind == "linear" and (self.hidden is not None or self.trainable):
            key = "hidden" if self.hidden is not None else "trainable"
            raise ValueError(
                f"{key}={getattr(self, key):g} has no meaning for kind=linear. Use kind=finetune (with trainable=0 for "
                f"a head alone), or set student.{key}=null"
            )
        if self.kind == "full" and self.trainable not in (None, 100):
            raise ValueError(f"trainable={self.trainable:g} does not go with kind=full. Use kind=finetune")
        return self

    def check(self, run: Any) -> None:
        """Raise ValueError where the student does not suit the backbone or the answers it will be given."""
        backbone, aggregation = run.backbone, run.aggregation
        without_weights = not backbone.has_weights
        share = {"finetune": 10.0, "full": 100.0}.get(self.kind) if self.trainable is None else self.trainable
        if without_weights and share:
            raise ValueError(
                f"student.trainable={share:g} does not go with backbone.kind={backbone.kind}, which has no weights to "
                "train. Set student.kind=finetune and student.trainable=0 to train a head alone, or use a resnet"
            )
        if backbone.kind == "columns" and self.kind != "linear":
            raise ValueError(f"student.kind={self.kind} learns from images, not columns. Use student.kind=linear")
        if self.forward_correction and aggregation.mechanism not in ("gnmax", "confident", "interactive"):
            raise ValueError(
                f"student.forward_correction=true does not go with aggregation.mechanism={aggregation.mechanism}: it "
                "is derived for labels with Gaussian noise. Set it to false"
            )
