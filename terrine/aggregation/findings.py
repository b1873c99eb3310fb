"""Several findings at once: a query is K questions, each answered no or yes; what one unit moves of the answers.

**Answers.** A teacher says of a query which of K findings it has, v ∈ {0, 1}^K. Each finding is a question of its own
with two classes, no and yes, so Q queries are Q·K answers, each from a histogram (T − c, c) of T teachers' votes, in
the order of queries and within a query in the order of findings. Every mechanism that counts votes answers them
unchanged.

**What a unit moves.** It changes one teacher, from v to v' on every query: m = |v − v'|₁ of the query's K histograms
change, each by one vote, which moves two counts by one. With noise σ on every count the query's 2K counts therefore lie
√(2m) apart, and all Q queries cost μ² = Q·2m/σ²: as much as Q·m answers to single questions. Without a bound m is K at
most. Where every teacher may say yes to at most τ findings of a query (`bounded`),

    m ≤ min(K, 2τ),

reached by v and v' of τ findings each that share none, or, for 2τ ≥ K, by a v and its complement. So of a query's K
answers the first min(K, 2τ) are charged, and the others are free, whichever they are.

**Answers that are given or not.** Confident-GNMax answers a_q of a query's K questions, by what it released before. One
unit moves at most min(a_q, m) of these. The sum of min(a_q, m) over queries bounds what it moves in every course of
events, step by step, and does not depend on it: that is what the Gaussian filter may charge (Smith & Thakurta 2022).

**One count would say the same.** The two noisy counts of a question sum to T plus noise, which says nothing of c.
Their difference says all: c with noise σ/√2. A release of c alone, which a vote moves by one, with noise σ/√2 costs
2/σ², too.

Without a bound this is the binary voting of Dziedzic et al. 2023, with one their τ voting: in number of votes, which
for votes of 0 and 1 is their L2 norm squared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.aggregation.votes import HistogramArray, histograms_of, validate_votes
from terrine.errors import InputError

ANSWERS = ("no", "yes")
"""The classes of a question, in order."""


class Findings(NamedTuple):
    """How many findings a query has, K, and how many of them a teacher may say it has, τ; None: all."""

    number: int
    bound: int | None = None


def answer_names(class_names: Sequence[str], several: bool) -> list[str]:
    """Return what an answer may say: the name of a class, or where there are several findings no or yes."""
    return list(ANSWERS) if several else list(class_names)


def movable(findings: int, bound: int | None) -> int:
    """How many of a query's answers one unit can move: min(K, 2τ), or K without a bound."""
    return findings if bound is None else min(findings, 2 * bound)


def charged(looked_at: NDArray[np.bool_], findings: int, moved: int) -> NDArray[np.bool_]:
    """Which of the answers that are looked at, bool [answers], are charged: the first `moved` of each query's."""
    if moved >= findings:
        return looked_at
    queries = -(-len(looked_at) // findings)
    padded = np.zeros(queries * findings, dtype=np.bool_)
    padded[: len(looked_at)] = looked_at
    within = padded.reshape(queries, findings).cumsum(axis=1).ravel()[: len(looked_at)]
    return np.asarray(looked_at & (within <= moved))


def bounded(scores: NDArray[np.floating], bound: int | None) -> NDArray[np.uint8]:
    """Votes from scores [..., findings]: yes where a score is above 0 and, of these, one of the `bound` largest.

    Of equal scores that of the finding with the lower number counts as larger.
    """
    yes = scores > 0
    if bound is not None and bound < scores.shape[-1]:
        place = np.argsort(np.argsort(-scores, axis=-1, kind="stable"), axis=-1)
        yes &= place < bound
    return yes.astype(np.uint8)


def histograms_of_findings(votes: ArrayLike, findings: int, bound: int | None) -> HistogramArray:
    """How many teachers say no and how many yes to each question.

    Args:
        votes: 0 or 1, [queries · findings, teachers], the questions of one query after those of another.
        findings: K.
        bound: τ, what is charged for; None for no bound.

    Returns:
        int64 [queries · findings, 2].

    Raises:
        InputError: votes that are none, of a part of a query, or of a teacher that says yes more often than `bound`.
    """
    array = validate_votes(votes, len(ANSWERS))
    if len(array) % findings:
        raise InputError(f"{len(array)} answers are no whole number of queries with {findings} findings each.")
    if bound is not None:
        yes = array.reshape(-1, findings, array.shape[1]).sum(axis=1)
        over = np.argwhere(yes > bound)
        if len(over):
            query, teacher = over[0].tolist()
            raise InputError(
                f"Teacher {teacher} says yes to {yes[query, teacher]} findings of query {query}, and what is charged "
                f"holds for at most {bound} (aggregation.findings_bound): vote again."
            )
    return histograms_of(array, len(ANSWERS))
