"""Validation of votes and histograms, and questions about several findings.

Votes are integers [queries, teachers]: the class each teacher chose. Histograms are int64 [queries, classes]: how many
teachers chose each class, so every row sums to the number of teachers. Both are arrays of small integers, and an
accountant that mistakes one for the other silently under-reports ε; so each is refused if passed as the other.

Several findings
----------------
With K findings a query is K questions, each answered no or yes.

**Answers.** For a query, a teacher gives v ∈ {0, 1}^K. Each finding is a question with the classes no and yes, so Q
queries are Q·K answers, each from a histogram (T − c, c) of T teachers' votes, in the order of queries and within a
query in the order of findings. Every mechanism that counts votes answers them unchanged.

**Sensitivity.** One unit changes one teacher, from v to v' on every query: m = |v − v'|₁ of the query's K histograms
change, each by one vote, which moves two counts by one. So the query's 2K counts move by √(2m), and with noise σ on
every count all Q queries cost μ² = Q·2m/σ²: as much as Q·m answers to single questions. Without a bound, m is at most
K. If every teacher may say yes to at most τ findings of a query (`bounded`),

    m ≤ min(K, 2τ),

attained if v and v' have τ findings each and none in common or, for 2τ ≥ K, by some v and its complement. So of a
query's K answers the first min(K, 2τ) are charged, and the others are free; any choice of that many would do.

**Confident-GNMax** answers a_q of a query's K questions, depending on earlier releases. One unit changes at most
min(a_q, m) of the a_q answers. The sum of min(a_q, m) over queries bounds its effect for every sequence of outcomes,
step by step, and does not depend on the unit, so a Gaussian filter may charge it (Smith & Thakurta 2022).

**One count would suffice.** The two noisy counts of a question sum to T plus noise, which does not depend on c; their
difference is c with noise σ/√2. A release of c only, which a vote moves by one, with noise σ/√2 also costs 2/σ².

Without a bound this is the binary voting of Dziedzic et al. 2023; with a bound it is their τ voting, with τ as a number
of votes, which for votes of 0 and 1 equals the squared L2 norm.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine.errors import InputError

IntegerArray = NDArray[np.integer]
HistogramArray = NDArray[np.int64]

# As int64 positions, this number of votes fits in a core's second-level cache.
_VOTES_PER_CHUNK = 65_536


def validate_votes(votes: ArrayLike, classes: int) -> IntegerArray:
    """Return `votes` as an array after validation.

    Args:
        votes: Integers [queries, teachers] in [0, classes).
        classes: Number of classes, at least 2.

    Raises:
        InputError: The shape or type is wrong, there are no teachers, or a vote is out of range.
    """
    array = np.asarray(votes)
    if classes < 2:
        raise InputError(f"A vote needs at least 2 classes to choose from, got {classes}.")
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(
            f"Votes have the shape [queries, teachers] with at least one teacher, got {list(array.shape)}. "
            "Labels, one per query, are not votes."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"Votes are integers, got {array.dtype}: store the class each teacher chose, not scores.")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= classes:
            worst = low if low < 0 else high
            query, teacher = np.argwhere(array == worst)[0].tolist()
            raise InputError(
                f"Teacher {teacher} voted {worst} on query {query}, but there are {classes} classes, 0 to "
                f"{classes - 1}: vote again, or correct the number of classes."
            )
    return array


def count_votes(votes: ArrayLike, classes: int) -> HistogramArray:
    """Return the number of teachers that chose each class: int64 [queries, classes]; see `validate_votes`."""
    array = validate_votes(votes, classes)
    queries, teachers = array.shape
    histograms = np.empty((queries, classes), dtype=np.int64)
    rows = max(1, _VOTES_PER_CHUNK // teachers)
    offsets = np.arange(rows, dtype=np.int64)[:, None] * classes
    for start in range(0, queries, rows):
        chunk = array[start : start + rows]
        positions = offsets[: len(chunk)] + chunk
        counts = np.bincount(positions.ravel(), minlength=len(chunk) * classes)
        histograms[start : start + rows] = counts.reshape(-1, classes)
    return histograms


def validate_histograms(histograms: ArrayLike) -> HistogramArray:
    """Return `histograms`, [queries, classes], as int64 after validation; all rows must have the same sum.

    Raises:
        InputError: The shape or type is wrong, a count is negative, or row sums differ.
    """
    array = np.asarray(histograms)
    if array.ndim != 2 or array.shape[1] < 2:
        raise InputError(
            f"Histograms have the shape [queries, classes] with at least 2 classes, got {list(array.shape)}. Labels, "
            "one per query, are not histograms: pass the votes through count_votes."
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"Histograms are counts of votes, integers, got {array.dtype}: pass them without noise.")
    if array.size and int(array.min()) < 0:
        query, label = np.argwhere(array < 0)[0].tolist()
        raise InputError(f"The histogram of query {query} counts {array[query, label]} votes for class {label}.")
    counts = array.astype(np.int64, copy=False)
    sums = counts.sum(axis=1)
    expected = int(sums[0]) if sums.size else 0
    wrong = np.flatnonzero(sums != expected)
    if wrong.size or (sums.size and expected < 1):
        query = int(wrong[0]) if wrong.size else 0
        raise InputError(
            f"The histogram of query {query} sums to {int(sums[query])}, but every teacher votes once on every query, "
            f"which makes {max(expected, 1)}. Labels or votes [queries, teachers] are not histograms: pass votes "
            "through count_votes."
        )
    return counts


ANSWERS = ("no", "yes")
"""The classes of a question, in order."""


class Findings(NamedTuple):
    """Number K of findings per query, and maximum τ that a teacher may report; None for no maximum."""

    number: int
    bound: int | None = None


def answer_names(class_names: Sequence[str], several: bool) -> list[str]:
    """Return the possible answers: class names, or no and yes for several findings."""
    return list(ANSWERS) if several else list(class_names)


def movable(findings: int, bound: int | None) -> int:
    """Return how many of a query's answers one unit can move: min(K, 2τ), or K without a bound."""
    return findings if bound is None else min(findings, 2 * bound)


