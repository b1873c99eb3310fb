"""Privacy events: descriptions of the mechanisms applied to private data; accountants compute their cost.

A release is recorded as an *event*: a small frozen object that names the mechanism and its parameters and contains no
data. `terrine.privacy.accounting.gaussian` and `terrine.privacy.accounting.renyi` compute the cost of events. The
ledger stores events as JSON, so that runs of different years are composed from their mechanisms, not by adding ε.

Rules that keep stored events trustworthy:
- the meaning of an existing event never changes, nor does its JSON form;
- an event that an accountant does not support raises `UnsupportedEventError`: it is never approximated;
- every event describes one adaptive step. Composition is adaptive: the parameters of a step may depend on the releases
  of earlier steps, but on no other private information.

Sensitivities hold for the neighbouring relation of PATE: one record (or group) replaced, added or removed changes one
teacher, hence moves at most one vote per query.

    >>> compose(RepeatedEvent(threshold_test(150.0), 640), RepeatedEvent(vote_answer(40.0), 286))
    ComposedEvent(events=(RepeatedEvent(event=GaussianEvent(sensitivity=1.0, sigma=150.0), count=640), ...))
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from terrine.errors import SettingError, TerrineError


class UnsupportedEventError(TerrineError):
    """Raised for an event that an accountant does not support. Unsupported events are never priced approximately."""


@dataclass(frozen=True)
class Event:
    """Base class of all privacy events."""


@dataclass(frozen=True)
class GaussianEvent(Event):
    """A vector plus N(0, sigma² I), where neighbours' vectors differ by at most `sensitivity` in L2 norm."""

    sensitivity: float
    sigma: float

    def __post_init__(self) -> None:
        _set_real(self, "sensitivity", minimum=0.0)
        _set_real(self, "sigma", above=0.0)


@dataclass(frozen=True)
class LaplaceEvent(Event):
    """A vector plus independent Laplace noise of this scale, where neighbours differ by `sensitivity` in L1 norm.

    Moving one vote changes two counts by one each: LNMax with scale 1/γ has sensitivity 2 and costs ε = 2γ.
    """

    sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        _set_real(self, "sensitivity", minimum=0.0)
        _set_real(self, "scale", above=0.0)


@dataclass(frozen=True)
class RandomisedResponseEvent(Event):
    """One of k categories, kept with probability e^ε / (e^ε + k − 1), else replaced by another one uniformly."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        _set_real(self, "epsilon", minimum=0.0)
        _set_count(self, "categories", minimum=2)


@dataclass(frozen=True)
class SampledGaussianEvent(Event):
    """Gaussian noise on a sum over a Poisson sample: each unit is in the sum with probability `rate`, independently.

    Without the unit that differs, the outcome is N(0, sigma²) along one direction. If that unit is in the sample, the
    mean is `plus` for one of the neighbours and −`minus` for the other. If contributions have a norm of at most C, a
    replaced unit has plus = minus = C, and a unit that is added or removed has plus = C and minus = 0
    (`loss_distribution`).
    """

    plus: float
    minus: float
    sigma: float
    rate: float

    def __post_init__(self) -> None:
        _set_real(self, "plus", minimum=0.0)
        _set_real(self, "minus", minimum=0.0)
        _set_real(self, "sigma", above=0.0)
        _set_real(self, "rate", above=0.0)
        if self.rate > 1:
            raise SettingError(f"rate of SampledGaussianEvent must be at most 1, got {self.rate!r}.")

    @property
    def mirrored(self) -> "SampledGaussianEvent":
        """The same event with the two neighbouring datasets exchanged."""
        return SampledGaussianEvent(self.minus, self.plus, self.sigma, self.rate)


@dataclass(frozen=True)
class RepeatedEvent(Event):
    """The same event `count` times in adaptive composition; zero times is allowed and free."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_event(self, self.event)
        _set_count(self, "count", minimum=0)


