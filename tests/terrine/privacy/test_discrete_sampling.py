"""Exact sampling: the distributions, against formulas and another library, and decisions that doubles cannot make.

Bounds on random quantities fail with probability below 1e-9 each.
"""

import math
import random
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian, make_laplace
from opendp.metrics import l1_distance, l2_distance
from opendp.mod import enable_features
from scipy import stats

from terrine.errors import SettingError
from terrine.privacy import discrete_sampling
from terrine.privacy.discrete_sampling import Distribution, sample

RARE = 1e-10
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "laplace")
FINE = 1.3 * 2**44


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("scale", [0.5, 1.0, 1.7, 37.25])
def test_every_value_is_as_frequent_as_its_probability(distribution: Distribution, scale: float) -> None:
    values = np.arange(-2000, 2001)
    weight = np.exp(-((values / scale) ** 2) / 2 if distribution == "gaussian" else -np.abs(values) / scale)
    expected = 40_000 * weight / weight.sum()
    found = np.bincount(sample(distribution, 40_000, scale) + 2000, minlength=4001)
    # The tails count as the rarest of the others: by themselves one draw of what is expected a thousandth of a time, as
    # ±3 at scale 0.5, would say that the sampler is wrong.
    rare = expected < 10
    for counts in (found, expected):
        counts[np.flatnonzero(~rare)[0]] += counts[rare].sum()
    found, expected = found[~rare], expected[~rare]
    assert stats.chisquare(found, expected).pvalue > RARE


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_values_are_distributed_like_those_of_opendp(distribution: Distribution) -> None:
    enable_features("contrib")
    domain = vector_domain(atom_domain(T="i64"))
    if distribution == "gaussian":
        measurement = make_gaussian(domain, l2_distance(T=float), scale=FINE)
    else:
        measurement = make_laplace(domain, l1_distance(T=float), scale=FINE)
    theirs, ours = np.array(measurement([0] * 8000)), sample(distribution, 8000, FINE)
    assert stats.ks_2samp(ours, theirs).pvalue > RARE
    for divisor in (3, 2**20, 2**40):
        both = np.concatenate([ours, theirs]) // divisor % 7
        table = [np.bincount(part, minlength=7) for part in np.split(both, 2)]
        assert stats.chi2_contingency(table).pvalue > RARE


def _words(*given: int) -> Callable[[int], bytes]:
    left = iter(given)
    return lambda count: next(left).to_bytes(count)


@pytest.mark.parametrize("power", [-1, 0, 1])
@pytest.mark.parametrize("known", [64, 128, 192])
def test_a_comparison_goes_on_until_it_is_certain(monkeypatch: pytest.MonkeyPatch, power: int, known: int) -> None:
    exponent = Fraction(-355, 113)
    with localcontext() as context:
        context.prec = 120
        probability = int((Decimal(-355) / 113).exp() * Decimal(2) ** (known + 64 + power))
    first, *further = (probability >> shift & 2**64 - 1 for shift in range(known, -1, -64))
    for difference, below in ((-1, True), (1, False)):
        monkeypatch.setattr(discrete_sampling.os, "urandom", _words(*further[:-1], further[-1] + difference))
        assert discrete_sampling._below(first, power, exponent) is below


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("scale", [3.0, FINE])
def test_decimals_decide_as_doubles_do_where_doubles_can(
    monkeypatch: pytest.MonkeyPatch, distribution: Distribution, scale: float
) -> None:
    def drawn(margin: float) -> list[int]:
        many, single = random.Random(5), random.Random(6)
        monkeypatch.setattr(
            discrete_sampling.os, "urandom", lambda count: (many if count > 8 else single).randbytes(count)
        )
        monkeypatch.setattr(discrete_sampling, "_MARGIN", margin)
        return sample(distribution, 500, scale).tolist()

    assert drawn(2.0) == drawn(2.0**-40)


def test_a_candidate_next_to_its_probability_is_decided_by_decimals(monkeypatch: pytest.MonkeyPatch) -> None:
    queried: list[int] = []
    monkeypatch.setattr(discrete_sampling, "_below", lambda first, power, exponent: bool(queried.append(first)))
    # Strip 0 and z = 1 at s = 2: kept with probability exp((1 - 1/4) / 2) / 2, and the word of 64 bits is that.
    word = int(math.exp(0.375) / 2 * 2**64)
    words = iter([np.full(16, 0b11, dtype=np.uint64), np.full(16, word, dtype=np.uint64)])
    monkeypatch.setattr(discrete_sampling, "_random", lambda count: next(words))
    assert len(discrete_sampling._candidates("gaussian", 16, 2.0)) == 0
    assert queried == [word] * 16


def test_a_run_of_zeros_goes_on_in_further_words(monkeypatch: pytest.MonkeyPatch) -> None:
    further = iter([[0, 2], [8]])
    monkeypatch.setattr(discrete_sampling, "_random", lambda count: np.array(next(further), dtype=np.uint64))
    words = np.array([0, 1, 4, 0], dtype=np.uint64)
    assert discrete_sampling._trailing_zeros(words, 18).tolist() == [18 + 64 + 3, 0, 2, 18 + 1]


@pytest.mark.parametrize("scale", [0.0, -1.0, 2.0**53, math.inf, math.nan])
def test_a_scale_that_whole_numbers_cannot_hold_is_refused(scale: float) -> None:
    with pytest.raises(SettingError, match="positive scale"):
        sample("gaussian", 1, scale)
