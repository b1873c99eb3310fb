"""The kind `averaged`: teachers that learn in rounds, with averages between them (docs/components.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import model_validator

from terrine.settings import Field, Unit
from terrine.teachers.kinds.finetune import FinetuneTeachers, Trainable, check_weights
from terrine.teachers.kinds.scratch import Architecture, ScratchTeachers
from terrine.teachers.teachers import FeatureTeachers, GradientTeachers

if TYPE_CHECKING:
    from terrine.teachers.averaging.kind import AveragedKind, VotingRule
    from terrine.teachers.registry import TeacherContext


class AveragedTeachers(FeatureTeachers, GradientTeachers):
    """TTAC, averaging and correction: Algorithm 1 of Dodwadmath and Stich 2022; in brackets its symbols.

    learning_rate [η_f]: the local step. batch: records in a mini-batch, drawn in the order of permutations.
    """

    kind: Literal["averaged"] = "averaged"
    initialisation: Literal["shared"] = "shared"
    """All start from the average, and the average from public weights."""
    mode: Literal["private", "paper"] = "private"
    """averaging=global. `private`: averages are clipped and released with noise from a share of the budget. `paper`: as
    published, without noise; the release is then marked NOT PRIVATE."""
    learner: Literal["linear", "finetune", "network"] = "linear"
    """What learns: a head, the backbone's last layers and a head, or the network `architecture`."""
    trainable: Trainable = 25.0
    """Of learner=finetune."""
    architecture: Architecture = "small_cnn"
    """Of learner=network."""
    averaging: Literal["none", "global", "blocks"] = "global"
    """Over whom is averaged. `none`: nobody, conventional training (Algorithm 2). `blocks`: groups that vote as one."""
    correction: Literal["none", "control_variates"] = "control_variates"
    """Whether local steps are corrected for how a party's data differ; `none` is federated averaging."""
    rounds: int = Field(10, ge=1)
    """[R] Rounds of local training; there is one average fewer."""
    steps: int = Field(10, ge=1)
    """[T] Local steps in a round."""
    step_decay: float = Field(1.0, gt=0, le=1)
    """[γ] Factor of the local step from one round to the next."""
    server_rate: float = Field(1.0, gt=0)
    """[η_θ] Step of the average."""
    block: Annotated[int | None, Unit("parties")] = Field(None, ge=2)
    """[g] averaging=blocks: parties in a group."""
    centre: Literal["none", "shared"] = "none"
    """learner=linear: whether features are centred by a mean over all parties that average with one another, which
    mode=private releases with noise, and queries by that of their batch. For parties that lack classes."""
    clip: float | None = Field(None, gt=0)
    """[S] mode=private: norm to which a teacher's update is clipped."""
    budget_share: float | None = Field(None, gt=0, lt=1)
    """mode=private: share of the run's budget, in units of μ², that pays for the averages."""
    control_release: Literal["derived", "released"] = "derived"
    """mode=private: whether the control variate is computed from the released average, or released by itself."""

    @model_validator(mode="after")
    def _settings_go_together(self) -> AveragedTeachers:
        wanted = {
            "block": self.averaging == "blocks",
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
                    f"{key}={value:g} has no meaning for averaging={self.averaging} and mode={self.mode}. Set "
                    f"teachers.{key}=null"
                )
        if self.batch == 1 and self.inputs == "images":
            raise ValueError("batch=1 is too small for teachers that are networks. Set teachers.batch to 2 or more")
        if self.centre == "shared" and (self.learner != "linear" or self.statistics != "original"):
            raise ValueError(
                f"centre=shared does not go with learner={self.learner} and statistics={self.statistics}: it takes the "
                "place of batch statistics for heads on features. Set teachers.learner=linear and statistics=original, "
                "or teachers.centre=none"
            )
        if self.averages and self.rounds < 2:
            raise ValueError(
                f"rounds={self.rounds} leaves nothing to average: the last round's teachers vote. Set teachers.rounds "
                "to 2 or more, or teachers.averaging=none"
            )
        return self

    @property
    def inputs(self) -> Literal["features", "images"]:
        return "features" if self.learner == "linear" else "images"

    @property
    def averages(self) -> bool:
        return self.averaging == "global"

    @property
    def releases_averages(self) -> bool:
        return self.averages and self.mode == "private"

    @property
    def unprotected(self) -> bool:
        return self.averages and self.mode == "paper"

    @property
    def not_at_parties(self) -> str | None:
        """See `Teachers`. Of a group's updates a sum without noise may be seen by its members alone, so that groups
        over several institutions would need shares that each group opens by itself; and a group within one institution
        is one teacher on the records of all its parts, trained the long way."""
        if self.averaging == "blocks":
            return (
                "teachers.averaging=blocks is not for institutions: members of a group see one another's updates, and "
                "a group within one institution is one teacher with the records of all its parts. Set averaging=global "
                "and mode=private, or averaging=none with fewer teachers"
            )
        if self.unprotected:
            return (
                "teachers.mode=paper is not for institutions: averages without noise let one record move every vote, "
                "which no budget pays for. Set mode=private, with clip and budget_share"
            )
        return None

    def voters(self, parties: int) -> int:
        return parties if self.block is None else max(1, round(parties / self.block))

    def rate(self, number: int) -> float:
        """Return the local step η_f of round `number`, from 0."""
        return self.learning_rate * self.step_decay**number

    def check(self, run: Any) -> None:
        """Raise ValueError where the data, the backbone or the budget do not allow such averages."""
        super().check(run)
        if self.unprotected and not (run.data.public_benchmark and run.ledger.epsilon is None):
            raise ValueError(
                "teachers.mode=paper averages without noise: its release has no guarantee, and no budget can pay for "
                "it. Set teachers.mode=private; mode=paper is for public benchmarks, with ledger.epsilon=null"
            )
        if self.averaging != "none" and run.aggregation.where == "parties":
            raise ValueError(
                self.not_at_parties
                or f"teachers.averaging={self.averaging} does not go with aggregation.where=parties, a trial whose "
                "parties are dealt the votes of teachers that have learned: these learn in the session itself. Use "
                "`terrine party propose`, with data of its own at every party"
            )
        if self.block is not None and self.voters(run.partition.teachers) < 2:
            raise ValueError(
                f"teachers.block={self.block} makes one group of partition.teachers={run.partition.teachers}. Set a "
                "smaller teachers.block"
            )
        if self.learner == "finetune":
            check_weights(run, "learner")

    def build(self, context: TeacherContext) -> AveragedKind:
        from terrine.teachers.averaging.kind import AveragedKind

        return AveragedKind(self, self.voting_rule(context), context.parties, context.start)

    def voting_rule(self, context: TeacherContext) -> VotingRule:
        """Return what learns and votes: a head on the backbone's features, its last layers too, or a network."""
        from terrine.teachers.averaging.kind import LinearVoting, NetworkVoting
        from terrine.teachers.averaging.learners import LinearLearner

        if self.learner == "linear":
            width, classes = context.backbone().feature_dim, context.classes
            learner = LinearLearner(width, classes, weight_decay=self.weight_decay, by_teacher=context.by_teacher)
            return LinearVoting(learner, centred=self.centre == "shared")
        like: FinetuneTeachers | ScratchTeachers = ScratchTeachers(architecture=self.architecture)
        if self.learner == "finetune":
            like = FinetuneTeachers(trainable=self.trainable)
        classifier = like.build(context).classifier(context.seed)
        return NetworkVoting(classifier, context.classes, self.statistics, weight_decay=self.weight_decay)
