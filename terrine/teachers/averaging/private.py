"""Differentially private averages of teachers: clipped, noised, and accounted for together with the votes.

Algorithm 1 of Dodwadmath and Stich (2022) makes every teacher a function of every record, and the paper states that its
ε is an assumption. Here averages pass through a mechanism: in every round each teacher's update is clipped to norm S,
and the sum is released with Gaussian noise of standard deviation zS (`terrine.privacy.noised_sum`). Given all earlier
releases, a record affects only its own teacher:

- it moves one update, so a released vector is (2/z)-GDP, adaptively composed over rounds;
- after the last release it moves one vote per query, so the votes cost the usual amount.

If features are centred, the mean of the parties' means is one more vector (`terrine.teachers.averaging.averaged`).
The total μ² = 4V/z² + Σ over votes, for V released vectors, is exact, and is what the ledger records.

The control variate c is not released: by eq. 3 its change is a function of the mean update
(`terrine.teachers.averaging.ttac.derived_control`), so it is computed from the released update at no cost. A teacher's
c_i never leaves its party. Norms of updates and the share of clipped ones are private figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from terrine.privacy.accounting.events import Event, RepeatedEvent, compose
from terrine.privacy.noise import NoiseSource
from terrine.privacy.noised_sum import ClippedSum, noise_multiplier_for
from terrine.teachers.averaging.ttac import Average, derived_control

if TYPE_CHECKING:
    from terrine.teachers.averaging.averaged import AveragedTeachers
    from terrine.teachers.averaging.ttac import Combine, LocalResult

CENTRE_CLIP = 1.0
"""Bound on the norm of a party's mean of unit vectors."""


@dataclass(frozen=True)
class PrivateAveraging:
    """Private averages of teachers.

    Attributes:
        settings: Settings of the teachers; `clip` is S.
        noise_multiplier: z, the noise's standard deviation in units of the clipping norm.
    """

    settings: AveragedTeachers
    noise_multiplier: float

    def __post_init__(self) -> None:
        assert self.settings.clip is not None, "teachers whose averages are released have a clipping norm"
        ClippedSum(self.settings.clip, self.noise_multiplier)

    @property
    def centred(self) -> bool:
        """True if a centre is released first."""
        return self.settings.centre == "shared"

    @property
    def mechanism(self) -> ClippedSum:
        """Mechanism that releases the sum of updates in every round."""
        return ClippedSum(self.settings.clip or 0.0, self.noise_multiplier)

    @property
    def centre_mechanism(self) -> ClippedSum:
        """Mechanism that releases the common centre of the features."""
        return ClippedSum(CENTRE_CLIP, self.noise_multiplier)

    def event(self, rounds: int) -> Event:
        """Return the cost of `rounds` rounds: (2/z)² each, for every clipping norm."""
        return compose(RepeatedEvent(self.mechanism.event, rounds))

    def whole_event(self) -> Event:
        """Return the cost of all averages of a run: R - 1 rounds, and the centre if there is one."""
        rounds = self.event(self.settings.rounds - 1)
        return compose(self.centre_mechanism.event, rounds) if self.centred else rounds

    def describe(self) -> dict[str, Any]:
        """Return the parameters of the noise as JSON values."""
        return {"clip": self.settings.clip, "noise_multiplier": self.noise_multiplier, "centred": self.centred}

    def release_centre(self, means: list[np.ndarray], noise: NoiseSource) -> np.ndarray:
        """Release the noisy centre, float64 [features], of the parties' means in groups, [parties, features] each.

        The caller must have charged `centre_mechanism.event` before.
        """
        return self.centre_mechanism.release(means, noise) / sum(len(group) for group in means)

    def release(self, updates: list[np.ndarray], noise: NoiseSource) -> np.ndarray:
        """Release a round's noisy mean update, float64 [P], of updates Δθ_i [teachers, P] in groups.

        The caller must have charged `event(1)` before.
        """
        return self.mechanism.release(updates, noise) / sum(len(group) for group in updates)

    def combine(self, noise: NoiseSource) -> Combine:
        """Return the private counterpart of `ttac.exact_means`, for a loop in one process."""

        def means(
            start: Average, results: list[LocalResult], before: np.ndarray, number: int
        ) -> tuple[np.ndarray, np.ndarray]:
            update = self.release([part.update for part in results], noise)
            return update, derived_control(start, update, self.settings, number)

        return means


def calibrated(settings: AveragedTeachers, *, epsilon: float, delta: float) -> PrivateAveraging:
    """Return private averaging whose averages together cost exactly `budget_share` of the μ² of the run's budget.

    The remaining (1 - budget_share) μ² pay for the votes. Raises SettingError for an impossible budget.
    """
    assert settings.budget_share is not None, "teachers whose averages are released have a share of the budget"
    vectors = settings.rounds - 1 + PrivateAveraging(settings, 1.0).centred
    return PrivateAveraging(settings, noise_multiplier_for(epsilon, delta, settings.budget_share, vectors))
