"""How many teachers, and how much noise: chosen from public quantities alone, before anything is trained.

A release of Q noisy histograms with budget μ (`terrine.privacy.accounting.gaussian`) has noise σ = √(2Q)/μ on every
count. T teachers who agree move a count by T, so all answers together tell their signal from noise with the strength
√Q·T/σ = T·μ/√2, whatever Q is: more queries say less each. It is shared by K classes, so what decides is

    signal = T·μ / √K.

Below `ENOUGH` a student learns little more than noise. From `AMPLE`·√K on, where a class has its share T/K of the
teachers for itself and T·μ/K is `AMPLE`, more teachers gain little, and each of them has fewer records. So as many
teachers are taken as make the signal ample, and no more than leave each of them `UNITS_EACH` units. The constants were
measured once, on digits, MNIST, CIFAR-10, blood cells and X-rays cut to 1,400 ... 20,000 records, at ε from 1 to 8
(benchmarks/automatic.py, docs/settings.md), and are no function of anybody's data.

Where records are summed instead (`terrine.aggregation.sums`), n units of which each adds a vector of length one for its
class, in d coordinates of noise, tell signal from noise with n·μ / (K·√d); `ENOUGH_OF_SUMS` and `AMPLE_OF_SUMS` are to
it what the other two are to votes.

    >>> plan(12_000, classes=10, epsilon=4, delta=1e-5)
    Plan(teachers=648, sigma=..., queries=6000, signal=189..., ample=189..., units=12000)

Which mechanism: sums hear every unit once, as a vector of length one, and spend no unit on teachers who know little. A
student of sums is served under the same statistics as it was made with. Teachers that vote and their student are at
their best under the statistics of whole batches. Served image by image, under released moments, the student loses some
of that, and nearly all of it if there are so few units that the moments are mostly noise. So sums are advised wherever
they are possible, for records and for groups; votes remain for models that are not linear, and for data that may not be
added up. Which mechanism is better was measured, as served (benchmarks/groups.py, docs/settings.md).

    >>> advise(60_000, classes=10, epsilon=2, delta=1e-5).mechanism
    'gradients'
    >>> advise(60_000, classes=10, epsilon=2, delta=1e-5, linear=False).mechanism
    'histogram'
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of

AMPLE = 60.0
"""The signal, in √K, where teachers begin to be too many."""
ADVISED, ENOUGH = 50.0, 32.0
"""Signals: what advice aims at, and below which no student is worth its price."""
UNITS_EACH = {"record": 3.0, "group": 1.2}
"""The fewest units that a teacher should have on average: a group brings several records."""
AMPLE_OF_SUMS, ADVISED_OF_SUMS, ENOUGH_OF_SUMS = 4.0, 2.5, 1.0
"""The same of sums over records."""
QUERIES = 6_000
SHARE_OF_COUNT = 1 / 64
"""The share of a run's budget, in μ², that counting the units with noise may take."""
_ROOM = 1 - 1e-9  # sums of costs are rounded upwards: the last answer must still fit


@dataclass(frozen=True)
class Plan:
    """Settings of an ensemble, and what they promise.

    Attributes:
        teachers: T.
        sigma: Noise on each count of an answer, in votes.
        queries: Q.
        signal: T·μ / √K.
        ample: The signal that more teachers need not exceed, see the function.
        units: Units of privacy that the teachers share, as far as anybody may know.
    """

    teachers: int
    sigma: float
    queries: int
    signal: float
    ample: float
    units: int

    @property
    def useful(self) -> bool:
        """Whether a student can learn from it."""
        return self.signal >= ENOUGH


def signal(teachers: float, mu: float, classes: int) -> float:
    """Return how far the votes of T teachers rise above the noise of a budget μ, for each of K classes."""
    return teachers * mu / math.sqrt(classes)


def ample(classes: int, *, several: bool = False) -> float:
    """Return the signal that more teachers need not exceed; of `several` findings each has that of two classes."""
    return AMPLE * math.sqrt(2 if several else classes)


def plan(
    units: int,
    *,
    classes: int,
    epsilon: float,
    delta: float,
    unit: Literal["record", "group"] = "record",
    queries: int | None = None,
    teachers: int | None = None,
    counted: float = 0.0,
    moments: float = 0.0,
    moved: int | None = None,
) -> Plan:
    """Choose the size of an ensemble and its noise.

    Args:
        units: How many records or groups there are to learn from, as far as anybody may know.
        classes: K.
        epsilon: The run's budget, for counting the units and for moments, too.
        queries: Q, where it is given.
        teachers: T, where it is given.
        counted: Standard deviation of the noise on `units`, where they were counted at the run's cost; 0 where they
            were declared.
        moments: The share of μ² that goes to a release of moments.
        moved: How many answers of a query one unit moves, where a query has several findings, whatever their number:
            noise is then that of so many answers, and takes the place of classes in the signal of each finding, which
            is ample where that of two classes is.

    Raises:
        SettingError: an impossible budget.
    """
    enough = ample(classes, several=moved is not None)
    asked, classes = QUERIES if queries is None else queries, classes if moved is None else moved
    mu = mu_of(epsilon, delta)
    spent = (counted**-2 if counted else 0.0) + moments * mu**2
    left = math.sqrt(mu**2 - spent) * _ROOM if spent else mu
    if teachers is None:
        # Fewer than there are, also where noise made them look more: a teacher more than units is refused.
        most = (units - 3 * counted) / UNITS_EACH[unit]
        teachers = max(2, math.floor(min(most, enough * math.sqrt(classes) / left)))
    sigma = calibrate(epsilon_of(left, delta) if spent else epsilon, delta, asked * (moved or 1)).sigma
    return Plan(teachers, sigma, asked, signal(teachers, left, classes), enough, units)