def charged(inspected: NDArray[np.bool_], findings: int, moved: int) -> NDArray[np.bool_]:
    """Return which of the given answers, bool [answers], are charged: the first `moved` of each query."""
    if moved >= findings:
        return inspected
    queries = -(-len(inspected) // findings)
    padded = np.zeros(queries * findings, dtype=np.bool_)
    padded[: len(inspected)] = inspected
    within = padded.reshape(queries, findings).cumsum(axis=1).ravel()[: len(inspected)]
    return np.asarray(inspected & (within <= moved))


def bounded(scores: NDArray[np.floating], bound: int | None) -> NDArray[np.uint8]:
    """Return votes from scores [..., findings]: yes for positive scores that are among the `bound` largest.

    Ties go to the finding with the lower number.
    """
    yes = scores > 0
    if bound is not None and bound < scores.shape[-1]:
        place = np.argsort(np.argsort(-scores, axis=-1, kind="stable"), axis=-1)
        yes &= place < bound
    return yes.astype(np.uint8)


def count_finding_votes(votes: ArrayLike, findings: int, bound: int | None) -> HistogramArray:
    """Return how many teachers say no and yes to each question: int64 [queries · findings, 2].

    Args:
        votes: 0 or 1, [queries · findings, teachers], query by query.
        findings: K.
        bound: τ, as assumed in the charge; None for no bound.

    Raises:
        InputError: Votes are invalid, a query is incomplete, or a teacher has more than `bound` yes votes for a query.
    """
    array = validate_votes(votes, len(ANSWERS))
    if len(array) % findings:
        raise InputError(f"{len(array)} answers are not a multiple of {findings} findings per query.")
    if bound is not None:
        yes = array.reshape(-1, findings, array.shape[1]).sum(axis=1)
        over = np.argwhere(yes > bound)
        if len(over):
            query, teacher = over[0].tolist()
            raise InputError(
                f"Teacher {teacher} says yes to {yes[query, teacher]} findings of query {query}. The charge covers at "
                f"most {bound} (aggregation.findings_bound): vote again."
            )
    return count_votes(array, len(ANSWERS))
