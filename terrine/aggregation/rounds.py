"""Rounds: ask some queries, learn from what was released, and let that decide what to ask next.

What has been released is public, so whatever is computed from it may choose the next queries and, for
Interactive-GNMax, what the votes are compared with; the exact filter covers adaptive choices at no extra cost
(Smith & Thakurta 2022). Nothing else may: the adviser is handed the released answers and never the votes.

How many queries a round asks is decided by the budget that is left and the number of rounds, not by the votes: an even
share of those that are sure to be paid for. The last round takes all that is left, and stops where the budget does.

An adviser may also make queries that nobody had before. They are numbered after all that there are, and votes on them
are counted when a round asks them, not before. Every one is asked in the place of one that was there from the start:
however many are made, no more are asked than there were to begin with, so what the mechanism's `worst_case` says of
these is the worst case of all rounds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, Mechanism
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.noise import NoiseSource

NEVER = -1
"""The round of a query that was not asked."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What the released answers suggest for the next round.

    Attributes:
        order: int64, the queries that have not been asked, best first; the round takes as many as its share is.
        probabilities: The student's class probabilities [queries, classes] of all queries, made ones included, or None
            before there are any. A mechanism may compare the votes with them (`Mechanism.informed_by`).
        made: How many queries the adviser made for this round. They have the next numbers after all that there were.
    """

    order: NDArray[np.int64]
    probabilities: NDArray[np.floating] | None = None
    made: int = 0


@dataclass(frozen=True, eq=False)
class Rounds:
    """All rounds together.

    Attributes:
        answers: Answers to all queries; `event` composes the rounds and `asked` counts their queries.
        round: int64 [queries], in which round each query was asked, from 0; -1 for those that never were.
        affordable: How many queries the round about to begin is sure to ask, whatever the votes are; 0 after the last.
    """

    answers: Answers
    round: NDArray[np.int64]
    affordable: int = 0


Adviser = Callable[[Rounds], Advice]
"""Reads released answers and public images, nothing else."""

LaterVotes = Callable[[NDArray[np.int64]], HistogramArray]
"""Numbers of queries that were made in rounds -> int64 [queries, classes], their histograms in the same order."""


def in_order(released: Rounds) -> Advice:
    """Ask the queries in their own order."""
    return Advice(np.flatnonzero(released.round == NEVER))


def answer_in_rounds(
    mechanism: Mechanism,
    histograms: HistogramArray,
    *,
    rounds: int,
    adviser: Adviser,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
    later_votes: LaterVotes | None = None,
    before: Event = NOTHING,
) -> Rounds:
    """Answer queries in rounds within one budget; one round in the queries' own order is `mechanism.answer` itself.

    What all rounds cost together is at most `mechanism.worst_case(len(histograms), epsilon, delta, before)`.

    Args:
        histograms: int64 [queries, classes], rows summing to the number of teachers: of the queries that are there
            from the start. As many may be asked, these or others.
        adviser: Called before every round with what was released so far.
        epsilon: Budget of all rounds together, and of what was spent before.
        later_votes: Counts the votes on queries that the adviser made; called in the round that asks them.
        before: What the same run spent before anything was asked; the rounds' own event does not hold it.

    Raises:
        InputError: histograms that are none, or advice that names a query twice, one that was asked, or none, or makes
            queries on which nobody votes.
        SettingError: fewer than one round, or an impossible budget.
    """
    if rounds < 1:
        raise SettingError(f"Queries are asked in at least one round, got {rounds}.")
    counts = validate_histograms(histograms)
    teachers = int(counts[:1].sum())
    released = _nothing_yet(counts)
    for number in range(rounds):
        last = number == rounds - 1
        spent = compose(before, released.answers.event)
        left = len(counts) - released.answers.asked
        certain = mechanism.certain(left, epsilon, delta, spent)
        share = left if last else math.ceil(certain / (rounds - number))
        if share == 0:
            break
        released = replace(released, affordable=certain if last else share)
        advice = adviser(released)
        released = _grown(released, advice.made)
        order = np.asarray(advice.order, dtype=np.int64)
        _check(order, released, 1 if last else share)
        queries = order[:share]
        student = advice.probabilities
        turn = mechanism if student is None else mechanism.informed_by(student[queries])
        own = _histograms_of(queries, counts, later_votes, teachers)
        answers = turn.answer(own, epsilon=epsilon, delta=delta, noise=noise, spent=spent)
        released = _merged(released, queries, answers, number)
    return replace(released, affordable=0)


def _histograms_of(
    queries: NDArray[np.int64], counts: HistogramArray, later_votes: LaterVotes | None, teachers: int
) -> HistogramArray:
    """The histograms of `queries`, of which those from len(counts) on were made in rounds."""
    made = queries >= len(counts)
    if not made.any():
        return counts[queries]
    if later_votes is None:
        raise InputError("The adviser made queries of its own, but there is nobody to vote on them: pass later_votes.")
    histograms = np.empty((len(queries), counts.shape[1]), dtype=np.int64)
    histograms[~made] = counts[queries[~made]]
    later = validate_histograms(later_votes(queries[made]), teachers)
    if later.shape != (made.sum(), counts.shape[1]):
        raise InputError(
            f"Votes on {made.sum()} queries in {counts.shape[1]} classes were asked for, and their histograms have the "
            f"shape {list(later.shape)}."
        )
    histograms[made] = later
    return histograms


def _grown(released: Rounds, made: int) -> Rounds:
    """What was released, with room for queries that were just made."""
    if made == 0:
        return released
    if made < 0:
        raise InputError(f"An adviser makes any number of queries from 0 on, not {made}.")
    before = released.answers

    def longer(array: NDArray[Any], value: object) -> NDArray[Any]:
        return np.concatenate([array, np.full((made, *array.shape[1:]), value, dtype=array.dtype)])

    answers = replace(
        before,
        answered=longer(before.answered, False),
        labels=longer(before.labels, UNANSWERED),
        histograms=None if before.histograms is None else longer(before.histograms, np.nan),
        reinforced=None if before.reinforced is None else longer(before.reinforced, False),
    )
    return replace(released, answers=answers, round=longer(released.round, NEVER))


def _nothing_yet(counts: HistogramArray) -> Rounds:
    queries = len(counts)
    labels = np.full(queries, UNANSWERED, dtype=np.int64)
    return Rounds(
        Answers(np.zeros(queries, dtype=np.bool_), labels, None, NOTHING, 0), np.full(queries, NEVER, dtype=np.int64)
    )


def _check(order: NDArray[np.int64], released: Rounds, fewest: int) -> None:
    inside = order.ndim == 1 and len(order) >= fewest and bool(np.all((order >= 0) & (order < len(released.round))))
    if not inside or len(np.unique(order)) < len(order) or bool(np.any(released.round[order] != NEVER)):
        raise InputError(
            f"A round wants the numbers of at least {fewest} queries that were not asked yet, each once, and was given "
            f"{order.shape[0] if order.ndim else 0}."
        )


def _merged(released: Rounds, queries: NDArray[np.int64], answers: Answers, number: int) -> Rounds:
    """What was released before and what this round adds."""
    before = released.answers
    answered, labels, turn = before.answered.copy(), before.labels.copy(), released.round.copy()
    answered[queries], labels[queries] = answers.answered, answers.labels
    turn[queries[: answers.asked]] = number
    histograms, reinforced = before.histograms, before.reinforced
    if answers.histograms is not None:
        histograms = np.full((len(labels), answers.histograms.shape[1]), np.nan) if histograms is None else histograms
        histograms = histograms.copy()
        histograms[queries] = answers.histograms
    if answers.reinforced is not None:
        reinforced = np.zeros(len(labels), dtype=np.bool_) if reinforced is None else reinforced.copy()
        reinforced[queries] = answers.reinforced
    event: Event = compose(before.event, answers.event)
    return Rounds(Answers(answered, labels, histograms, event, before.asked + answers.asked, reinforced), turn)
