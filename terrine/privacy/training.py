"""Private training by another library: the state of its accountant, and the cost of the training.

Libraries record phases of clipped, noised gradient steps: the noise multiplier, which is the noise's standard deviation
in units of the largest contribution of a unit; the sampling rate; and the number of steps. No library records whether
batches were really sampled in the way that its analysis assumes. The caller has to state it:

- `poisson`: every unit is in each batch independently with the sampling rate. Amplified, see `loss_distribution`.
- `fixed`: each batch is a uniformly random subset of fixed size. A unit in a batch takes another one's place, so the
  distance between the two counts, up to twice the largest contribution (`loss_distribution`). If the cost without
  amplification is smaller, it is used instead.
- `shuffled`: each epoch divides shuffled data into batches. No useful amplification is proved. For a fixed order, a
  replaced unit is in one batch of an epoch, at a distance of two contributions. If a unit is removed, the last unit in
  the order takes its place and is missing from the last batch: distances of two and one, together √5.
- `all`: every unit may be in every batch.

The number of steps is public.

    >>> training = Training("opacus", "poisson", ((1.1, 0.004, 14_000),))
    >>> [price(event, 1e-5) for event in training.events(1e-5)]
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from terrine.errors import InputError
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent, SampledGaussianEvent, compose
from terrine.privacy.accounting.pricing import price

Sampling = Literal["poisson", "fixed", "shuffled", "all"]
Phase = tuple[float, float, int]
"""Noise multiplier, sampling rate and number of steps."""

LIBRARIES = {
    "opacus": "Opacus",
    "dp_accounting": "dp-accounting / jax_privacy",
    "flower": "Flower",
    "stated": "",
}
"""Libraries, or `stated` if only noise, rate and steps were given."""
_MOST_PHASES, _MOST_STEPS = 50, 10**12
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Training:
    """Training phases in another library.

    Attributes:
        library: Key in `LIBRARIES`.
        sampling: How batches were drawn.
        phases: Noise multiplier, sampling rate and number of steps of each phase, in order.
    """

    library: str
    sampling: Sampling
    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        _require(self.library in LIBRARIES, f"its library is {self.library!r}")
        _require(self.sampling in get_args(Sampling), f"its sampling is {self.sampling!r}")
        merged: list[Phase] = []
        for phase in self.phases:
            _require(len(phase) == 3 and all(map(_is_number, phase)), f"{phase!r} is not a noise, a rate and a count")
            noise, rate, steps = phase
            _require(0 < noise < math.inf, f"its noise multiplier {noise!r} is not a positive number")
            _require(0 < rate <= 1, f"its sampling rate {rate!r} is not a probability above 0")
            whole = isinstance(steps, numbers.Integral) and 1 <= steps <= _MOST_STEPS
            _require(whole, f"its number of steps is {steps!r}")
            before = merged.pop() if merged and merged[-1][:2] == (noise, rate) else (noise, rate, 0)
            merged.append((float(noise), float(rate), int(steps) + before[2]))
        count = len(merged)
        _require(
            0 < count <= _MOST_PHASES, f"it has {count} phases with different noise or rate, not 1 to {_MOST_PHASES}"
        )
        object.__setattr__(self, "phases", tuple(merged))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(steps for *_, steps in self.phases)

    def events(self, delta: float) -> tuple[Event, Event | None]:
        """Return two events: one under replacement, addition and removal, one under addition and removal only.

        Args:
            delta: δ at which the smaller of two bounds is chosen if sampling is `fixed`.

        Returns:
            The two events; the second is None if no smaller bound than the first is known.
        """
        match self.sampling:
            case "poisson":
                return self._sampled(1.0, 1.0), self._sampled(1.0, 0.0)
            case "fixed":
                amplified, whole = self._sampled(2.0, 2.0), self._whole(2.0)
                if price(amplified, delta) < price(whole, delta):
                    return amplified, self._sampled(2.0, 0.0)
                return whole, None
            case "shuffled":
                parts = ((GaussianEvent(math.sqrt(5.0), noise), times) for noise, times in self._participations())
                return compose(*(RepeatedEvent(part, times) for part, times in parts)), None
        return self._whole(2.0), self._whole(1.0)

    def _sampled(self, plus: float, minus: float) -> Event:
        """Return the composition of sampled steps. If a batch contains all units, no unit can take another's place."""
        largest = min(1.0, plus) + min(1.0, minus)
        return compose(
            *(
                RepeatedEvent(
                    GaussianEvent(largest, noise) if rate == 1 else SampledGaussianEvent(plus, minus, noise, rate),
                    steps,
                )
                for noise, rate, steps in self.phases
            )
        )

    def _whole(self, sensitivity: float) -> Event:
        return compose(*(RepeatedEvent(GaussianEvent(sensitivity, noise), steps) for noise, _, steps in self.phases))

    def _participations(self) -> Iterator[tuple[float, int]]:
        """Yield the noise of each phase and the largest number of its batches that contain any one unit."""
        for noise, rate, steps in self.phases:
            # A phase that begins within an epoch may contain a unit once more.
            epochs = math.ceil(steps * rate * (1 - _ROUNDING)) + (len(self.phases) > 1)
            yield noise, min(steps, epochs)

    def describe(self) -> dict[str, Any]:
        """Return the statement's description of the mechanism, as JSON values."""
        phases = [list(phase) for phase in self.phases]
        return {"mechanism": "imported", "library": self.library, "sampling": self.sampling, "phases": phases}

    @classmethod
    def described(cls, mechanism: Mapping[str, Any]) -> Training:
        """Return the training from the output of `describe`."""
        return cls(mechanism["library"], mechanism["sampling"], tuple(map(tuple, mechanism["phases"])))


