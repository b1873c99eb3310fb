"""Averages of teachers that are really private: clipped, noised, and accounted for together with the votes.

Algorithm 1 of Dodwadmath and Stich (2022) makes every teacher a function of every record, and the paper says that its ε
is an assumption. Here what teachers learn from one another passes through a mechanism: in every round each teacher's
update is clipped to norm S, and the sum is released with Gaussian noise of standard deviation zS
(`terrine.privacy.noised_sum`). Given everything that was released before, a record enters its own teacher alone:

- it moves one update, so a released vector is (2/z)-GDP, adaptively composed over rounds;
- after the last release it moves one vote per query, so the votes cost what they always do.

Where features are centred, the mean of the parties' means is one more vector (`terrine.teachers.averaging.averaged`).
Altogether μ² = 4V/z² + Σ over votes, for V released vectors: exact, and what the ledger records.

The control variate c need not be released by itself: eq. 3 makes its change a function of the mean update
(`terrine.teachers.averaging.ttac.derived_control`), so it is computed from the released one at no cost. `control:
released` clips and releases the teachers' control-variate updates as vectors of their own, at twice the cost: the two
are compared in docs/components.md. A teacher's own c_i never leaves it.

Not one of these quantities may be looked at without noise: the norms of updates and the share that was clipped are
private figures.
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
    from terrine.teachers.averaging.ttac import Combine, Local

CENTRE_CLIP = 1.0
"""The largest norm of a party's mean of unit vectors."""


@dataclass(frozen=True)
class PrivateAveraging:
    """How averages are made private.

    settings: with S in `clip`. A control-variate update is clipped to S / (T η_f), which is the same for a gradient as
        S is for the sum of T steps.
    noise_multiplier: z, the noise's standard deviation in units of the clipping norm.
    """

    settings: AveragedTeachers
    noise_multiplier: float

    def __post_init__(self) -> None:
        ClippedSum(self.clip, self.noise_multiplier)

    @property
    def clip(self) -> float:
        """S, the norm that a teacher's update is clipped to."""
        assert self.settings.clip is not None, "teachers whose averages are released have a norm"
        return self.settings.clip

    @property
    def centred(self) -> bool:
        """Whether a centre is released first."""
        return self.settings.centre == "shared"

    @property
    def vectors(self) -> int:
        """How many vectors one round releases."""
        both = self.settings.control_release == "released" and self.settings.correction == "control_variates"
        return 2 if both else 1

    def mechanisms(self, number: int) -> list[ClippedSum]:
        """Return the mechanisms of round `number`, in the order in which they release."""
        scale = self.settings.steps * self.settings.rate(number)
        norms = (self.clip, self.clip / scale)[: self.vectors]
        return [ClippedSum(norm, self.noise_multiplier) for norm in norms]

    def event(self, rounds: int) -> Event:
        """Return what `rounds` rounds cost: (2/z)² for every vector, whatever its clipping norm is."""
        return compose(RepeatedEvent(ClippedSum(self.clip, self.noise_multiplier).event, rounds * self.vectors))

    def describe(self) -> dict[str, Any]:
        """Return the parameters of the noise as JSON values."""
        return {
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "control": self.settings.control_release,
            "centred": self.centred,
        }

    @property
    def centre_mechanism(self) -> ClippedSum:
        """How the centre is released."""
        return ClippedSum(CENTRE_CLIP, self.noise_multiplier)

    def whole_event(self) -> Event:
        """Return what all averages of a run cost: those of R - 1 rounds, and the centre if there is one."""
        rounds = self.event(self.settings.rounds - 1)
        return compose(self.centre_mechanism.event, rounds) if self.centred else rounds

    def release_centre(self, means: list[np.ndarray], noise: NoiseSource) -> np.ndarray:
        """Draw the noise of the centre and return it, float64 [features]; means: of parties, in groups.

        The caller must have charged `centre_mechanism.event` before.
        """
        return self.centre_mechanism.release(means, noise) / sum(len(group) for group in means)

    def release(
        self, updates: list[np.ndarray], changes: list[np.ndarray], number: int, noise: NoiseSource
    ) -> dict[str, np.ndarray]:
        """Draw the noise of round `number` and return what it releases: noisy means, float64 [P], by name.

        updates, changes: Δθ_i and Δc_i [teachers, P] in groups; changes are looked at where they are released alone.
        The caller must have charged `event(1)` before.
        """
        teachers = sum(len(group) for group in updates)
        names = ("update", "control_update")
        sums = zip(names, self.mechanisms(number), (updates, changes), strict=False)
        return {name: mechanism.release(groups, noise) / teachers for name, mechanism, groups in sums}

    def means(self, released: dict[str, np.ndarray], start: Average, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return Δθ and Δc of round `number` from what it released: post-processing."""
        update = released["update"]
        if "control_update" in released:
            return update, released["control_update"]
        return update, derived_control(start, update, self.settings, number)

    def combine(self, noise: NoiseSource) -> Combine:
        """Return the private counterpart of `averaged.exact_means`, for a loop in one process."""

        def means(
            start: Average, locals_: list[Local], before: np.ndarray, number: int
        ) -> tuple[np.ndarray, np.ndarray]:
            ends = np.cumsum([len(part.own) for part in locals_])[:-1]
            changes = [part.own - old for part, old in zip(locals_, np.split(before, ends), strict=True)]
            released = self.release([part.update for part in locals_], changes, number, noise)
            return self.means(released, start, number)

        return means


def calibrated(settings: AveragedTeachers, *, epsilon: float, delta: float) -> PrivateAveraging:
    """Return private averaging all of whose averages cost exactly `budget_share` of the μ² of the run's budget.

    What is left for the votes is (1 - budget_share) μ². Raises SettingError for impossible numbers.
    """
    assert settings.budget_share is not None, "teachers whose averages are released have a share of the budget"
    probe = PrivateAveraging(settings, 1.0)
    vectors = (settings.rounds - 1) * probe.vectors + probe.centred
    return PrivateAveraging(settings, noise_multiplier_for(epsilon, delta, settings.budget_share, vectors))
