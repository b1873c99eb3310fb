"""Which answers are fitted and which are held out, and which images share a step."""

from dataclasses import dataclass

import numpy as np

from terrine.determinism.randomness import numpy_generator

HELD_OUT = 8
"""One answer in so many decides when to stop."""
FEWEST_HELD_OUT = 64
"""Groups of images with fewer answers are used for fitting alone."""


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
