"""CaPC's use of the same votes: teachers ask each other about private images, and learn from the answers.

In CaPC (Choquette-Choo et al. 2021) no student is published: a party improves its own model by sending private,
unlabelled images to the others and training on the noisy labels. DIET-PATE (Anonymous 2025,
section 5.2 and appendix A.5) compares two ways to spend a privacy budget:

- *greedy teacher*: one party spends all of it, the upper bound for any party;
- *fair teachers*: the budget and the images are divided equally among all N parties.

ε does not add up, so the paper divides the budget in Rényi differential privacy, the notion its accountant composes
in. Terrine's accountant composes μ², exactly, and there every party gets μ²/N: what all spend together composes to the
whole budget, by its very definition (`fair_share`).

The party that asks does not vote on its own images: votes come from the N − 1 others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.mechanism import Mechanism
from terrine.aggregation.votes import count_votes, validate_votes
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True, eq=False)
class Labelled:
    """Result of a party's share of the budget.

    Attributes:
        queries: int64 [answered], the numbers of the images that were answered.
        labels: int64 [answered], their noisy labels.
        queried: How many images it asked about before its share was spent.
    """

    teacher: int
    queries: NDArray[np.int64]
    labels: NDArray[np.int64]
    queried: int
    event: Event


def greedy_teacher(
    votes: NDArray[np.integer],
    classes: int,
    teacher: int,
    order: NDArray[np.integer],
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
) -> Labelled:
    """Let one party ask until the whole budget is spent.

    votes: whole numbers [queries, teachers], what every teacher says about the private query images; the column of
    `teacher`, who asks, is left out. order: numbers of the queries it asks about, each at most once. Raises InputError
    for invalid votes and for queries or a teacher that do not exist, and SettingError for an impossible budget.
    """
    checked = validate_votes(votes, classes)
    numbers = _checked_order(order, len(checked))
    if not 0 <= teacher < checked.shape[1] or checked.shape[1] < 2:
        raise InputError(f"Teacher {teacher} of {checked.shape[1]} cannot ask others.")
    others = np.delete(checked[numbers], teacher, axis=1)
    answers = mechanism.answer(count_votes(others, classes), epsilon=epsilon, delta=delta, noise=noise)
    answered = np.flatnonzero(answers.answered)
    return Labelled(teacher, numbers[answered], answers.labels[answered], answers.queried, answers.event)


def fair_share(epsilon: float, delta: float, teachers: int) -> float:
    """The ε, at the same δ, of each of N equal parts of a budget: μ² is divided, which composes by addition.

    >>> round(fair_share(10.0, 1e-5, 200), 4)
    0.4971
    """
    if teachers < 1:
        raise SettingError(f"A budget is divided among at least one teacher, not {teachers}.")
    return epsilon_of(mu_of(epsilon, delta) / math.sqrt(teachers), delta)


def fair_teachers(
    votes: NDArray[np.integer],
    classes: int,
    parts: Sequence[NDArray[np.integer]],
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
) -> list[Labelled]:
    """Let every party ask about its own part of the images for its equal share of the budget.

    A party whose share does not pay for one question asks none. The unused part of a share is lost.
    parts: the queries of each teacher, no query twice. epsilon: of all teachers together. Raises InputError for invalid
    votes and for parts that overlap or are not one for each teacher, and SettingError for an impossible budget.
    """
    checked = validate_votes(votes, classes)
    teachers = checked.shape[1]
    if len(parts) != teachers:
        raise InputError(f"There are {teachers} teachers and {len(parts)} parts of the queries: give each its own.")
    _checked_order(np.concatenate([np.asarray(part, np.int64) for part in parts]), len(checked))
    share = fair_share(epsilon, delta, teachers)
    return [
        greedy_teacher(checked, classes, teacher, part, mechanism, epsilon=share, delta=delta, noise=noise)
        if len(part)
        else Labelled(teacher, np.empty(0, np.int64), np.empty(0, np.int64), 0, compose())
        for teacher, part in enumerate(parts)
    ]


def epsilon_together(labelled: Sequence[Labelled], delta: float) -> float:
    """The exact ε of what all these parties were told, composed."""
    return epsilon_of(math.sqrt(mu_squared(compose(*(part.event for part in labelled)))), delta)


def _checked_order(order: NDArray[np.integer], queries: int) -> NDArray[np.int64]:
    numbers = np.asarray(order)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < queries):
        raise InputError(f"There are {queries} queries, and one is asked about that does not exist.")
    if len(np.unique(numbers)) < len(numbers):
        raise InputError("A query is asked about twice: answers to it would be two draws, and cost twice.")
    return numbers.astype(np.int64)
