"""The average that teachers learn from, and how it moves: arithmetic on vectors, which knows no model and no torch.

Algorithm 1 of Dodwadmath and Stich (2022), lines 11 to 16; the local steps are in `terrine.teachers.averaging.ttac`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from terrine.teachers.averaging.learners import Learner
    from terrine.teachers.kinds.averaged import AveragedTeachers


@dataclass(frozen=True)
class Average:
    """What a round starts from: θ and c, float64 [P]."""

    value: np.ndarray
    control: np.ndarray

    @classmethod
    def start(cls, learner: Learner) -> Average:
        """Return the public start: the learner's own weights, and no direction yet."""
        value = learner.initial().double().cpu().numpy()
        return cls(value, np.zeros_like(value))


def mean_of(groups: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean float64 [P] of vectors [teachers, P] in groups; the same to the last bit however grouped."""
    total, count = np.zeros(groups[0].shape[1]), 0
    for group in groups:
        for vector in group:
            total += vector
        count += len(group)
    return total / count


def derived_control(start: Average, update: np.ndarray, settings: AveragedTeachers, number: int) -> np.ndarray:
    """Return Δc, [P], as the mean update determines it.

    By eq. 3, c_i⁺ - c_i = -c - (θ_i - θ) / (T η_f) for every teacher, so the mean of the left side is this function of
    the mean of the right side. Where the update was released, Δc therefore costs no further privacy.
    """
    if settings.correction == "none":
        return np.zeros_like(start.control)
    return -start.control - update / (settings.steps * settings.rate(number))


def server_step(start: Average, update: np.ndarray, control_update: np.ndarray, settings: AveragedTeachers) -> Average:
    """Return the next average from the mean updates Δθ and Δc, [P]; line 16 of Algorithm 1."""
    return Average(start.value + settings.server_rate * update, start.control + control_update)