def shown(signal: float) -> str:
    """Return a signal with as many digits as it deserves."""
    return f"{signal:,.0f}" if signal >= 10 else f"{signal:.2g}"


def noise_of_count(epsilon: float, delta: float) -> float:
    """Return the noise σ, in units, at which counting them takes `SHARE_OF_COUNT` of a run's budget.

    One unit more or less changes the count by one, so it costs μ² = 1/σ².
    """
    return 1 / (mu_of(epsilon, delta) * math.sqrt(SHARE_OF_COUNT))


def knowing(teachers: int, records: int) -> float:
    """Return how many of so many teachers have a record of a class, on average, that has so many."""
    return teachers * -math.expm1(records * math.log1p(-1 / teachers)) if teachers > 1 else float(records > 0)


def signal_of_sums(units: int, mu: float, *, classes: float, features: int) -> float:
    """Return how far sums over so many units rise above the noise of a budget μ. features: coordinates of a vector."""
    return units * mu / (classes * math.sqrt(features))


def advised_epsilon(
    units: int,
    *,
    classes: int,
    delta: float,
    unit: Literal["record", "group"],
    counts: bool = False,
    moments: float = 0.0,
) -> float:
    """Return the ε to advise for so many units whose teachers vote (`round_advice`).

    counts: whether they are to be counted with noise, which leaves room for fewer teachers. moments: see `plan`.
    """
    epsilon = epsilon_for_signal(ADVISED, max(units, 1) / UNITS_EACH[unit] / math.sqrt(classes), 1, delta)
    about: dict[str, Any] = {"classes": classes, "delta": delta, "unit": unit, "moments": moments}
    while plan(units, epsilon=epsilon, counted=noise_of_count(epsilon, delta) * counts, **about).signal < ADVISED:
        epsilon = round_advice(1.01 * epsilon)
    return epsilon


def advised_units(units: int, wanted: float, signal: float) -> int:
    """Return how many units to advise, rounded up to tens, if so many have a signal and another one is wanted."""
    return math.ceil(1.02 * units * wanted / signal / 10) * 10


def epsilon_for_signal(wanted: float, signal: float, mu: float, delta: float) -> float:
    """Return the ε that makes of a signal at a budget μ the one that is wanted (`round_advice`)."""
    return round_advice(epsilon_of(1.02 * mu * wanted / signal, delta))


def round_advice(epsilon: float) -> float:
    """Return the next of ..., 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, ...

    Advice looks at how many units there are, and whoever follows it publishes the ε: a finer one would tell how many.
    """
    power = 2.0 ** math.floor(math.log2(epsilon))
    return next(power * step for step in (1, 1.5, 2) if power * step >= epsilon)


def choose_mechanism(*, sums_possible: bool, one_round: bool = False) -> Literal["gradients", "moments", "histogram"]:
    """Return the mechanism to use: sums if possible, because in most measured cases their student is more accurate.

    Args:
        sums_possible: Records may be added up, and a linear head on public features suffices.
        one_round: Data owners can answer only once.
    """
    if not sums_possible:
        return "histogram"
    return "moments" if one_round else "gradients"


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
    mu = mu_of(epsilon, delta)
    sums = signal_of_sums(units, mu, classes=classes, features=features + 1)
    mechanism = choose_mechanism(sums_possible=linear and not apart, one_round=one_round)
    if mechanism == "histogram":
        why = (
            "Records may not be added up, so teachers vote."
            if apart
            else "Sums support only linear heads, so teachers vote."
        )
        larger = None if votes.useful else advised_epsilon(units, classes=classes, delta=delta, unit=unit)
        hope = f"The signal of {votes.teachers:,} teachers is {shown(votes.signal)}, where {ENOUGH:.0f} is needed."
        return Advice(mechanism, votes, sums, votes.useful, larger, f"{why} {hope}")
    useful = sums >= ENOUGH_OF_SUMS
    larger = None if useful else epsilon_for_signal(ADVISED_OF_SUMS, sums, mu, delta)
    rounds = "in one round, moments" if one_round else "in several rounds, gradients"
    why = (
        f"{unit.capitalize()}s may be added up. In most measured cases a student of sums is more accurate, as served, "
        f"than one of votes at the same ε: {rounds}."
    )
    hope = f"The signal is {shown(sums)}, where {ENOUGH_OF_SUMS:g} is needed."
    return Advice(mechanism, votes, sums, useful, larger, f"{why} {hope}")