@dataclass(frozen=True)
class ComposedEvent(Event):
    """Several events in adaptive composition; none at all is allowed and free."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple):
            raise SettingError(f"ComposedEvent takes a tuple of events, got {type(self.events).__name__}.")
        for event in self.events:
            _require_event(self, event)


@dataclass(frozen=True)
class NonPrivateEvent(Event):
    """Event without any guarantee; its ε is infinite."""


_MECHANISMS: dict[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "laplace": LaplaceEvent,
    "randomised_response": RandomisedResponseEvent,
    "sampled_gaussian": SampledGaussianEvent,
    "non_private": NonPrivateEvent,
}
"""Event classes other than compositions, by the name that stored events contain."""


def vote_answer(sigma: float) -> GaussianEvent:
    """Return the event of releasing a vote histogram with N(0, sigma²) per count, or a function of it (the argmax)."""
    return GaussianEvent(sensitivity=math.sqrt(2.0), sigma=sigma)


def laplace_answers(scale: float, answers: int, moved: int = 1) -> RepeatedEvent:
    """Return the event of releasing one vote histogram per answer with Lap(scale) per count, or functions of them.

    Moving one vote changes two counts by one each, and every count has independent noise. Moving `moved` votes changes
    two counts by at most `moved` each in the worst case: one coordinate moved by a + b dominates two moved by a and b.
    """
    return RepeatedEvent(LaplaceEvent(sensitivity=float(moved), scale=scale), 2 * answers)


def threshold_test(sigma1: float) -> GaussianEvent:
    """Return the event of comparing a noisy largest count (or margin) with a public threshold once."""
    return GaussianEvent(sensitivity=1.0, sigma=sigma1)


def count_of_units(sigma: float) -> GaussianEvent:
    """Return the event of releasing the number of units with N(0, sigma²) noise; one unit changes it by 1."""
    return GaussianEvent(sensitivity=1.0, sigma=sigma)


def of_several(event: Event, units: int) -> Event:
    """Return the event of the same mechanisms for neighbours that differ in `units` units instead of one.

    In a chain of neighbours that each differ in one unit, the ends are at most `units` times the sensitivity apart. For
    votes, n' − n is a sum of `units` vectors e_a − e_b, whose norm is at most √2 · units (all in one direction), and no
    largest count moves by more than `units`.

    Raises:
        SettingError: `units` is below 1.
        UnsupportedEventError: the event has no sensitivity.
    """
    if units < 1:
        raise SettingError(f"Neighbours differ in one unit or more, got {units}.")
    if units == 1:
        return event
    match event:
        case GaussianEvent():
            return GaussianEvent(event.sensitivity * units, event.sigma)
        case LaplaceEvent():
            return LaplaceEvent(event.sensitivity * units, event.scale)
        case RepeatedEvent():
            return RepeatedEvent(of_several(event.event, units), event.count)
        case ComposedEvent():
            return ComposedEvent(tuple(of_several(part, units) for part in event.events))
    raise UnsupportedEventError(f"A {type(event).__name__} has no sensitivity that several units could multiply.")


def compose(*events: Event) -> Event:
    """Return the shortest event for the composition of all `events`: flattened, with equal events counted.

    The order in which mechanisms first appear is kept. A single event comes back as itself.
    """
    parts = tuple(event if count == 1 else RepeatedEvent(event, count) for event, count in counts(*events).items())
    return parts[0] if len(parts) == 1 else ComposedEvent(parts)


def counts(*events: Event) -> dict[Event, int]:
    """Return how often each mechanism in `events` runs, in the order of first appearance, without zero counts."""
    found: dict[Event, int] = {}
    for event, count in (pair for part in events for pair in _flatten(part)):
        found[event] = found.get(event, 0) + count
    return {event: count for event, count in found.items() if count}


def to_json(event: Event) -> dict[str, Any]:
    """Return `event` as a tree of JSON values. The JSON form of an event never changes, because ledgers contain it.

    Raises:
        UnsupportedEventError: The event's class is not defined in this module.
    """
    match event:
        case RepeatedEvent():
            return {"event": "repeated", "of": to_json(event.event), "count": event.count}
        case ComposedEvent():
            return {"event": "composed", "of": [to_json(part) for part in event.events]}
    for name, kind in _MECHANISMS.items():
        if type(event) is kind:
            return {"event": name, **vars(event)}
    raise UnsupportedEventError(f"An event of type {type(event).__name__} has no stored form.")


def from_json(tree: Mapping[str, Any]) -> Event:
    """Return the event that `to_json` wrote.

    Raises:
        UnsupportedEventError: The kind of event is unknown, or its fields are wrong.
        SettingError: a field has an impossible value.
    """
    if not isinstance(tree, Mapping) or "event" not in tree:
        raise UnsupportedEventError(f'A stored event is an object with the field "event", got {tree!r}.')
    fields = {name: value for name, value in tree.items() if name != "event"}
    kind, names = tree["event"], set(fields)
    if kind == "repeated" and names == {"of", "count"}:
        return RepeatedEvent(from_json(fields["of"]), fields["count"])
    if kind == "composed" and names == {"of"} and isinstance(fields["of"], list | tuple):
        return ComposedEvent(tuple(from_json(part) for part in fields["of"]))
    mechanism = _MECHANISMS.get(kind) if isinstance(kind, str) else None
    if mechanism is None or names != set(mechanism.__dataclass_fields__):
        raise UnsupportedEventError(
            f"No event is stored as {kind!r} with the fields {sorted(names)}: it was written by another version of "
            "Terrine or changed by hand, and cannot be priced."
        )
    return mechanism(**fields)


def _flatten(event: Event) -> list[tuple[Event, int]]:
    """Return the events inside nested compositions and repetitions with their counts."""
    match event:
        case ComposedEvent():
            return [pair for part in event.events for pair in _flatten(part)]
        case RepeatedEvent():
            return [(part, count * event.count) for part, count in _flatten(event.event)]
        case Event():
            return [(event, 1)]
    raise SettingError(f"Only events can be composed, got {type(event).__name__}.")


def _require_event(owner: Event, value: object) -> None:
    if not isinstance(value, Event):
        raise SettingError(f"{type(owner).__name__} takes events, got {type(value).__name__}.")


def _set_real(owner: Event, name: str, *, minimum: float = -math.inf, above: float = -math.inf) -> None:
    """Check a field and store it as a Python float, so that equal events are equal and JSON is exact."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise SettingError(f"{name} of {type(owner).__name__} must be a finite number, got {value!r}.")
    if value < minimum or value <= above:
        bound = f"at least {minimum:g}" if minimum > -math.inf else f"greater than {above:g}"
        raise SettingError(f"{name} of {type(owner).__name__} must be {bound}, got {value!r}.")
    object.__setattr__(owner, name, float(value))


def _set_count(owner: Event, name: str, *, minimum: int) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise SettingError(f"{name} of {type(owner).__name__} must be a whole number ≥ {minimum}, got {value!r}.")
    object.__setattr__(owner, name, int(value))
