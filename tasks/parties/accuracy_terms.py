"""Terms of the release of one accuracy of the student over all parties.

Each teacher party tests the student on its held-out split and reports two sums: the number of units that the student
predicts correctly, and the number of all units (`terrine.privacy.noised_accuracy`). The guardian adds one draw of noise
to the sums of all parties, and the student party reveals them. No party sees another party's accuracy, and the noise is
that of one figure for any number of parties.

These terms follow from those of the votes, the price and the student, so equal inputs give equal terms at all parties.

**Sensitivity.** A unit is held out by one party, and moves the total sums as much as that party's sums: (S, W) has L2
sensitivity 1. A person at `overlap` parties is one unit of each and moves them at most that many times as far
(`events.of_several`). The noise grows by the same factor, so the price is the agreed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tasks.parties.terms import Digest, Terms, checked
from terrine.aggregation.fixed_point import FixedPoint
from terrine.aggregation.gradient_rounds import RoundSchedule
from terrine.aggregation.records import STEP
from terrine.collaboration.protocol.agreement import Reveal
from terrine.privacy.accounting.events import Event, of_several
from terrine.privacy.noised_accuracy import NoisedAccuracy

NUMBERS = 2


class _TwoSums(FixedPoint):
    """Rounds of the accuracy: two numbers in one round, with the same noise."""

    def parts(self, number: int) -> list[tuple[int, float]]:
        return [(NUMBERS, self.schedule.sigma)]

    def released(self, totals: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        return {"sums": self.opened(totals, 0)}


class AccuracyTerms(Terms):
    """Terms of the release of one accuracy. `epsilon` is its price, on top of the answers'."""

    voted: Digest
    """Digest of the terms of the vote."""
    measured: Digest
    """Digest of the student's manifest."""

    @classmethod
    def of(cls, terms: Terms, epsilon: float, measured: str) -> Self:
        """Return the terms for measuring the student of a vote at its parties, at price `epsilon` and the vote's δ.

        measured: digest of the student's manifest. Raises SettingError for an impossible price.
        """
        one = NoisedAccuracy.for_budget(epsilon, terms.delta)
        who = ("guardian", "student", "teachers", "unit", "overlap", "minimum", "delta", "edition", "deadline")
        same = (*who, "keys", "services", "queries_digest", "query_shards", "backbone", "class_names", "version")
        values: dict[str, Any] = {name: getattr(terms, name) for name in same}
        values |= {"mechanism": "accuracy", "sigma": terms.overlap * one.sigma, "epsilon": epsilon}
        values |= {"queries": 1, "queried": 1, "voted": terms.digest, "measured": measured}
        found = checked(values, cls)
        found.fixed_point.step(0)  # noise on too coarse a lattice is refused here
        return found

    @property
    def reveals(self) -> Reveal:
        return "sums"

    @property
    def described(self) -> NoisedAccuracy:
        """The mechanism: one accuracy, from sums with this noise."""
        assert self.sigma is not None
        return NoisedAccuracy(self.sigma)

    @property
    def fixed_point(self) -> FixedPoint:
        assert self.sigma is not None
        return _TwoSums(0, self.classes, RoundSchedule(self.sigma))

    def event(self, passed: int | None = None) -> Event:
        return of_several(self.described.event, self.overlap)

    def shared(self, shares: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the sums that a party shares, int64 [2, 1] in lattice steps.

        shares: float64 [units], the share of each unit's records that the student predicts correctly. Raises InputError
        for more units than the sums of all parties can hold.
        """
        steps = np.rint(self.described.sums(shares) / STEP).astype(np.int64)
        return self.fixed_point.shared(steps, self.fixed_point.most_units // len(self.teachers), 0)[:, None]

    def _check_mechanism(self) -> None:
        """Accept the mechanism, since these terms have only one."""


def terms_from(values: Mapping[str, Any]) -> Terms:
    """Return terms of votes, or of an accuracy, from JSON values.

    Raises:
        SettingError: The values cannot be terms.
    """
    return checked(values, AccuracyTerms if "measured" in values else Terms)
