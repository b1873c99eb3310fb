"""Noise: its distribution, its lattice, and what the lattice costs.

Bounds on random quantities fail with probability below 1e-9 each.
"""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from terrine.errors import SettingError
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise, check_slack, delta_slack, lattice_step

RARE = 1e-10
SAMPLES = 6_000


@pytest.fixture(scope="module", params=["secure", "replay"])
def source(request: pytest.FixtureRequest) -> NoiseSource:
    return SecureNoise() if request.param == "secure" else ReplayNoise(11)


@pytest.mark.parametrize("sigma", [0.7, 40.0])
def test_gaussian_noise_has_its_mean_deviation_and_shape(source: NoiseSource, sigma: float) -> None:
    noise = source.gaussian((SAMPLES // 10, 10), sigma).ravel()
    assert abs(noise.mean()) < stats.norm.isf(RARE / 2) * sigma / math.sqrt(SAMPLES)
    low, high = stats.chi2.ppf([RARE / 2, 1 - RARE / 2], SAMPLES)
    assert low < (noise**2).sum() / sigma**2 < high
    assert stats.kstest(noise / sigma, "norm").pvalue > RARE


def test_laplace_noise_has_its_mean_scale_and_shape(source: NoiseSource) -> None:
    noise = source.laplace(SAMPLES, 25.0)
    low, high = stats.gamma.ppf([RARE / 2, 1 - RARE / 2], SAMPLES)
    assert low < np.abs(noise).sum() / 25.0 < high
    assert stats.kstest(noise / 25.0, "laplace").pvalue > RARE


def test_values_of_one_call_do_not_depend_on_each_other(source: NoiseSource) -> None:
    noise = source.gaussian(SAMPLES, 3.0)
    neighbours = (noise[1:] * noise[:-1]).sum() / 9.0 / math.sqrt(SAMPLES - 1)
    assert abs(neighbours) < stats.norm.isf(RARE / 2) * 1.1


@pytest.mark.parametrize("sigma", [0.7, 40.0, 2.0**20])
def test_noise_lies_on_its_lattice_and_fills_it(source: NoiseSource, sigma: float) -> None:
    for noise in (source.gaussian(200, sigma), source.laplace(200, sigma)):
        steps = noise / lattice_step(sigma)
        assert (steps == np.rint(steps)).all()
        assert len(set(steps)) == 200
        # One value in two is odd: a coarser lattice would show as none.
        assert stats.binomtest(int((steps % 2).sum()), 200, 0.5).pvalue > RARE


@pytest.mark.parametrize("shape", [(), 5, (0, 4), (3, 0), (2, 3, 4)])
def test_noise_has_the_shape_asked_for(source: NoiseSource, shape: int | tuple[int, ...]) -> None:
    expected = shape if isinstance(shape, tuple) else (shape,)
    assert source.gaussian(shape, 2.0).shape == source.laplace(shape, 2.0).shape == expected
    assert source.gaussian(shape, 2.0).dtype == np.float64


def test_secure_noise_is_never_the_same_twice() -> None:
    assert not np.isin(SecureNoise().gaussian(50, 40.0), SecureNoise().gaussian(50, 40.0)).any()


def test_replayed_noise_is_the_same_for_one_seed_and_goes_on_in_one_stream() -> None:
    once, again, other = ReplayNoise(1), ReplayNoise(1), ReplayNoise(2)
    first = once.gaussian(4, 2.0)
    np.testing.assert_array_equal(first, again.gaussian(4, 2.0))
    assert (first != once.gaussian(4, 2.0)).all()
    assert (first != other.gaussian(4, 2.0)).all()


def test_sources_say_what_they_are() -> None:
    assert (SecureNoise().kind, SecureNoise().describe()) == ("secure", {"kind": "secure"})
    assert (ReplayNoise(3).kind, ReplayNoise(3).describe()) == ("replay", {"kind": "replay", "seed": 3})
    with pytest.raises(SettingError, match="seed"):
        ReplayNoise(-1)


def test_secure_noise_needs_more_than_one_chunk_for_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("terrine.privacy.discrete_sampling._CHUNK", 7)
    noise = SecureNoise().gaussian((5, 4), 40.0)
    assert len(set(noise.ravel())) == 20


@pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-21, 2.0**31, math.nan, math.inf])
def test_a_deviation_without_a_common_lattice_is_refused(source: NoiseSource, sigma: float) -> None:
    with pytest.raises(SettingError, match="standard deviation"):
        source.gaussian(1, sigma)


def test_a_count_plus_noise_rounds_the_exact_sum(source: NoiseSource) -> None:
    step = lattice_step(40.0)
    for value in source.gaussian(50, 40.0):
        exact = int(value / step) + int(250 / step)
        assert 250 + value == exact * step


@pytest.mark.parametrize("ratio", [0.5, 0.3, 0.1])
def test_the_distance_of_the_lattice_from_the_gaussian_is_below_the_bound_in_the_docstring(ratio: float) -> None:
    steps = np.arange(-400, 401)
    discrete = np.exp(-((steps * ratio) ** 2) / 2)
    discrete /= discrete.sum()
    rounded = np.diff(stats.norm.cdf((np.arange(-400, 402) - 0.5) * ratio))
    distance = np.abs(discrete - rounded).sum() / 2
    assert ratio**2 / 100 < distance <= ratio**2 / 8


def test_the_slack_of_a_large_release_is_below_a_millionth_millionth() -> None:
    assert 0 < delta_slack(1_000_000, 10.0) < 1e-12
    assert delta_slack(120_000, 20.0) < 1e-12
    assert delta_slack(0, 10.0) == 0
    assert delta_slack(7, 2.0) == pytest.approx(7 * (1 + math.exp(2.0)) * 2.0**-91)
    assert math.isfinite(delta_slack(10, 5000.0))


def test_a_guarantee_that_the_lattice_cannot_hold_is_refused_with_the_largest_that_it_can() -> None:
    with pytest.raises(SettingError, match=r"ε=100 is too large for a guarantee at δ=1e-05: .* at most 44; nothing"):
        check_slack(1_000, 100.0, 1e-5)
    assert check_slack(1_000, 44.0, 1e-5) < 1e-5 < delta_slack(1_000, 45.0)


def test_noise_does_not_load_torch() -> None:
    code = "import sys, terrine.privacy.noise, terrine.privacy.ledger.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
