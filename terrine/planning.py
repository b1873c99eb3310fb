"""Choose the number of teachers and the noise from public quantities, before training.

A release of Q noisy histograms with budget μ (`terrine.privacy.accounting.gaussian`) has noise σ = √(2Q)/μ on every
count. T agreeing teachers move a count by T, so the signal-to-noise ratio of all answers is √Q·T/σ = T·μ/√2 for any Q:
with more queries, each answer is noisier. K classes share the signal, so the relevant quantity is

    signal = T·μ / √K.

Below `ENOUGH` a student learns little more than noise. From `AMPLE`·√K, more teachers gain little, and each has fewer
records. The plan therefore uses the smallest ample number of teachers, but at least `UNITS_EACH` units for each.
The constants were measured on subsets of 1,400 to 20,000 records of digits, MNIST, CIFAR-10, blood cells and X-rays, at
ε from 1 to 8 (docs/settings.md), and do not depend on the user's data.

If records are summed instead (`terrine.aggregation.sums`), each of n units adds a vector of length 1 for its class,
with d noisy coordinates, and the signal is n·μ / (K·√d), with separate constants.

    >>> plan(12_000, classes=10, epsilon=4, delta=1e-5)
    Plan(teachers=648, sigma=..., queries=6000, signal=189..., ample=189..., units=12000)

Choice of the mechanism: sums use every unit, and their student is served with the batch statistics of its training.
Voting teachers and their student are most accurate with statistics of whole batches. If the student is served image by
image with released moments, part of that accuracy is lost, or nearly all if there are few units. Sums are therefore
advised whenever possible; votes remain for models that are not linear and for data that may not be summed. Accuracies
were measured as served (benchmarks/groups.py, docs/settings.md).

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
"""Signal, in √K, above which more teachers gain little."""
ADVISED, ENOUGH = 50.0, 32.0
"""Signals: the target of advice, and the minimum for a useful student."""
UNITS_EACH = {"record": 3.0, "group": 1.2}
"""Minimum average number of units per teacher, by kind of unit; a group has several records."""
ADVISED_OF_SUMS, ENOUGH_OF_SUMS = 2.5, 1.0
"""Signals of sums over records: advised, and enough for a student to learn."""
COST_OF_NOISE = {1: (2, 44), 2: (4, 26), 4: (2, 17), 8: (1, 8), 15: (0, 3), 30: (0, 2)}
"""Smallest and largest measured loss of accuracy to noise, in points, from each signal of sums on
(benchmarks/noise_cost.py; 44 in a run on photographs of hand signs, with 163 people and ε = 4)."""
QUERIES = 6_000
SHARE_OF_COUNT = 1 / 64
"""Share of a run's budget, in μ², for counting the units with noise."""
_ROOM = 1 - 1e-9  # margin for sums of costs, which are rounded up: the last answer must fit


@dataclass(frozen=True)
class Plan:
    """Settings of an ensemble of teachers and its expected signal.

    Attributes:
        teachers: Number of teachers T.
        sigma: Standard deviation of the noise on each count, in votes.
        queries: Number of queries Q.
        signal: Expected signal T·μ / √K.
        ample: Signal above which more teachers gain little.
        units: Number of units of privacy, exact or noisy.
    """

    teachers: int
    sigma: float
    queries: int
    signal: float
    ample: float
    units: int

    @property
    def useful(self) -> bool:
        """True if a student can learn from the answers."""
        return self.signal >= ENOUGH


def signal(teachers: float, mu: float, classes: int) -> float:
    """Return the signal T·μ / √K of votes."""
    return teachers * mu / math.sqrt(classes)


