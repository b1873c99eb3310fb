"""Mixtures against a loop over their components."""

import pytest
import torch
from scipy import stats

from terrine.determinism import philox
from terrine.determinism.randomness import derive_seed
from terrine.synthetic.programs.gaussian import gaussian
from terrine.synthetic.programs.mixup import Mixup, weights
from terrine.synthetic.programs.shaders import shaders


def test_a_mixture_is_the_weighted_sum_of_six_images_of_its_sources():
    sources = (gaussian, shaders)
    index = torch.tensor([3, 1000])
    ours = Mixup(sources)(7, index, 10, 3)
    for row, image in enumerate(index.tolist()):
        word = philox.words(7, "mixup", torch.tensor([image]), 12)
        share = weights(word[:, :6])[0]
        total = torch.zeros(3, 10, 10)
        for k in range(6):
            number = int(word[0, 6 + k]) * 2 >> 32
            component = sources[number](derive_seed(7, "mixup", number), torch.tensor([6 * image + k]), 10, 3)[0]
            total = total + component * share[k]
        assert torch.equal(ours[row], total.round().to(torch.uint8))


def test_weights_are_uniform_on_the_simplex():
    share = weights(philox.words(0, "test", torch.arange(3_000), 6))
    assert share.sum(1) == pytest.approx(1.0, abs=1e-6)
    # Each coordinate of Dirichlet(1, ..., 1) in six dimensions is Beta(1, 5).
    assert stats.kstest(share[:, 2].numpy(), stats.beta(1, 5).cdf).pvalue > 1e-3


def test_mixtures_have_less_contrast_than_their_sources():
    index = torch.arange(40)
    mixed = Mixup((shaders,))(0, index, 16, 1).to(torch.float64).std((1, 2, 3)).mean()
    assert mixed < 0.8 * shaders(0, index, 16, 1).to(torch.float64).std((1, 2, 3)).mean()
