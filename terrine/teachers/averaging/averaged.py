"""The kind `averaged`: teachers that train in rounds with averages between them (TTAC, docs/components.md).

Given the averages, the following training remains:

averaging: none     each teacher separately, all R rounds: conventional training.
averaging: blocks   each group of g parties separately, all R rounds; the group's average votes. For the rest of the
                    pipeline the group is the teacher: a record affects one group and moves one vote.
averaging: global   the last round, from the average of the R - 1 rounds before and the teachers' own control variates,
                    which another stage has computed. If that average was released with noise, a teacher is a function
                    of its records and of releases: the kind's guarantee holds given the release, and the two
                    compose. Without noise on the averages, a teacher is a function of every record.

A party with too few records changes no weights in any round (`terrine.teachers.averaging.ttac`). So with `none` it is
not trained and casts fallback votes; with `global` it votes with the released average; and a group votes with the
average of its other parties or, if all have too few, with the public start. Each vote is a function of the party's or
group's records, of releases, and of public numbers, so one unit affects one voter even if a party crosses the limit.

**A common centre** (`centre: shared`) replaces batch statistics for parties whose data differ. Features must be centred
before a linear teacher can vote on images of another kind (docs/components.md). A party with a single class cannot
centre features by its own mean, which would remove the class. So the mean of the parties' means is computed; with
averaging `global` it is a separate release. A mean of features of unit length has a norm of at most 1, so no clipping
norm is needed. Queries are centred by the mean of their batch, which is public.

    record:   x / ‖x‖ - centre, scaled to unit length again
    query:    x / ‖x‖ - mean over its batch of x / ‖x‖, scaled to unit length again
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import model_validator

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.queries import Queries
from terrine.settings import Field, Unit
from terrine.teachers.averaging.ttac import Average, exact_means, local_round, server_step, unit_rows
from terrine.teachers.base import FeatureTeachers, GradientTeachers, TeacherContext, TeacherKind
from terrine.teachers.networks import Architecture, FinetuneTeachers, ScratchTeachers, Trainable, check_weights
from terrine.teachers.records import Arrays, PrivateFeatures, Records, assignment_digest, teacher_rows

if TYPE_CHECKING:
    from terrine.teachers.averaging.learners import Learner
    from terrine.teachers.base import Device, TrainedStates


class AveragedTeachers(FeatureTeachers, GradientTeachers):
    """TTAC, averaging and correction: Algorithm 1 of Dodwadmath and Stich 2022, whose symbols the settings cite.

    learning_rate is the local step η_f, batch the size of a mini-batch, cut from permutations of the records.
    """

    kind: Literal["averaged"] = "averaged"
    initialisation: Literal["shared"] = "shared"
    """Initial weights: all teachers start from the average, which starts from public weights."""
    mode: Literal["private", "paper"] = "private"
    """averaging=global: `private` clips averages and releases them with noise, from a share of the budget. `paper` uses
    no noise, as published; the release is then NOT PRIVATE."""
    learner: Literal["linear", "finetune", "network"] = "linear"
    """Trained model: a linear head, the last layers of the backbone with a head, or the network `architecture`."""
    trainable: Trainable = 25.0
    """learner=finetune: minimum share of the backbone's weights that is trained, from the output side."""
    architecture: Architecture = "small_cnn"
    """learner=network: architecture of the teachers' network."""
    averaging: Literal["none", "global", "blocks"] = "global"
    """Teachers averaged together: `global`, all; `none`, none, as in conventional training (Algorithm 2); `blocks`,
    groups that cast one vote each."""
    correction: Literal["none", "control_variates"] = "control_variates"
    """Correction of local steps for differences between parties: control variates, or none (federated averaging)."""
    rounds: int = Field(10, ge=1)
    """R: rounds of local training. The number of averages is R - 1."""
    steps: int = Field(10, ge=1)
    """T: local steps per round."""
    step_decay: float = Field(1.0, gt=0, le=1)
    """γ: factor of the local step size per round."""
    server_rate: float = Field(1.0, gt=0)
    """η_θ: step size of the average."""
    block: Annotated[int | None, Unit("parties")] = Field(None, ge=2)
    """g: parties per group with averaging=blocks."""
    centre: Literal["none", "shared"] = "none"
    """learner=linear: subtract from features the mean over all parties averaged together (with noise if mode=private),
    and from queries that of their batch. Recommended if parties lack classes."""
    clip: float | None = Field(None, gt=0)
    """S: maximum norm of a teacher's update with mode=private."""
    budget_share: float | None = Field(None, gt=0, lt=1)
    """mode=private: share of the run's budget for the averages, in units of μ²."""

    @model_validator(mode="after")
    def _check_combinations(self) -> AveragedTeachers:
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
                f"centre=shared does not go with learner={self.learner} and statistics={self.statistics}: it replaces "
                "batch statistics for heads on features. Set teachers.learner=linear and statistics=original, or "
                "teachers.centre=none"
            )
        if self.averages and self.rounds < 2:
            raise ValueError(
                f"rounds={self.rounds} leaves nothing to average: the last round's teachers vote. Set teachers.rounds "
                "to 2 or more, or teachers.averaging=none"
            )
        return self

    @property
    def inputs(self) -> Literal["features", "images"]:  # type: ignore[override]
        return "features" if self.learner == "linear" else "images"

    @property
    def averages(self) -> bool:  # type: ignore[override]
        return self.averaging == "global"

    @property
    def releases_averages(self) -> bool:  # type: ignore[override]
        return self.averages and self.mode == "private"

    @property
    def unprotected(self) -> bool:  # type: ignore[override]
        return self.averages and self.mode == "paper"

    @property
    def party_restriction(self) -> str | None:  # type: ignore[override]
        """See `Teachers`.

        Only a group's members may see the exact sum of its updates, so groups across institutions would need shares
        that each group opens. A group within one institution is equivalent to one teacher on the records of its parts.
        """
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
        """Raise ValueError if the data, the backbone or the budget do not allow these settings."""
        super().check(run)
        if self.unprotected and not (run.data.public_benchmark and run.ledger.epsilon is None):
            raise ValueError(
                "teachers.mode=paper averages without noise: its release has no guarantee, and no budget can pay for "
                "it. Set teachers.mode=private; mode=paper is for public benchmarks, with ledger.epsilon=null"
            )
        if self.averaging != "none" and run.aggregation.where == "parties":
            raise ValueError(
                self.party_restriction
                or f"teachers.averaging={self.averaging} does not go with aggregation.where=parties, which splits the "
                "votes of trained teachers among simulated parties: these teachers train in the session. Use "
                "`terrine party propose` with data at every party"
            )
        if self.block is not None and self.voters(run.partition.teachers) < 2:
            raise ValueError(
                f"teachers.block={self.block} makes one group of partition.teachers={run.partition.teachers}. Set a "
                "smaller teachers.block"
            )
        if self.learner == "finetune":
            check_weights(run, "learner")

    def build(self, context: TeacherContext) -> AveragedKind:
        return AveragedKind(self, self.make_learner(context), context.parties, context.start)

    def make_learner(self, context: TeacherContext) -> Learner:
        """Return the learner: a head on features, the backbone's last layers with a head, or a network."""
        from terrine.teachers.averaging.learners import LinearLearner, ModuleLearner

        if self.learner == "linear":
            return LinearLearner(
                context.backbone().feature_dim,
                context.classes,
                weight_decay=self.weight_decay,
                by_teacher=context.by_teacher,
                centred=self.centre == "shared",
            )
        like: FinetuneTeachers | ScratchTeachers = ScratchTeachers(architecture=self.architecture)
        if self.learner == "finetune":
            like = FinetuneTeachers(trainable=self.trainable)
        classifier = like.build(context).classifier(context.seed)
        return ModuleLearner(classifier, weight_decay=self.weight_decay, statistics=self.statistics)


