"""A teacher party whose teachers learn in rounds with those of other parties, and then vote.

It answers each round with its own teachers' updates, clipped and added up (`terrine.teachers.averaging.shared`), at the
average that the student party tells, and the last with their votes, as a run's stages make them from that average. Its
teachers' control variates stay here, written down before a round's shares are made, so whoever is started again goes on
with those of the round that it is asked for; of rounds that it missed nothing is made up for.
"""

from __future__ import annotations

import numpy as np

from tasks.artefacts.averages import write_averages
from tasks.artefacts.teachers import records_of
from tasks.parties.config import PartyConfig
from tasks.parties.state import PartyState
from tasks.parties.teaching import taught
from tasks.parties.training import run_of, votes_of
from tasks.parties.votes import check_votes
from tasks.pipeline.average import learner_of
from tasks.pipeline.teach import extract_features
from terrine.device import resolve_device
from terrine.teachers.averaging.averaged import centred_records, party_means
from terrine.teachers.averaging.ttac import Average, local_round

_OWN = "own-{}"
"""The control variates before a round of local steps, by its number."""


class OwnAverages:
    """What the party called `name` shares in each round: see `tasks.parties.votes.Given`.

    Raises what `tasks.parties.training.prepared` does, where its records are not ready yet.
    """

    def __init__(self, config: PartyConfig, name: str, held: int) -> None:
        own, shared = config.own, config.terms.averages
        assert own is not None
        assert shared is not None
        taught(config, name, held)
        self._config, self._held, self._shared = config, held, shared
        self._run = run_of(own, config.terms, held)
        extract_features.fn(self._run)  # where votes were cast before, they are gone
        self._learner = learner_of(self._run)
        self._records = records_of(self._run, self._learner.inputs)
        self._state = PartyState(own.work, "averages")
        self._of = config.terms.digest

    def __call__(self, number: int, question: np.ndarray | None) -> np.ndarray:
        """Return int64 [numbers, 1], or in the round after the last average votes [asked, held]."""
        shared, teachers = self._shared, range(self._held)
        start = shared.start(question, number)
        if number < shared.first:
            return shared.shared([party_means(self._records, teachers)], number)[:, None]
        learner, place = self._learner, number - shared.first
        average = Average.start(learner)
        if start.average is not None:
            average = Average(average.value + start.average.value, start.average.control)
        before = self._own_before(place)
        if number == shared.passes:
            arrays = {"value": average.value, "control": average.control}
            write_averages(self._run, arrays if start.centre is None else arrays | {"centre": start.centre}, before)
            return check_votes(votes_of(self._run), self._run.folders.votes, self._config, self._held)
        records = self._records
        if start.centre is not None:
            records = centred_records(records, teachers, start.centre)
        settings = shared.averaging.settings
        local = local_round(
            learner,
            average,
            before,
            records,
            teachers,
            settings,
            place,
            seed=self._run.params.seed,
            device=resolve_device(self._run.params.device),
        )
        self._state.save(_OWN.format(place + 1), {"own": local.own}, terms=self._of)
        for earlier in range(1, place):  # those before this round are kept: it may be asked again
            self._state.forget(_OWN.format(earlier))
        return shared.shared([local.update, local.own - before][: len(shared.parts(number))], number)[:, None]

    def _own_before(self, place: int) -> np.ndarray:
        """The teachers' control variates before a round, [held, P]: those of the last round that they took part in."""
        for earlier in range(place, 0, -1):
            kept = self._state.load(_OWN.format(earlier))
            if kept is not None and kept[1]["terms"] == self._of:
                return kept[0]["own"]
        learner = self._learner
        return np.zeros((self._held, learner.length), learner.initial().numpy().dtype)
