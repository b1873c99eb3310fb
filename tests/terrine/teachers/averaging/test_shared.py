"""Averages in secret shares: what one place releases, to the bit; what a unit moves; where they would wrap around."""

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise, lattice_step
from terrine.teachers.averaging.private import PrivateAveraging
from terrine.teachers.averaging.shared import SharedAverages
from terrine.teachers.averaging.ttac import Average, derived_control, server_step
from tests.terrine.teachers.averaging.helpers import averaged

TEACHERS, WEIGHTS, FEATURES = 6, 7, 4


def shared_averages(multiplier=1.5, teachers=TEACHERS, weights=WEIGHTS, **own):
    private = {"mode": "private", "statistics": "original", "clip": 0.8, "budget_share": 0.7}
    settings = averaged(**({"rounds": 4, "steps": 2, "server_rate": 0.7, "step_decay": 0.5} | private | own))
    features = FEATURES if settings.centre == "shared" else 0
    return SharedAverages(PrivateAveraging(settings, multiplier), teachers, weights, features)


FORMS = [{}, {"centre": "shared"}, {"centre": "shared", "correction": "none"}]


def vectors_of(shared, number, generator):
    ((length, _),) = shared.parts(number)
    return generator.normal(size=(TEACHERS, length))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dealt", [[3, 3], [1, 2, 3], [6]])
def test_parties_release_what_one_place_releases_with_the_same_noise_to_the_bit(form, dealt):
    shared, generator = shared_averages(**form), np.random.default_rng(0)
    averaging, state = shared.averaging, shared.iterator()
    apart, together = ReplayNoise(5), ReplayNoise(5)
    average, centre = Average(np.zeros(WEIGHTS), np.zeros(WEIGHTS)), np.empty(0)
    assert state.broadcast is None
    for number in range(shared.passes):
        vectors = vectors_of(shared, number, generator)
        total = np.zeros(shared.counts[number], "<u8")
        for rows in np.split(np.arange(TEACHERS), np.cumsum(dealt)[:-1]):
            mask = generator.integers(0, 2**64, len(total), np.uint64)
            own = shared.shared(vectors[rows], number).astype("<u8")
            total += (own - mask) + mask
        total += shared.noise(apart, number).astype("<u8")
        released = shared.opened(total.view(np.int64), number)
        state.receive(released)
        place = number - shared.first
        if place < 0:
            centre = averaging.release_centre([vectors], together)
            np.testing.assert_array_equal(released, centre)
        else:
            plain, settings = averaging.release([vectors], together), averaging.settings
            np.testing.assert_array_equal(released, plain)
            average = server_step(average, plain, derived_control(average, plain, settings, place), settings)
        told = [average.value, average.control] if place >= 0 else []
        np.testing.assert_array_equal(state.broadcast, np.concatenate([centre, *told]))
        assert len(state.broadcast) == shared.broadcast_size(number + 1)
    start = shared.start(state.broadcast, shared.passes)
    np.testing.assert_array_equal(start.average.value, average.value)
    np.testing.assert_array_equal(start.average.control, average.control)
    assert (start.centre is None) == (not shared.features)
    assert mu_squared(shared.event) == pytest.approx(shared.passes * (2 / 1.5) ** 2)


@pytest.mark.parametrize("form", FORMS)
def test_no_unit_moves_what_is_added_up_by_more_than_is_charged_and_one_moves_it_by_all_of_it(form):
    """A unit is in one teacher's records, and may move its vectors anywhere, also to where nothing is finite."""
    shared, generator = shared_averages(**form), np.random.default_rng(1)
    farthest = 0.0
    for number in range(shared.passes):
        vectors = vectors_of(shared, number, generator)
        (step,), ((_, sigma),) = shared.steps(number), shared.parts(number)
        before = shared.shared(vectors, number) * step
        for scale in (1e-3, 1.0, 1e3, 1e300, np.inf, np.nan):
            for _ in range(20):
                other = vectors.copy()
                other[generator.integers(TEACHERS)] *= -scale
                moved = shared.shared(other, number) * step - before
                share = np.linalg.norm(moved) / (2 * sigma / shared.averaging.noise_multiplier)
                assert share <= 1
                farthest = max(farthest, share)
    assert farthest > 1 - 1e-6


def test_nothing_wraps_around_for_as_many_teachers_as_the_terms_may_have():
    multiplier, weights = 2.0**-10, 3
    step = lattice_step(0.8 * multiplier)
    most = int(np.ceil(2.0**62 * step / 0.8)) - 1
    shared = shared_averages(multiplier, most, weights)
    own = shared.shared(np.eye(1, weights) * 1e9, 0)
    assert own.max() == pytest.approx(0.8 / step, rel=1e-6)
    # All teachers as far as they can be, and all the noise that is not refused.
    farthest = most * int(own.max()) + 2**53
    assert 2**61 < farthest < 2**63
    for sign in (1, -1):
        total = np.full(weights, sign * farthest, object) % 2**64
        opened = shared.opened(np.array(total, np.uint64).view(np.int64), 0)
        np.testing.assert_allclose(opened, sign * farthest * step / most)
    with pytest.raises(SettingError, match=f"Averages of {most + 2:,} teachers could overflow"):
        shared_averages(multiplier, most + 2, weights)


def test_what_cannot_be_averaged_is_refused_in_a_sentence():
    shared = shared_averages()
    with pytest.raises(InputError, match="Updates here are 5 numbers long, and the terms say 7"):
        shared.shared(np.zeros((2, 5)), 0)
    with pytest.raises(SettingError, match="Noise needs a standard deviation"):
        shared_averages(1e10)
    with pytest.raises(SettingError, match="features=0 does not go with centre=shared"):
        SharedAverages(shared_averages(centre="shared").averaging, TEACHERS, WEIGHTS)