@dataclass(frozen=True)
class RoundState:
    """State from which the last round starts.

    Attributes:
        average: θ and c, [P].
        own: The teachers' control variates c_i, [teachers, P], an array or a memory map.
        centre: Common centre of all parties' features, [features]; None if features are not centred.
    """

    average: Average
    own: np.ndarray
    centre: np.ndarray | None = None


def assign_blocks(parties: int, size: int, seed: int) -> list[np.ndarray]:
    """Return the parties of each group: `size` of them drawn at random, the remaining ones in the last group.

    The draw depends only on numbers. If the last group would be smaller than half of `size`, it joins the group before.
    Raises SettingError if there are not enough parties for two groups.
    """
    count = max(1, round(parties / size))
    if count < 2:
        raise SettingError(f"teachers.block={size} makes one group of {parties} parties. Use a smaller block.")
    order = numpy_generator(seed, "averaging blocks").permutation(parties)
    return [np.sort(order[first : first + size]) for first in range(0, (count - 1) * size, size)] + [
        np.sort(order[(count - 1) * size :])
    ]


class AveragedKind(TeacherKind):
    """Trains teachers of the kind `averaged`.

    Args:
        learner: The model.
        parties: Number of parties; with averaging `blocks`, the voters are groups of parties.
        start: Function that loads the start of the last round, for averaging `global`.
    """

    def __init__(
        self, settings: AveragedTeachers, learner: Learner, parties: int, start: Callable[[], RoundState] | None = None
    ) -> None:
        self.settings, self.learner, self.parties, self.start = settings, learner, parties, start
        self.stacked, self.block = learner.stacked, learner.block
        self.min_records = learner.min_records if settings.averaging == "none" else 0

    def train(self, records: Records, teachers: Sequence[int], *, seed: int, device: Device = "cpu") -> TrainedStates:
        """Yield (number, state) of each teacher, or of each group of parties with averaging `blocks`."""
        if self.settings.averaging == "none":
            teachers = records.trainable(teachers, self.min_records)
        if not teachers:
            return
        if self.settings.averaging == "global":
            values = self._last_round(records, teachers, seed, device)
        else:
            values = self._separately(records, teachers, seed, device)
        for teacher, weights in zip(teachers, values, strict=True):
            yield teacher, self.learner.state(weights)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: Device = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]."""
        return self.learner.vote(states, queries, device=device)

    def _last_round(self, records: Records, teachers: Sequence[int], seed: int, device: Device) -> np.ndarray:
        settings = self.settings
        if self.start is None:
            raise InputError("Averaged teachers need an average to start from. Run the stage 'average'.")
        start = self.start()
        if self.learner.centred:
            if start.centre is None:
                raise InputError("The averages have no centre. Run the stage 'average' again.")
            records = centre_records(records, teachers, start.centre)
        own = np.asarray(start.own[list(teachers)])
        number = settings.rounds - 1
        local = local_round(
            self.learner, start.average, own, records, teachers, settings, number, seed=seed, device=device
        )
        return np.asarray(start.average.value + local.update)

    def _separately(self, records: Records, teachers: Sequence[int], seed: int, device: Device) -> np.ndarray:
        """Return the weights [teachers, P] of teachers, or groups, each trained without the others."""
        settings, learner = self.settings, self.learner
        if settings.block is None:
            groups = [np.array([teacher]) for teacher in teachers]
            settings = settings.model_copy(update={"server_rate": 1.0})
        else:
            blocks = assign_blocks(self.parties, settings.block, seed)
            groups = [blocks[teacher] for teacher in teachers]
        members = np.concatenate(groups)
        group = np.repeat(np.arange(len(groups)), [len(parties) for parties in groups])
        if self.learner.centred:
            means = party_means(records, members)
            centres = np.stack([means[group == place].mean(axis=0) for place in range(len(groups))])
            records = centre_records(records, members, centres[group])
        first = Average.start(learner)
        own = np.zeros((len(members), learner.length), learner.initial().numpy().dtype)
        averages = [first] * len(groups)
        for number in range(settings.rounds):
            starts = Average(
                np.stack([average.value for average in averages])[group],
                np.stack([average.control for average in averages])[group],
            )
            local = local_round(learner, starts, own, records, members, settings, number, seed=seed, device=device)
            for place, average in enumerate(averages):
                mine = np.flatnonzero(group == place)
                part = replace(local, update=local.update[mine], own=local.own[mine])
                averages[place] = server_step(average, *exact_means(average, [part], own[mine], number), settings)
            own = local.own
        return np.stack([average.value for average in averages])


def party_means(records: Records, teachers: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return each party's mean of features scaled to unit length, float64 [teachers, features]. Private.

    A party with too few records has a zero mean, which counts in the centre and is within the norm.
    """
    values = records.values
    if values.ndim != 2:
        raise InputError(f"Only features have a centre, not inputs of shape {list(values.shape)}.")
    means = np.zeros((len(teachers), values.shape[1]))
    trainable = set(records.trainable(teachers, 1))
    present = [position for position, teacher in enumerate(teachers) if teacher in trainable]
    parts = teacher_rows(records.assignment, [teachers[position] for position in present])
    for position, own in zip(present, parts, strict=True):
        means[position] = unit_rows(values[own]).mean(axis=0, dtype=np.float64)
    return means


def centre_records(records: Records, teachers: Sequence[int] | np.ndarray, centres: np.ndarray) -> Records:
    """Return the records of these teachers with centred features, in the same order.

    Args:
        records: Records with features [records, features].
        teachers: Numbers of the teachers, in the order of `centres`.
        centres: Centre of the features: one for all teachers, [features], or one per teacher, [teachers, features].
    """
    kept = np.flatnonzero(np.isin(records.assignment, teachers))
    assignment = records.assignment[kept]
    inputs = np.empty((len(kept), records.values.shape[1]), np.float32)
    for position, teacher in enumerate(teachers):
        own = np.flatnonzero(assignment == teacher)
        centre = centres if centres.ndim == 1 else centres[position]
        inputs[own] = unit_rows(unit_rows(records.values[kept[own]]) - centre)
    features: np.ndarray | PrivateFeatures = inputs
    if isinstance(records.inputs, PrivateFeatures):
        partition = None if records.inputs.partition is None else assignment_digest(assignment)
        features = PrivateFeatures(inputs, partition, records.inputs.min_records)
    return Records(features, records.labels[kept], assignment, records.classes)
