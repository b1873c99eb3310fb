"""How much DPSD's annotations can say."""

import itertools
import math
from collections import Counter

import pytest

from benchmarks.capacity import (
    best_accuracy,
    fixed_points,
    naming_bits,
    needed_epsilon,
    points,
    response_bits,
    told_bits,
)
from tasks.config.presets import resolve
from terrine.privacy.accounting.gaussian import epsilon_of, mu_squared
from terrine.transcription.accounting import event_of


def test_the_published_settings_carry_fewer_bits_than_it_takes_to_name_ten_classes(pytestconfig):
    settings = resolve(pytestconfig.rootpath, "dpsd-mnist").transcription
    mu = math.sqrt(mu_squared(event_of(settings, classes=10)))
    assert told_bits(mu) == pytest.approx(51_200 / (2 * 100**2) / math.log(2))
    assert told_bits(mu) < 3.7 < 21.7 < naming_bits(1.0) == math.log2(math.factorial(10))
    assert best_accuracy(told_bits(mu)) < 0.5


def test_naming_takes_the_bits_of_the_most_random_permutation_that_agrees_that_often():
    """Five classes, every permutation written out; no mixture of two tilts that agrees as often is more random."""
    kept = Counter(sum(place == name for place, name in enumerate(p)) for p in itertools.permutations(range(5)))
    assert fixed_points(5) == [kept[number] for number in range(6)]
    numbers = fixed_points(5)

    def of(tilt):
        weights = [n * math.exp(tilt * k) for k, n in enumerate(numbers)]
        return [w / sum(weights) for w in weights]

    for low, high in [(0.1, 1.0), (0.5, 3.0), (1.0, 6.0)]:
        mixed = [(a + b) / 2 for a, b in zip(of(low), of(high), strict=True)]
        agrees = sum(k * w for k, w in enumerate(mixed)) / 5
        entropy = sum(w * math.log2(n / w) for w, n in zip(mixed, numbers, strict=True) if w)
        assert math.log2(120) - entropy > naming_bits(agrees, 5) > 0
    assert naming_bits(1 / 5, 5) == 0
    assert naming_bits(1.0, 5) == math.log2(120)
    assert naming_bits(best_accuracy(4.0, 5), 5) == pytest.approx(4.0)


def test_an_epsilon_that_is_needed_is_the_one_whose_annotations_carry_the_bits():
    needed = needed_epsilon(0.96)
    assert needed == epsilon_of(math.sqrt(8 * math.log(2) * naming_bits(0.96)), 1e-5)
    assert needed_epsilon(0.96, clients=5) < needed_epsilon(0.96) / 5


@pytest.mark.parametrize("categories", [2, 3, 10])
def test_randomised_response_says_nothing_at_no_epsilon_and_all_at_a_large_one(categories):
    assert response_bits(0.0, categories, 7) == pytest.approx(0, abs=1e-12)
    assert response_bits(30.0, categories, 7) == pytest.approx(7 * math.log2(categories))


def test_no_measured_student_is_above_the_bound():
    for _, name, bits, accuracy in points():
        assert accuracy / 100 < best_accuracy(bits) + 0.01, name
