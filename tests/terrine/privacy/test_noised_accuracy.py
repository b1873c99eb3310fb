"""The noised accuracy: what one unit moves, what it costs by another library, and how far it is from the truth."""

import itertools

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import RepeatedEvent
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_accuracy import NoisedAccuracy, epsilon_for, shares_of_units
from tests.noises import Silence


def sums(shares):
    return NoisedAccuracy(5.0).release(np.array(shares, dtype=np.float64), Silence())


def test_no_change_of_one_unit_moves_the_sums_by_more_than_the_event_says():
    """The bound holds for a unit of any share that is replaced, added or removed, and it is tight."""
    others = [0.25, 1.0, 1 / 3]
    shares = [0.0, 0.1, 0.5, 2 / 3, 1.0]
    moved = [np.linalg.norm(sums([*others, a]) - sums([*others, b])) for a, b in itertools.product(shares, repeat=2)]
    moved += [np.linalg.norm(sums([*others, a]) - sums(others)) for a in shares]
    limit = NoisedAccuracy(5.0).event.sensitivity
    assert max(moved) == limit
    assert np.linalg.norm(sums([*others, 1.0]) - sums(others)) == pytest.approx(limit, abs=1e-5)


def test_no_change_of_one_unit_moves_the_sums_of_a_column_by_more_than_one_of_the_events():
    """Its contents, its subgroup or both, or its being there: over all columns no more than is charged, and it is."""
    mechanism = NoisedAccuracy(5.0, (2, 3))
    said = [(share, *place) for share in (0.0, 0.3, 0.5, 1.0) for place in itertools.product((-1, 0, 1), (-1, 0, 1, 2))]

    def released(*units):
        shares, *places = map(np.array, zip((0.25, 0, 2), (1.0, 1, 0), *units, strict=True))
        return mechanism.release(shares, Silence(), places)

    moved = [released(one) - released(other) for one, other in itertools.product(said, repeat=2)]
    moved += [released(one) - released() for one in said]
    for first, last in ((0, 2), (2, 6), (6, 12)):
        assert max(np.linalg.norm(difference[first:last]) for difference in moved) == 1.0
    assert mechanism.event == RepeatedEvent(NoisedAccuracy(5.0).event, 3)
    assert max(np.square(difference).sum() for difference in moved) == pytest.approx(25 * mu_squared(mechanism.event))


def test_figures_of_subgroups_lie_within_their_intervals_as_often_as_they_say():
    generator, noise = np.random.default_rng(0), ReplayNoise(2)
    shares, place = (generator.random(400) < 0.8).astype(float), generator.integers(-1, 2, 400)
    mechanism = NoisedAccuracy.for_budget(1.0, 1e-5, [2])
    assert mechanism.sigma == pytest.approx(np.sqrt(2) * NoisedAccuracy.for_budget(1.0, 1e-5).sigma)
    found = [mechanism.of_subgroups(mechanism.release(shares, noise, [place]))[0] for _ in range(2000)]
    for value in (0, 1):
        truth = shares[place == value].mean()
        held = np.mean([abs(one[value].accuracy - truth) <= one[value].plus_minus for one in found])
        assert held >= 0.94
        assert np.mean([one[value].units for one in found]) == pytest.approx((place == value).sum(), abs=1)
        assert np.mean([one[value].accuracy for one in found]) == pytest.approx(truth, abs=0.01)


def test_places_are_one_number_for_each_unit_and_column():
    for places in ([], [np.zeros(2, int)], [np.zeros(3, int)] * 2):
        with pytest.raises(InputError, match="1 columns of subgroups"):
            NoisedAccuracy(1.0, (2,)).release(np.ones(3), Silence(), places)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-5), (0.5, 1e-5), (3.0, 1e-6)])
def test_its_price_is_what_another_library_finds(epsilon, delta):
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    accuracy = NoisedAccuracy.for_budget(epsilon, delta)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(accuracy.sigma / accuracy.event.sensitivity))
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=0.01)


@pytest.mark.parametrize("share", [0.0, 0.13, 0.5, 0.97, 1.0])
def test_the_interval_holds_as_often_as_it_says(share):
    mechanism, noise, units = NoisedAccuracy(4.0), ReplayNoise(1), 150
    right = round(share * units)
    shares = np.r_[np.ones(right), np.zeros(units - right)]
    estimates = [mechanism.estimate(mechanism.release(shares, noise)) for _ in range(2000)]
    held = np.mean([abs(estimate.accuracy - shares.mean()) <= estimate.plus_minus for estimate in estimates])
    # At the ends the accuracy cannot leave [0, 1], and the interval is wider than it need be in the middle.
    assert held >= 0.94
    assert np.mean([estimate.units for estimate in estimates]) == pytest.approx(units, abs=0.5)
    assert share in (0.0, 1.0) or np.mean([e.accuracy for e in estimates]) == pytest.approx(shares.mean(), abs=0.005)


def test_the_price_of_a_given_interval_gives_that_interval():
    epsilon = epsilon_for(0.1, 300, 1e-5)
    assert NoisedAccuracy.for_budget(epsilon, 1e-5).plus_minus(300) == pytest.approx(0.1, rel=1e-6)


def test_a_unit_counts_by_the_share_of_its_records_as_a_plain_loop_finds_it():
    generator = np.random.default_rng(0)
    right, units = generator.random(200) < 0.6, generator.integers(0, 30, 200) * 10**15
    expected = [np.mean([r for r, u in zip(right, units, strict=True) if u == unit]) for unit in sorted(set(units))]
    np.testing.assert_allclose(shares_of_units(right, units), expected)


def test_without_units_nothing_is_known_and_impossible_numbers_are_refused():
    estimate = NoisedAccuracy(1.0).estimate(np.array([3.0, -2.0]))
    assert (estimate.accuracy, estimate.plus_minus, estimate.units) == (0.5, np.inf, 0.0)
    for shares in ([1.1], [-0.1], [np.nan], [[1.0]]):
        with pytest.raises(InputError, match=r"\[0, 1\]"):
            NoisedAccuracy(1.0).release(np.array(shares), Silence())
    for sigma in (0.0, 2.0**21, float("nan")):
        with pytest.raises(SettingError, match="sigma"):
            NoisedAccuracy(sigma)
