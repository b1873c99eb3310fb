"""Advice on the mechanism, from public quantities only and before any data are read.

Sums hear every unit once, as a vector of length one, and spend no unit on teachers who know little. A student of sums
is served under the same statistics as it was made with. Teachers that vote and their student are at their best under
the statistics of whole batches. Served image by image, under released moments, the student loses some of that, and
nearly all of it if there are so few units that the moments are mostly noise. So sums are advised wherever they are
possible, for records and for groups; votes remain for models that are not linear, and for data that may not be added
up. Both signals and their thresholds are those of `terrine.planning`. Which mechanism is better was measured, as served
(benchmarks/groups.py, docs/settings.md).

    >>> advise(60_000, classes=10, epsilon=2, delta=1e-5).mechanism
    'gradients'
    >>> advise(60_000, classes=10, epsilon=2, delta=1e-5, linear=False).mechanism
    'histogram'
"""

from dataclasses import dataclass
from typing import Literal

from terrine.planning import (
    ENOUGH,
    ENOUGH_OF_SUMS,
    Plan,
    advised_epsilon,
    advised_epsilon_of_sums,
    plan,
    shown,
    signal_of_sums,
)
from terrine.privacy.accounting.gaussian import mu_of


@dataclass(frozen=True)
class Advice:
    """What to take, and what may be hoped for.

    Attributes:
        mechanism: Of the section `aggregation`.
        votes: What `auto` chooses where teachers vote.
        sums: The signal of sums, by `terrine.planning.signal_of_sums`.
        useful: Whether a student can learn from what is advised.
        epsilon: An ε at which it would, where it cannot.
        reason: Why, in two sentences.
    """

    mechanism: Literal["gradients", "moments", "histogram"]
    votes: Plan
    sums: float
    useful: bool
    epsilon: float | None
    reason: str


def advise(
    units: int,
    *,
    classes: int,
    features: int = 200,
    epsilon: float,
    delta: float,
    unit: Literal["record", "group"] = "record",
    apart: bool = False,
    one_round: bool = False,
    linear: bool = True,
) -> Advice:
    """Advise a mechanism.

    Args:
        units: About how many records or groups there are, as far as anybody may know.
        features: Coordinates of the features that a linear head reads.
        apart: Whether nothing about records may be added up, not even in secret shares.
        one_round: Whether those who hold the records can answer once only.
        linear: Whether a linear head on public features will do.

    Raises:
        SettingError: an impossible budget.
    """
    votes = plan(units, classes=classes, epsilon=epsilon, delta=delta, unit=unit)
    sums = signal_of_sums(units, mu_of(epsilon, delta), classes=classes, features=features + 1)
    why = None
    if apart:
        why = "Nothing about records may be added up, so teachers vote."
    elif not linear:
        why = "Sums teach linear heads alone; teachers of any kind may vote."
    if why is not None:
        larger = None if votes.useful else advised_epsilon(units, classes=classes, delta=delta, unit=unit)
        hope = f"The signal of {votes.teachers:,} teachers is {shown(votes.signal)}, where {ENOUGH:.0f} is needed."
        return Advice("histogram", votes, sums, votes.useful, larger, f"{why} {hope}")
    useful = sums >= ENOUGH_OF_SUMS
    larger = None if useful else advised_epsilon_of_sums(units, classes=classes, features=features + 1, delta=delta)
    rounds = "in one round, moments" if one_round else "in several rounds, gradients"
    why = (
        f"{unit.capitalize()}s may be added up. In most measured cases a student of sums is more accurate, as served, "
        f"than one of votes at the same ε: {rounds}."
    )
    hope = f"The signal is {shown(sums)}, where {ENOUGH_OF_SUMS:g} is needed."
    return Advice("moments" if one_round else "gradients", votes, sums, useful, larger, f"{why} {hope}")
