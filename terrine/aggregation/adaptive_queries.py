"""Rounds of queries: learn from the answers so far, and let the result choose the next queries.

Releases are public, so anything computed from them may choose the next queries and, for Interactive-GNMax, the
reference with which votes are compared; the exact filter covers adaptive choices at no extra cost (Smith & Thakurta
2022). The adviser therefore receives the released answers and never the votes.

The remaining budget and the number of rounds determine how many queries a round asks: an even share of those that are
certain to be affordable. The last round takes all remaining queries and stops when the budget ends.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.mechanism import NOTHING, UNANSWERED, Answers, Mechanism
from terrine.aggregation.votes import HistogramArray, validate_histograms
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.noise import NoiseSource

NEVER = -1
"""Round number of a query that was not asked."""


@dataclass(frozen=True, eq=False)
class Advice:
    """Suggestion for the next round.

    Attributes:
        order: int64, the queries that have not been asked, best first; the round takes its share from the start.
        probabilities: The student's class probabilities [queries, classes] for all queries, or None without a student.
            A mechanism may compare the votes with them (`Mechanism.informed_by`).
    """

    order: NDArray[np.int64]
    probabilities: NDArray[np.floating] | None = None


@dataclass(frozen=True, eq=False)
class Rounds:
    """Combined answers of all rounds.

    Attributes:
        answers: Answers to all queries; `event` composes the rounds and `queried` counts their queries.
        round: int64 [queries], the round in which each query was asked, from 0, or -1.
    """

    answers: Answers
    round: NDArray[np.int64]


Adviser = Callable[[Rounds], Advice]
"""Advice on the next queries, computed from released answers and public images only."""


def in_order(released: Rounds) -> Advice:
    """Return the remaining queries in their original order."""
    return Advice(np.flatnonzero(released.round == NEVER))


def most_uncertain(released: Rounds, probabilities: NDArray[np.floating] | None) -> Advice:
    """Return the remaining queries by the entropy of a student's probabilities [queries, classes], largest first.

    Source: Lewis and Gale 1994. Without a student (None), queries keep their order.
    """
    order = in_order(released).order
    if probabilities is not None:
        own = np.asarray(probabilities[order], np.float64)
        entropy = -(own * np.log(np.maximum(own, np.finfo(np.float64).tiny))).sum(axis=1)
        order = order[np.argsort(-entropy, kind="stable")]
    return Advice(order, probabilities)


def answer_in_rounds(
    mechanism: Mechanism,
    histograms: HistogramArray,
    *,
    rounds: int,
    adviser: Adviser,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
    before: Event = NOTHING,
) -> Rounds:
    """Answer queries in rounds within one budget; a single round in the original order equals `mechanism.answer`.

    The total cost is at most `mechanism.worst_case(len(histograms), epsilon, delta, before)`.

    Args:
        mechanism: Answers the queries of each round.
        histograms: int64 [queries, classes], rows summing to the number of teachers.
        rounds: Maximum number of rounds, at least 1.
        adviser: Function called before every round with the releases so far.
        epsilon: Budget of all rounds and of `before`.
        delta: δ of the budget.
        noise: Source of the noise.
        before: Cost of earlier releases of the run, which the result's event does not include.

    Raises:
        InputError: Histograms are invalid, or the advice has no, repeated, unknown or already asked queries.
        SettingError: The number of rounds is below 1, or the budget is invalid.
    """
    if rounds < 1:
        raise SettingError(f"Queries are asked in at least one round, got {rounds}.")
    counts = validate_histograms(histograms)
    released = Rounds(
        Answers(np.zeros(len(counts), np.bool_), np.full(len(counts), UNANSWERED, np.int64), None, NOTHING, 0),
        np.full(len(counts), NEVER, dtype=np.int64),
    )
    for number in range(rounds):
        last = number == rounds - 1
        spent = compose(before, released.answers.event)
        left = len(counts) - released.answers.queried
        share = left if last else math.ceil(mechanism.certain(left, epsilon, delta, spent) / (rounds - number))
        if share == 0:
            break
        advice = adviser(released)
        order = np.asarray(advice.order, dtype=np.int64)
        _check(order, released, 1 if last else share)
        queries = order[:share]
        student = advice.probabilities
        turn = mechanism if student is None else mechanism.informed_by(student[queries])
        answers = turn.answer(counts[queries], epsilon=epsilon, delta=delta, noise=noise, spent=spent)
        released = _merged(released, queries, answers, number)
    return released


def _check(order: NDArray[np.int64], released: Rounds, fewest: int) -> None:
    inside = order.ndim == 1 and len(order) >= fewest and bool(np.all((order >= 0) & (order < len(released.round))))
    if not inside or len(np.unique(order)) < len(order) or bool(np.any(released.round[order] != NEVER)):
        raise InputError(
            f"A round needs at least {fewest} different queries that were not asked yet, and got "
            f"{order.shape[0] if order.ndim else 0}."
        )


def _merged(released: Rounds, queries: NDArray[np.int64], answers: Answers, number: int) -> Rounds:
    """Return the combined results including this round."""
    before = released.answers
    answered, labels, turn = before.answered.copy(), before.labels.copy(), released.round.copy()
    answered[queries], labels[queries] = answers.answered, answers.labels
    turn[queries[: answers.queried]] = number
    histograms, reinforced = before.histograms, before.reinforced
    if answers.histograms is not None:
        histograms = np.full((len(labels), answers.histograms.shape[1]), np.nan) if histograms is None else histograms
        histograms = histograms.copy()
        histograms[queries] = answers.histograms
    if answers.reinforced is not None:
        reinforced = np.zeros(len(labels), dtype=np.bool_) if reinforced is None else reinforced.copy()
        reinforced[queries] = answers.reinforced
    event: Event = compose(before.event, answers.event)
    return Rounds(Answers(answered, labels, histograms, event, before.queried + answers.queried, reinforced), turn)
