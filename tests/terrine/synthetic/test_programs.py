"""Single image programs: gaussian, mixtures, spectra, shaders."""

import numpy as np
import pytest
import torch
from scipy import stats

from terrine.determinism import philox
from terrine.determinism.randomness import derive_seed
from terrine.synthetic.program import to_bytes
from terrine.synthetic.programs.gaussian import gaussian
from terrine.synthetic.programs.mixup import Mixup, weights
from terrine.synthetic.programs.shaders import FIELDS, _render, family_of, shaders
from terrine.synthetic.programs.spectrum import amplitude, exponents, real_inverse_transform, spectrum


def test_bytes_are_rounded_and_clipped_normals():
    images = gaussian(0, torch.arange(40), 28, 3)
    counts = np.bincount(images.flatten().numpy(), minlength=256)
    edges = np.concatenate([[-np.inf], np.arange(0.5, 255), [np.inf]])
    expected = np.diff(stats.norm.cdf(edges, 127.5, 42.5)) * images.numel()
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_neighbouring_pixels_and_channels_are_independent():
    images = gaussian(0, torch.arange(60), 28, 3).to(torch.float64) - 127.5
    for first, second in (
        (images[:, :, :, 1:], images[:, :, :, :-1]),
        (images[:, :, 1:], images[:, :, :-1]),
        (images[:, 1:], images[:, :-1]),
    ):
        assert abs((first * second).mean().item()) / 42.5**2 < 0.012


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


@pytest.mark.parametrize("size", [8, 27, 64])
def test_the_transform_is_the_inverse_discrete_fourier_transform(size):
    coefficients = philox.normals(0, "test", torch.arange(2), 2 * size * size).view(2, 2, size, size)
    ours = real_inverse_transform(coefficients).numpy()
    for image in range(2):
        real, imaginary = coefficients[image].double().numpy()
        expected = np.fft.ifft2(real + 1j * imaginary).real * size * size
        assert np.abs(ours[image] - expected).max() < size * size * 1e-5


def test_amplitudes_are_the_published_law():
    exponent = torch.tensor([[0.7, 3.2]])
    ours = amplitude(9, exponent)[0]
    for v in range(9):
        for u in range(9):
            total = min(u, 9 - u) ** 0.7 * (u > 0) + min(v, 9 - v) ** 3.2 * (v > 0)
            assert ours[v, u].item() == pytest.approx(1 / total if total else 0.0, rel=1e-5)


def test_spectra_fall_along_each_axis_with_the_exponent_of_that_axis():
    index = torch.arange(600)
    exponent = exponents(5, index).double().numpy()
    assert exponent.min() > 0.5
    assert exponent.max() < 3.5
    images = spectrum(5, index, 32, 1)[:, 0].double().numpy()
    power = np.abs(np.fft.fft2(images)) ** 2
    frequency = np.log(np.arange(1, 9))
    for axis, line in ((0, power[:, 0, 1:9]), (1, power[:, 1:9, 0])):
        # Averaged in groups of similar exponents: one image's periodogram is far too noisy for a slope.
        order = np.argsort(exponent[:, axis])
        for group in np.array_split(order, 4)[:3]:
            slope = np.polyfit(frequency, np.log(line[group]).mean(0), 1)[0]
            assert slope == pytest.approx(-2 * exponent[group, axis].mean(), abs=0.35)


def test_bytes_get_the_mean_and_the_deviation_asked_for():
    picture = philox.normals(0, "levels", torch.arange(2), 3 * 400).view(2, 3, 20, 20) * 7 + 3
    mean, deviation = torch.full((2, 3, 1), 0.5), torch.full((2, 3, 1), 0.1)
    levels = to_bytes(picture, mean, deviation).double() / 255
    assert levels.mean((2, 3)) == pytest.approx(0.5, abs=0.003)
    assert levels.std((2, 3)) == pytest.approx(0.1, abs=0.003)
    assert to_bytes(torch.ones(1, 1, 4, 4), mean[:1, :1], deviation[:1, :1]).unique().tolist() == [128]


def test_the_family_has_at_least_24_programs_and_all_are_drawn():
    assert len(FIELDS) >= 24
    assert len(set(FIELDS)) == len(FIELDS)
    counts = torch.bincount(family_of(0, torch.arange(3_000)), minlength=len(FIELDS))
    assert counts.min() > 0.5 * 3_000 / len(FIELDS)


def test_an_image_runs_the_program_it_drew():
    index = torch.arange(30)
    images = shaders(0, index, 12, 3)
    for image, number in zip(index, family_of(0, index), strict=True):
        assert torch.equal(_render(0, int(number), image[None], 12, 3)[0], images[image])


def test_no_image_is_constant_and_no_two_programs_look_alike():
    index = torch.arange(60)
    means, spectra = [], []
    for number in range(len(FIELDS)):
        images = _render(0, number, index, 28, 1)[:, 0].double()
        assert images.std((1, 2)).min() > 4
        means.append(images.mean(0).flatten())
        spectra.append(
            torch.fft.fft2(images - images.mean((1, 2), keepdim=True)).abs().square().mean(0).log().flatten()[1:]
        )
    correlation = np.corrcoef(torch.stack(means).numpy()) - np.eye(len(FIELDS))
    assert correlation.max() < 0.98
    distance = torch.cdist(torch.stack(spectra), torch.stack(spectra)) + 1e9 * torch.eye(len(FIELDS))
    assert distance.min() > 1.0
