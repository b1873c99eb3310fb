import hashlib

import numpy as np
import torch

from terrine.determinism.randomness import derive_seed, numpy_generator, torch_generator


def test_the_seed_is_the_one_written_down() -> None:
    # Spelled out, so that a change of the encoding, which would change every result, is noticed.
    digest = hashlib.sha256(b"7\x1fteacher\x1f3\x1f12").digest()
    assert derive_seed(7, "teacher", 3, 12) == int.from_bytes(digest[:8], "big") >> 1


def test_other_arguments_give_other_seeds() -> None:
    arguments = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 0), (0, "a", 1, 1), (0, "a", 11)]
    assert len({derive_seed(*each) for each in arguments}) == len(arguments)


def test_seeds_fit_what_generators_take() -> None:
    seeds = [derive_seed(0, "range", index) for index in range(1000)]
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert max(seeds) > 2**62


def test_numpy_integers_are_as_good_as_python_ones() -> None:
    assert derive_seed(np.int64(5), "x", np.int32(2)) == derive_seed(5, "x", 2)  # type: ignore[arg-type]


def test_generators_of_one_consumer_repeat_each_other() -> None:
    assert np.array_equal(numpy_generator(0, "x", 4).random(8), numpy_generator(0, "x", 4).random(8))
    first = torch.rand(8, generator=torch_generator(0, "x", 4))
    assert torch.equal(first, torch.rand(8, generator=torch_generator(0, "x", 4)))


def test_drawing_from_one_consumer_leaves_another_as_it_was() -> None:
    expected = numpy_generator(0, "b").random(4)
    numpy_generator(0, "a").random(1000)
    np.random.default_rng().random(10)
    assert np.array_equal(numpy_generator(0, "b").random(4), expected)


def test_neighbouring_consumers_are_uncorrelated() -> None:
    draws = np.stack([numpy_generator(0, "x", index).standard_normal(4000) for index in range(6)])
    correlations = np.corrcoef(draws) - np.eye(6)
    assert np.abs(correlations).max() < 0.08


def test_the_global_generators_are_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch_generator(0, "x")
    assert torch.equal(torch.rand(3), expected)
