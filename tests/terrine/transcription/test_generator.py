"""The generator: any size, any seed, images in [0, 1]."""

import pytest
import torch

from terrine.transcription.generator import Generator, random_vectors


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (1, 28), (3, 33), (1, 30)])
def test_it_makes_images_of_every_size(channels, size):
    generator = Generator(channels, size, latent=5, width=6, seed=0)
    images = generator(random_vectors(4, 5, 0)).detach()
    assert images.shape == (4, channels, size, size)
    assert images.min() >= 0
    assert images.max() <= 1
    assert float(images.detach().std()) > 0.02


def test_weights_and_vectors_are_functions_of_the_seed():
    first, again, other = (Generator(1, 8, latent=3, width=4, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["linear.weight"], other["linear.weight"])
    assert torch.equal(random_vectors(3, 2, 0, 1), random_vectors(3, 2, 0, 1))
    assert not torch.equal(random_vectors(3, 2, 0, 1), random_vectors(3, 2, 0, 2))


def test_it_has_no_running_statistics_that_using_it_could_change():
    generator = Generator(1, 8, latent=3, width=4, seed=0)
    assert not list(generator.buffers())
    vectors = random_vectors(4, 3, 0)
    assert torch.equal(generator(vectors), generator.eval()(vectors))
