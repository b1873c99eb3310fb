"""Teachers with averaging as a kind (`terrine.teachers.kind`): what is left to do when the averages are known.

averaging: none     each teacher alone, all R rounds: conventional training.
averaging: blocks   each group of g parties alone, all R rounds; the group's average is what votes. To the rest of the
                    pipeline the group is the teacher: a record touches one group and moves one vote.
averaging: global   the last round alone, from the average of the R - 1 rounds before and the teachers' own control
                    variates, which another step has made. If that average was released with noise, a teacher is a
                    function of its own records and of what was released: the kind's guarantee holds given the
                    release, and the two compose. If it was not, a teacher is a function of every record.

A party with too few records stands still in every round (`terrine.teachers.averaging.ttac`). So with `none` it is not
trained, and votes by the rule that all such teachers vote by; with `global` it votes with the average it stands at,
which was released; and a group votes with what its other parties make of it, or, where all stand still, with the public
start.
Each is a function of the party's or the group's own records, of what was released, and of public numbers, so one unit
moves one voter, also when it makes a party stand still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.models.statistics import Statistics
from terrine.queries import Queries
from terrine.teachers.averaging.average import Average, server_step
from terrine.teachers.averaging.centre import centred_queries, centred_records, party_means
from terrine.teachers.averaging.learners import Learner, LinearLearner, ModuleLearner, unit_rows
from terrine.teachers.averaging.ttac import exact_means, local_round
from terrine.teachers.kind import Arrays, Records
from terrine.teachers.linear import LinearKind
from terrine.teachers.networks import BLOCK, Classifier, vote_with_networks

if TYPE_CHECKING:
    from terrine.teachers.kinds.averaged import AveragedTeachers


@dataclass(frozen=True)
class RoundState:
    """What the last round starts from.

    average: [P]. own: every teacher's c_i, [teachers, P]; a memory map will do. centre: of all parties' features,
    [features], where they are centred.
    """

    average: Average
    own: np.ndarray
    centre: np.ndarray | None = None


def blocks_of(parties: int, size: int, seed: int) -> list[np.ndarray]:
    """Return the parties of each group: `size` of them drawn at random, in the last group what is left over.

    The draw looks at numbers alone. A last group smaller than half of `size` joins the one before. Raises SettingError
    when there are not enough parties for two groups.
    """
    count = max(1, round(parties / size))
    if count < 2:
        raise SettingError(f"teachers.block={size} makes one group of {parties} parties. Use a smaller block.")
    order = numpy_generator(seed, "averaging blocks").permutation(parties)
    return [np.sort(order[first : first + size]) for first in range(0, (count - 1) * size, size)] + [
        np.sort(order[(count - 1) * size :])
    ]


class VotingRule(Protocol):
    """A learner and the way in which its teachers vote. centred: records and queries are centred before."""

    learner: Learner
    centred: bool
    stacked: bool
    block: int

    def vote(self, states: Iterable[Arrays], queries: Queries, device: torch.device | str) -> np.ndarray:
        """Return votes [queries, teachers]."""
        ...


class LinearVoting:
    """Heads on features of unit length, centred or not (`terrine.teachers.averaging.centre`)."""

    stacked = True
    block = 1024

    def __init__(self, learner: LinearLearner, *, centred: bool = False) -> None:
        self.learner, self.centred = learner, centred

    def vote(self, states: Iterable[Arrays], queries: Queries, device: torch.device | str) -> np.ndarray:
        """See `VotingRule.vote`; each query's features are brought to unit length, as the records' were."""
        queries = centred_queries(queries) if self.centred else replace(queries, inputs=unit_rows(queries.inputs))
        return LinearKind().vote(states, queries, device=device)


class NetworkVoting:
    """Whole networks, or what is trained of them."""

    centred = False
    stacked = False
    block = BLOCK

    def __init__(self, classifier: Classifier, classes: int, statistics: Statistics, weight_decay: float = 0.0) -> None:
        self.learner = ModuleLearner(classifier, weight_decay=weight_decay, statistics=statistics)
        self.classifier, self.classes, self.statistics = classifier, classes, statistics

    def vote(self, states: Iterable[Arrays], queries: Queries, device: torch.device | str) -> np.ndarray:
        """See `VotingRule.vote`."""
        return vote_with_networks(states, self.classifier, queries, self.statistics, self.classes, device=device)


class AveragedKind:
    """The kind `averaged`.

    form: what is learned and how it votes. parties: their number; block numbers take its place with averaging `blocks`.
    start: of averaging `global`, called when teachers are trained.
    """

    def __init__(
        self, settings: AveragedTeachers, form: VotingRule, parties: int, start: Callable[[], RoundState] | None = None
    ) -> None:
        self.settings, self.form, self.parties, self.start = settings, form, parties, start
        self.stacked, self.block = form.stacked, form.block
        self.least = form.learner.least if settings.averaging == "none" else 0

    def train(
        self, records: Records, teachers: Sequence[int], *, seed: int, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield (number, state) of each teacher, or of each group of parties with averaging `blocks`."""
        if self.settings.averaging == "none":
            teachers = records.enough(teachers, self.least)
        if not teachers:
            return
        if self.settings.averaging == "global":
            values = self._last_round(records, teachers, seed, device)
        else:
            values = self._alone(records, teachers, seed, device)
        for teacher, weights in zip(teachers, values, strict=True):
            yield teacher, self.form.learner.state(weights)

    def vote(self, states: Iterable[Arrays], queries: Queries, *, device: torch.device | str = "cpu") -> np.ndarray:
        """Return votes [queries, teachers]."""
        return self.form.vote(states, queries, device)

    def _last_round(
        self, records: Records, teachers: Sequence[int], seed: int, device: torch.device | str
    ) -> np.ndarray:
        settings = self.settings
        if self.start is None:
            raise InputError("Averaged teachers start from an average, and there is none. Run the stage 'average'.")
        start = self.start()
        if self.form.centred:
            if start.centre is None:
                raise InputError("The averages were made without a centre. Run the stage 'average' again.")
            records = centred_records(records, teachers, start.centre)
        own = np.asarray(start.own[list(teachers)])
        number = settings.rounds - 1
        local = local_round(
            self.form.learner, start.average, own, records, teachers, settings, number, seed=seed, device=device
        )
        return np.asarray(start.average.value + local.update)

    def _alone(self, records: Records, teachers: Sequence[int], seed: int, device: torch.device | str) -> np.ndarray:
        """Return the weights [teachers, P] of teachers, or groups, that learn from nobody else."""
        settings, learner = self.settings, self.form.learner
        if settings.block is None:
            groups = [np.array([teacher]) for teacher in teachers]
            settings = settings.model_copy(update={"server_rate": 1.0})
        else:
            blocks = blocks_of(self.parties, settings.block, seed)
            groups = [blocks[teacher] for teacher in teachers]
        members = np.concatenate(groups)
        group = np.repeat(np.arange(len(groups)), [len(parties) for parties in groups])
        if self.form.centred:
            means = party_means(records, members)
            centres = np.stack([means[group == place].mean(axis=0) for place in range(len(groups))])
            records = centred_records(records, members, centres[group])
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
