"""The section `teachers`: the models that vote."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from terrine.settings import Settings

Statistics = Literal["current", "original"]


class Estimator(Settings):
    """A classifier of scikit-learn."""

    name: str = Field("RandomForestClassifier", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class Prompt(Settings):
    """A frame around the image and a mapping of what the source makes of it; the paper's (docs/prompts.md)."""

    inner: int | None = Field(None, ge=1)
    """Side of the shrunken image on the source's canvas; null is 192/224 of the canvas."""
    mask: bool = True
    """Whether the trained pattern is the frame alone; false lays it over the image, too."""
    mapping: Literal["random", "fc1", "fc2"] = "fc1"
    """From the source's outputs to classes: drawn at random, or one or two trained layers."""
    hidden: int = Field(64, ge=1)
    """`fc2`: units of the first layer."""
    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    decay: float = Field(0.7, gt=0, le=1)
    """Factor of the learning rate after every epoch."""
    batch: int = Field(16, ge=2)
    """Records of a teacher in a step."""
    together: int = Field(256, ge=2)
    """Most records, of many teachers, in one pass through the source: with the number of passes side by side (one a
    core; one on a GPU) it bounds the memory of training, and of voting with original statistics. With current ones a
    vote takes a query batch at once."""


_OF_ROUNDS = (
    "mode",
    "learner",
    "averaging",
    "correction",
    "rounds",
    "steps",
    "step_decay",
    "server_rate",
    "control_release",
)
"""Settings of teachers of the kind `averaged` alone that have a default."""


class Teachers(Settings):
    """The models that vote."""

    kind: Literal["linear", "finetune", "scratch", "estimator", "averaged", "prompt"] = "linear"
    """`linear`: a head on the backbone's features. `finetune`: the backbone's last layers and a head. `scratch`: a
    whole network. `estimator`: a scikit-learn classifier on the features. `averaged`: teachers that learn in rounds,
    with averages between them (docs/heterogeneous.md). `prompt`: a frame around the image (docs/prompts.md)."""
    statistics: Statistics = "current"
    initialisation: Literal["shared", "own"] = "shared"
    """Whether all teachers start from the same public random weights, or each from its own."""
    trainable: float = Field(25.0, ge=0.5, le=100)
    """`finetune`: percentage of the backbone's parameters, the last ones, that are trained at least."""
    architecture: Literal["small_cnn", "resnet10", "resnet18", "vgg9", "cryptonet", "pate_cnn"] = "small_cnn"
    """`scratch`: the network."""
    estimator: Estimator = Estimator()
    """`estimator`: the classifier and its settings."""
    prompt: Prompt = Prompt()
    """`prompt`: the frame, the mapping, and how they are trained."""
    feature_batch: int = Field(500, ge=2)
    """Most records of one teacher that share batch statistics."""
    optimiser: Literal["adam", "ridge"] = "ridge"
    ridge: float = Field(0.1, ge=1e-6)
    """`ridge`: penalty in units of a record's mean squared distance from its teacher's mean."""
    epochs: int = Field(50, ge=1)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    batch: int | None = Field(256, ge=1)
    per_task: int = Field(25, ge=1)
    """Teachers trained together in one task."""
    mode: Literal["private", "paper"] = "private"
    """`averaged` with averaging=global. `private`: averages are clipped and released with noise from a share of the
    budget. `paper`: as published, without noise; the release is then marked NOT PRIVATE."""
    learner: Literal["linear", "finetune", "network"] = "linear"
    """`averaged`: what learns: a head, the backbone's last layers and a head, or the network `architecture`."""
    averaging: Literal["none", "global", "blocks"] = "global"
    """`averaged`: over whom is averaged. `none`: nobody, conventional training. `blocks`: groups that vote as one."""
    correction: Literal["none", "control_variates"] = "control_variates"
    """`averaged`: whether local steps are corrected for how a party's data differ."""
    rounds: int = Field(10, ge=1)
    """`averaged`: rounds of local training; there is one average fewer."""
    steps: int = Field(10, ge=1)
    """`averaged`: local steps in a round, each of `learning_rate`."""
    step_decay: float = Field(1.0, gt=0, le=1)
    """`averaged`: factor of the local step from one round to the next."""
    server_rate: float = Field(1.0, gt=0)
    """`averaged`: step of the average."""
    block: int | None = Field(None, ge=2)
    """averaging=blocks: parties in a group."""
    centre: Literal["none", "shared"] = "none"
    """learner=linear: whether features are centred by a mean over all parties that average with one another, which
    mode=private releases with noise, and queries by that of their batch. For parties that lack classes."""
    clip: float | None = Field(None, gt=0)
    """mode=private: norm to which a teacher's update is clipped."""
    budget_share: float | None = Field(None, gt=0, lt=1)
    """mode=private: share of the run's budget, in units of μ², that pays for the averages."""
    control_release: Literal["derived", "released"] = "derived"
    """mode=private: whether the control variate is computed from the released average, or released by itself."""

    @model_validator(mode="after")
    def _networks_need_batches(self) -> Teachers:
        network = self.kind in ("finetune", "scratch") or (self.kind == "averaged" and self.learner != "linear")
        if network and self.batch == 1:
            raise ValueError("batch=1 is too small for teachers that are networks. Set teachers.batch to 2 or more")
        return self

    @model_validator(mode="after")
    def _parameters_of_the_averages(self) -> Teachers:
        for key in _OF_ROUNDS if self.kind != "averaged" else ():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}={value} has no meaning for kind={self.kind}: it is for teachers that learn in rounds. Set "
                    f"teachers.kind=averaged, or leave teachers.{key} out"
                )
        wanted = {
            "block": self.kind == "averaged" and self.averaging == "blocks",
            "clip": self.releases_averages,
            "budget_share": self.releases_averages,
        }
        for key, needed in wanted.items():
            value = getattr(self, key)
            if needed and value is None:
                raise ValueError(
                    f"{key} is missing: teachers.kind=averaged with averaging={self.averaging} and mode={self.mode} "
                    f"needs it. Set teachers.{key}"
                )
            if not needed and value is not None:
                raise ValueError(
                    f"{key}={value:g} has no meaning for kind={self.kind}, averaging={self.averaging} and "
                    f"mode={self.mode}. Set teachers.{key}=null"
                )
        centred = self.centre == "shared"
        if centred and (self.kind != "averaged" or self.learner != "linear" or self.statistics != "original"):
            raise ValueError(
                f"centre=shared does not go with kind={self.kind}, learner={self.learner} and "
                f"statistics={self.statistics}: it takes the place of batch statistics for heads on features. Set "
                "teachers.kind=averaged, learner=linear and statistics=original, or teachers.centre=none"
            )
        if self.averages and self.rounds < 2:
            raise ValueError(
                f"rounds={self.rounds} leaves nothing to average: the last round's teachers vote. Set teachers.rounds "
                "to 2 or more, or teachers.averaging=none"
            )
        return self

    @property
    def averages(self) -> bool:
        """Whether teachers learn from one another."""
        return self.kind == "averaged" and self.averaging == "global"

    @property
    def releases_averages(self) -> bool:
        """Whether what they learn from one another is a release with noise."""
        return self.averages and self.mode == "private"

    @property
    def unprotected(self) -> bool:
        """Whether they learn from one another without noise, so that votes alone guarantee nothing."""
        return self.averages and self.mode == "paper"

    def voters(self, parties: int) -> int:
        """Return how many vote: every party, or every group of them."""
        if self.kind != "averaged" or self.block is None:
            return parties
        return max(1, round(parties / self.block))
