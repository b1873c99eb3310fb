"""Which answers are fitted and which are held out, and which images share a step."""

from dataclasses import dataclass

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError

HELD_OUT = 8
"""One answer in so many decides when to stop."""
FEWEST_HELD_OUT = 64
"""Groups of images with fewer answers are used for fitting alone."""
FEWEST_TO_CHOOSE = 50
"""With fewer answers a student whose strength would be chosen takes the usual one."""


def check_rows(features: np.ndarray, targets: np.ndarray) -> None:
    """Raise InputError for features [answers, features] and answers that do not fit together, are none or are not
    finite."""
    if features.ndim != 2 or len(features) != len(targets) or len(features) == 0:
        raise InputError(
            f"features of shape {features.shape} and {len(targets)} answers do not fit together. Give one row of "
            "features per released answer, and at least one."
        )
    if not np.isfinite(targets).all() or not np.isfinite(features.sum(dtype=np.float64)):
        raise InputError("The student's features and the released answers must be finite numbers.")


def deciding_quarter(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions, of so many answers, of a quarter that decides about a strength, and the others'."""
    order = numpy_generator(seed, "student held out").permutation(count)
    return order[: count // 4], order[count // 4 :]


@dataclass(frozen=True, eq=False)
class AnswerSplit:
    """Positions of the answers that are fitted, and of those that decide when to stop."""

    kept: np.ndarray
    held_out: np.ndarray


def split_answers(rows: np.ndarray, groups: list[np.ndarray], seed: int) -> AnswerSplit:
    """Hold out one answer in `HELD_OUT` of every group that has at least `FEWEST_HELD_OUT`."""
    held: list[np.ndarray] = []
    for number, group in enumerate(groups):
        own = np.flatnonzero(np.isin(rows, group))
        if len(own) >= FEWEST_HELD_OUT:
            held.append(numpy_generator(seed, "student held out", number).permutation(own)[: len(own) // HELD_OUT])
    held_out = np.sort(np.concatenate(held)) if held else np.empty(0, np.int64)
    return AnswerSplit(np.setdiff1d(np.arange(len(rows)), held_out), held_out)


def draw(groups: list[np.ndarray], count: int, generator: np.random.Generator) -> np.ndarray:
    """Return up to `count` members of one group, which is drawn in proportion to the groups' sizes."""
    sizes = np.array([len(group) for group in groups], float)
    group = groups[generator.choice(len(groups), p=sizes / sizes.sum())]
    if len(group) <= count:
        return group
    return group[generator.choice(len(group), count, replace=False, shuffle=False)]
