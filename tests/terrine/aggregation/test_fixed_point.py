"""Sums as whole numbers: the same as in one place to the bit, and never so large that they would wrap around."""

import math

import numpy as np
import pytest

from terrine.aggregation.fixed_point import FixedPoint
from terrine.aggregation.gradient_rounds import JOINT, RoundSchedule, moments_in_steps
from terrine.aggregation.records import STEP, Records, on_grid
from terrine.aggregation.sums import Gradients, Moments, Sums
from terrine.collaboration.protocol.shares import modulo, signed, split
from terrine.errors import InputError, SettingError
from terrine.privacy.noise import ReplayNoise

CLASSES = 3


def some_records(count: int = 60, length: int = 5) -> Records:
    generator = np.random.default_rng(2)
    vectors = generator.normal(size=(count, length))
    vectors *= (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True)
    units = generator.integers(0, 20, count)
    return Records.of(on_grid(vectors), generator.integers(0, CLASSES, count), units, CLASSES)


@pytest.mark.parametrize("mu", [7.0, 1.67, 1.4, 0.27, 0.024])
@pytest.mark.parametrize("kind", [Moments(), Gradients(rounds=3)], ids=lambda kind: kind.mechanism)
def test_shares_of_parties_open_to_the_bits_of_one_place_with_the_same_noise(kind: Sums, mu: float) -> None:
    records, units = some_records(), np.random.default_rng(2).integers(0, 3, 60)
    fixed, noise, opened = FixedPoint(records.length, CLASSES, kind.schedule(mu)), ReplayNoise(7), []
    descent = fixed.schedule.descent(fixed.length)
    parties = [fixed.schedule.summing(records.subset(units == party)) for party in range(4)]  # the last has no record
    for number, count in enumerate(fixed.counts):
        guardian = student = np.zeros(count, np.uint64)
        for summed in parties:
            one, other = split(fixed.shared(summed(descent.broadcast), 60, number), 64)
            guardian, student = guardian + one, student + other
        noised = modulo(guardian.astype(np.int64) + fixed.noise(noise, number), 64)
        opened.append(signed(noised + student, 64))
        descent.receive(fixed.opened(opened[-1], number))
    released, plain = fixed.released(np.concatenate(opened)), kind.release(records, mu, ReplayNoise(7))
    assert released.keys() == plain.keys()
    assert all((released[name] == array).all() for name, array in plain.items())
    np.testing.assert_array_equal(descent.final_head, kind.head(plain, mu))
    assert fixed.numbers == kind.numbers(records.length, CLASSES)


class Most:
    """Noise as far out as any source gives it: 2^53 steps of its lattice."""

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def gaussian(self, shape: tuple[int], sigma: float) -> np.ndarray:
        return np.full(shape, self.sign * 2.0**53 * math.ldexp(1, math.frexp(sigma)[1] - 45))


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.27, 1.5, 8.0, 200.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_largest_sums_with_the_largest_noise_do_not_wrap_around(sigma: float, sign: int, number: int) -> None:
    # The finest lattice is that of the smaller noise.
    fixed = FixedPoint(5, CLASSES, RoundSchedule(2 * sigma, 2, 1.0, 1.0, sigma) if number else RoundSchedule(sigma))
    assert fixed.most_units > 2**18 * sigma * 0.7
    units = fixed.most_units
    sums = np.full(fixed.counts[number], sign * units * round(1 / STEP), np.int64)
    total = [int(value) for value in fixed.shared(sums, units, number)]
    noise = [int(value) for value in fixed.noise(Most(sign), number)]  # type: ignore[arg-type]
    assert all(-(2**63) <= value + drawn < 2**63 for value, drawn in zip(total, noise, strict=True))
    assert max(map(abs, noise)) >= 2**53
    # And not much more would fit.
    assert (units + 1) * 1.01 / fixed.step(number) > 2**63


def test_sums_that_the_agreed_number_of_units_cannot_have_are_not_shared() -> None:
    records = Records.of(on_grid(np.eye(4)[np.zeros(9, int)]), np.zeros(9, int), np.arange(9), CLASSES)
    sums, fixed = moments_in_steps(records), FixedPoint(4, CLASSES, RoundSchedule(2.0))
    assert sums[0] * STEP == 9
    np.testing.assert_array_equal(fixed.shared(sums, 9, 0) * fixed.step(0), sums * STEP)
    for wrong in (sums, -sums):
        with pytest.raises(InputError, match="too large for 8 units"):
            fixed.shared(wrong, 8, 0)
    for wrong in (sums[:-1], sums.astype(float), sums[:, None]):
        with pytest.raises(InputError, match=r"Sums are integers \[22\], got"):
            fixed.shared(wrong, 9, 0)


def test_noise_on_too_coarse_a_lattice_is_refused_as_in_one_place() -> None:
    for refused in (
        lambda: FixedPoint(5, CLASSES, RoundSchedule(600.0)).step(0),
        lambda: FixedPoint(5, CLASSES, RoundSchedule(1.0, 1, 0.5, 1.0, 600.0)).most_units,
        lambda: Moments().release(some_records(), math.sqrt(JOINT) / 600, ReplayNoise(0)),
    ):
        with pytest.raises(SettingError, match="too coarse"):
            refused()
