"""Which public images travel with a student."""

import numpy as np
import pytest

from terrine.deployment.reference import affordable, choose_reference
from terrine.errors import InputError


def plain(probabilities, count):
    """Classes in turn give their most certain candidate that is left."""
    left = {number: [] for number in range(probabilities.shape[1])}
    for index, row in enumerate(probabilities):
        left[int(row.argmax())].append(index)
    for candidates in left.values():
        candidates.sort(key=lambda index: (-probabilities[index].max(), index))
    chosen = []
    while len(chosen) < min(count, len(probabilities)):
        chosen.extend([candidates.pop(0) for candidates in left.values() if candidates])
    return chosen[:count]


@pytest.mark.parametrize("count", [1, 7, 30, 100])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_take_turns_giving_their_most_certain_image(seed, count):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet([0.3, 0.5, 2.0], size=30).round(2)  # equals occur
    assert choose_reference(probabilities, count).tolist() == plain(probabilities, count)


def test_a_student_that_knows_one_class_only_still_has_reference_images():
    probabilities = np.array([[0.2, 0.8], [0.1, 0.9], [0.3, 0.7]])
    assert choose_reference(probabilities, 2).tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(1, 3), (5,), (0, 2)])
def test_too_few_candidates_are_refused(shape):
    with pytest.raises(InputError, match="at least 2 images"):
        choose_reference(np.ones(shape))


def test_large_images_make_a_smaller_set():
    assert affordable(28, 1) == 64
    assert affordable(320, 3) == 54
    assert affordable(320, 3, 400) * 3 * 320 * 320 <= 2**24