def ample(classes: int, *, several: bool = False) -> float:
    """Return the signal above which more teachers gain little; for `several` findings it is that of two classes."""
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
        units: Number of records or groups, declared or counted with noise.
        classes: K.
        epsilon: Budget of the run, including counting the units and moments.
        delta: δ of the budget.
        unit: Unit of privacy.
        queries: Number of queries Q; None: the default.
        teachers: Number of teachers T; None: choose it.
        counted: Standard deviation of the noise on `units`, if the run's budget paid for counting them; otherwise 0.
        moments: Share of μ² for a release of moments.
        moved: Number of answers per query that one unit can move, with several findings. It determines the noise and
            replaces K in the signal of each finding.

    Raises:
        SettingError: an impossible budget.
    """
    enough = ample(classes, several=moved is not None)
    queried, classes = QUERIES if queries is None else queries, classes if moved is None else moved
    mu = mu_of(epsilon, delta)
    spent = (counted**-2 if counted else 0.0) + moments * mu**2
    left = math.sqrt(mu**2 - spent) * _ROOM if spent else mu
    if teachers is None:
        # Below the true number with high probability, because having more teachers than units is an error.
        most = (units - 3 * counted) / UNITS_EACH[unit]
        teachers = max(2, math.floor(min(most, enough * math.sqrt(classes) / left)))
    sigma = calibrate(epsilon_of(left, delta) if spent else epsilon, delta, queried * (moved or 1)).sigma
    return Plan(teachers, sigma, queried, signal(teachers, left, classes), enough, units)


def judge_votes(plan: Plan) -> str:
    """Describe the signal of votes in words: ample, enough or too weak."""
    most = 0.9 * plan.ample  # plans aim slightly higher
    word = "ample" if plan.signal >= most else "enough" if plan.useful else "too weak"
    return f"signal {format_signal(plan.signal)}, {word} (enough: {ENOUGH:g}, ample: {format_signal(most)})"


def judge_sums(signal: float) -> str:
    """Describe the signal of sums by the accuracy that noise cost in measurements."""
    if signal < ENOUGH_OF_SUMS:
        return f"signal {format_signal(signal)}, too weak (needed: {ENOUGH_OF_SUMS:g})"
    low, high = COST_OF_NOISE[max(least for least in COST_OF_NOISE if least <= signal)]
    cost = f"{low} to {high} points" if low else f"at most {high} points"
    return f"signal {format_signal(signal)}; with as much, noise cost {cost} of accuracy in our measurements"


def format_signal(signal: float) -> str:
    """Return a signal as text with two significant digits or more."""
    return f"{signal:,.0f}" if signal >= 10 else f"{signal:.2g}"


def noise_of_count(epsilon: float, delta: float) -> float:
    """Return the noise σ, in units, at which counting the units costs `SHARE_OF_COUNT` of a run's budget.

    One unit changes the count by one, so the cost is μ² = 1/σ².
    """
    return 1 / (mu_of(epsilon, delta) * math.sqrt(SHARE_OF_COUNT))


def teachers_with_class(teachers: int, records: float) -> float:
    """Return the expected number of teachers that have at least one of the records of a class."""
    return teachers * -math.expm1(records * math.log1p(-1 / teachers)) if teachers > 1 else float(records > 0)


def signal_of_sums(units: int, mu: float, *, classes: float, features: int) -> float:
    """Return the signal n·μ / (K·√d) of sums over n units with d features."""
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
    """Return a rounded ε at which votes reach the signal `ADVISED`.

    Args:
        units: Number of units of privacy.
        classes: K.
        delta: δ of the budget.
        unit: Unit of privacy.
        counts: Whether the units are counted with noise, which allows fewer teachers.
        moments: Share of μ² for a release of moments.
    """
    epsilon = epsilon_for_signal(ADVISED, max(units, 1) / UNITS_EACH[unit] / math.sqrt(classes), 1, delta)
    about: dict[str, Any] = {"classes": classes, "delta": delta, "unit": unit, "moments": moments}
    while plan(units, epsilon=epsilon, counted=noise_of_count(epsilon, delta) * counts, **about).signal < ADVISED:
        epsilon = round_advice(1.01 * epsilon)
    return epsilon


def advised_units(units: int, wanted: float, signal: float) -> int:
    """Return the number of units, rounded up to tens, for the wanted signal, given that `units` give `signal`."""
    return math.ceil(1.02 * units * wanted / signal / 10) * 10


def epsilon_for_signal(wanted: float, signal: float, mu: float, delta: float) -> float:
    """Return a rounded ε at which the wanted signal is reached, given that budget μ gives `signal`."""
    return round_advice(epsilon_of(1.02 * mu * wanted / signal, delta))


def round_advice(epsilon: float) -> float:
    """Round ε up to ..., 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, ...

    Advice depends on the number of units, and the chosen ε is published: a finer grid of ε would reveal that number.
    """
    power = 2.0 ** math.floor(math.log2(epsilon))
    return next(power * step for step in (1, 1.5, 2) if power * step >= epsilon)


def choose_mechanism(*, sums_possible: bool, one_round: bool = False) -> Literal["gradients", "moments", "histogram"]:
    """Return the mechanism to use: sums if possible, because in most measured cases their student is more accurate.

    Args:
        sums_possible: Whether records may be added up and a linear head on public features suffices.
        one_round: Whether the data owners can answer only once.
    """
    if not sums_possible:
        return "histogram"
    return "moments" if one_round else "gradients"


@dataclass(frozen=True)
class Advice:
    """An advised mechanism and its expected signal.

    Attributes:
        mechanism: Value of `aggregation.mechanism`.
        votes: Plan that `auto` would use for voting teachers.
        sums: Signal if records are summed (`signal_of_sums`).
        useful: Whether a student can learn from the advised release.
        epsilon: A sufficient ε, or None if the given one suffices.
        reason: Explanation in two sentences.
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
    """Advise a mechanism from public quantities.

    Args:
        units: Approximate number of records or groups.
        classes: K.
        features: Number of features of a linear head.
        epsilon: Budget of the run.
        delta: δ of the budget.
        unit: Unit of privacy.
        apart: Whether records may not be summed, not even in secret shares.
        one_round: Whether the data owners can only answer once.
        linear: Whether a linear head on public features suffices.

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
        hope = f"The signal of {votes.teachers:,} teachers is {format_signal(votes.signal)}; {ENOUGH:.0f} is needed."
        return Advice(mechanism, votes, sums, votes.useful, larger, f"{why} {hope}")
    useful = sums >= ENOUGH_OF_SUMS
    larger = None if useful else epsilon_for_signal(ENOUGH_OF_SUMS, sums, mu, delta)
    rounds = "in one round, moments" if one_round else "in several rounds, gradients"
    why = (
        f"{unit.capitalize()}s may be summed. In most measurements a student of sums, as served, is more accurate than "
        f"one of votes at the same ε: {rounds}."
    )
    hope = f"The signal is {format_signal(sums)}; {ENOUGH_OF_SUMS:g} is needed."
    return Advice(mechanism, votes, sums, useful, larger, f"{why} {hope}")