def import_dp_event(event: Any, sampling: Sampling | None = None) -> Training:
    """Return the training that a `dp_accounting.DpEvent` describes, such as `dp_event` of a jax_privacy plan.

    Args:
        event: The event, or the result of its `to_named_tuple`, possibly read from JSON.
        sampling: How batches were really drawn. Default: as in the event.

    Raises:
        InputError: The event has a mechanism other than (sampled) Gaussian noise, or mixes ways of sampling.
    """
    if hasattr(event, "to_named_tuple"):
        event = event.to_named_tuple()
    found = list(_phases(event, 1, 0))
    assumed: set[Sampling] = {one for one, *_ in found if one != "all"} or {"all"}
    _require(len(assumed) == 1, f"it mixes ways of sampling ({', '.join(sorted(assumed))})")
    (one,) = assumed
    return Training("dp_accounting", really_sampled(one, sampling), tuple(phase for _, phase in found))


def really_sampled(assumed: Sampling, stated: Sampling | None) -> Sampling:
    """Return how batches were drawn. The stated sampling may differ from the assumed one only if it amplifies less.

    Raises:
        InputError: The statement claims a way of sampling that the analysis did not assume.
    """
    _require(
        stated in (None, assumed, "shuffled", "all"),
        f"it was analysed for sampling {assumed!r}, and {stated!r} was stated",
    )
    return stated or assumed


_FIELDS = {
    "GaussianDpEvent": 1,
    "NoOpDpEvent": 0,
    "ComposedDpEvent": 1,
    "SelfComposedDpEvent": 2,
    "PoissonSampledDpEvent": 2,
    "SampledWithoutReplacementDpEvent": 3,
}
_DEEPEST = 50


def _phases(event: Any, count: int, depth: int) -> Iterator[tuple[Sampling, Phase]]:
    """Yield sampling and phase of each Gaussian mechanism in an event, as a tuple of module, class and fields."""
    _require(
        isinstance(event, Sequence) and len(event) >= 2 and isinstance(event[1], str) and depth < _DEEPEST,
        "it is not a DpEvent",
    )
    _, name, *values = event
    _require(name in _FIELDS, f"it contains {name}, for which no price under both neighbouring relations is known")
    _require(len(values) == _FIELDS[name], f"its {name} has {len(values)} fields")
    match name, values:
        case "GaussianDpEvent", (noise,):
            yield "all", (noise, 1.0, count)
        case "ComposedDpEvent", (events,):
            for part in events:
                yield from _phases(part, count, depth + 1)
        case "SelfComposedDpEvent", (part, times):
            _require(type(times) is int and times >= 1, f"its count is {times!r}")
            yield from _phases(part, count * times, depth + 1)
        case ("PoissonSampledDpEvent", (rate, part)) | ("SampledWithoutReplacementDpEvent", (rate, _, part)):
            inner = list(_phases(part, count, depth + 1))
            _require(len(inner) == 1 and inner[0][0] == "all", "it samples a composition")
            if name == "PoissonSampledDpEvent":
                yield "poisson", (inner[0][1][0], rate, count)
            else:
                yield "fixed", (inner[0][1][0], sampled_share(values[1], values[0]), count)


def sampled_share(sample: Any, population: Any) -> float:
    """Return the sampling rate of a sample of fixed size.

    Raises:
        InputError: The sizes are impossible.
    """
    _require(
        all(type(size) is int for size in (sample, population)) and 0 < sample <= population,
        f"its samples have {sample!r} of {population!r} units",
    )
    return float(sample / population)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise InputError(f"This training cannot be priced: {fault}.")
