"""The scattering transform against its definition, written as loops."""

import math

import numpy as np
import pytest
import torch

from terrine.geometry import sides
from terrine.models.statistics import batch_statistics, record_statistics
from terrine.models.wavelets import ScatteringNetwork, _Convolutions, _Quadrants, morlet, orientation_order


def plain_morlet(scale: int, angle: float, row: float, column: float, mean: complex) -> complex:
    sigma, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    along = column * math.cos(angle) + row * math.sin(angle)
    across = -column * math.sin(angle) + row * math.cos(angle)
    envelope = math.exp(-(along**2 + across**2 / 4) / (2 * sigma**2))
    return envelope * (np.exp(1j * frequency * along) - mean) * 0.5 / (2 * math.pi * sigma**2)


def plain_filter(kind: str, scale: int, angle: float, offsets: np.ndarray) -> np.ndarray:
    """A Morlet wavelet, or the Gaussian of deviation `scale`, sampled at `offsets` from its centre."""
    side = len(offsets)
    values = np.zeros((side, side), dtype=complex)
    if kind == "gaussian":
        for i, row in enumerate(offsets):
            for j, column in enumerate(offsets):
                values[i, j] = math.exp(-(row**2 + column**2) / (2 * scale**2))
        return values / values.sum()
    waves = np.zeros_like(values)
    envelopes = np.zeros_like(values)
    for i, row in enumerate(offsets):
        for j, column in enumerate(offsets):
            waves[i, j] = plain_morlet(scale, angle, row, column, 0)
            envelopes[i, j] = plain_morlet(scale, angle, row, column, 1) - waves[i, j]
    return waves - envelopes * (waves.sum() / envelopes.sum())


def plain_convolution(image: np.ndarray, kernel: np.ndarray, offsets: np.ndarray, stride: int) -> np.ndarray:
    """Sum over all taps, at the centre of every block of `stride` samples, of the image mirrored at its border."""
    side = len(image)
    reach = int(np.abs(offsets).max()) + side
    mirrored = np.pad(image, reach, mode="symmetric")
    result = np.zeros((side // stride, side // stride), dtype=complex)
    for i in range(side // stride):
        for j in range(side // stride):
            row, column = stride * i + (stride - 1) / 2, stride * j + (stride - 1) / 2
            rows = (reach + row - offsets).astype(int)
            columns = (reach + column - offsets).astype(int)
            result[i, j] = (mirrored[np.ix_(rows, columns)] * kernel).sum()
    return result


def plain_scattering(image: np.ndarray, orientations: int) -> np.ndarray:
    angles = [k * math.pi / orientations for k in orientation_order(orientations)]
    whole, halves = np.arange(-7.0, 8.0), np.arange(-13, 13) + 0.5
    wide, narrow = np.arange(-7, 7) + 0.5, np.arange(-4, 4) + 0.5
    from_pixels, from_halves = plain_filter("gaussian", 1.6, 0, wide), plain_filter("gaussian", 0.8, 0, narrow)
    fine_wavelets = [plain_filter("morlet", 0, angle, whole) for angle in angles]
    coarse_wavelets = [plain_filter("morlet", 1, angle, halves) for angle in angles]
    maps = [plain_convolution(image, from_pixels, wide, 4).real]
    fine = [abs(plain_convolution(image, wavelet, whole, 1)) for wavelet in fine_wavelets]
    maps += [plain_convolution(each, from_pixels, wide, 4).real for each in fine]
    coarse = [abs(plain_convolution(image, wavelet, halves, 2)) for wavelet in coarse_wavelets]
    both = [abs(plain_convolution(each, wavelet, halves, 2)) for each in fine for wavelet in coarse_wavelets]
    maps += [plain_convolution(each, from_halves, narrow, 2).real for each in coarse + both]
    return np.stack(maps)


@pytest.mark.parametrize(("size", "orientations"), [(8, 8), (12, 4), (28, 2)])
def test_both_ways_of_computing_it_equal_the_definition(size, orientations):
    images = np.random.default_rng(size).random((2, size, size))
    expected = np.stack([plain_scattering(image, orientations) for image in images])
    batch = torch.from_numpy(images).float()
    for transform in (_Convolutions(orientations), _Quadrants(size, orientations)):
        np.testing.assert_allclose(transform(batch).numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("size", [4, 20, 28, 32, (12, 28), (32, 8)])
def test_matrix_products_equal_convolutions(size):
    images = torch.rand(5, *sides(size), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_Quadrants(size, 8)(images), _Convolutions(8)(images), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("size", [8, 28])
def test_a_gradient_changes_no_value_and_both_ways_have_the_same_one(size):
    images = torch.rand(3, size, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    gradients = []
    for transform in (_Convolutions(4).double(), _Quadrants(size, 4).double()):
        moving = images.clone().requires_grad_()
        maps = transform(moving)
        assert torch.equal(maps, transform(images))
        weight = torch.arange(maps.numel(), dtype=torch.float64).cos().view_as(maps)
        gradients.append(torch.autograd.grad((weight * maps).sum(), moving)[0])
    assert float(gradients[0].abs().max()) > 0.01
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


def test_features_with_a_gradient_are_those_without_whatever_the_number_of_chunks():
    images = torch.rand(150, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    network = ScatteringNetwork(1, 8, seed=0, orientations=8, projection=10).eval()
    moving = images.clone().requires_grad_()
    with batch_statistics(network, "current"):
        features = network(moving)
        assert torch.equal(features, network(images))
    assert torch.isfinite(torch.autograd.grad(features.square().sum(), moving)[0]).all()


def test_large_images_are_convolved_a_few_at_a_time_each_as_by_itself():
    images = torch.rand(17, 128, 128, generator=torch.Generator().manual_seed(0))
    transform = _Convolutions(4)
    together = transform(images)
    assert together.shape == (17, 1 + 2 * 4 + 4**2, 32, 32)
    assert torch.equal(together, torch.cat([transform(image[None]) for image in images]))


@pytest.mark.parametrize(("size", "orientations"), [(36, 8), (62, 4), ((97, 21), 8), ((30, 64), 2), (224, 2)])
def test_spectra_equal_convolutions_and_an_image_has_its_bits_in_any_company(size, orientations):
    images = torch.rand(3, 1, *sides(size), generator=torch.Generator().manual_seed(0))
    network = ScatteringNetwork(1, size, 0, orientations, None)
    by_spectra = network.coefficients(images)
    torch.testing.assert_close(by_spectra, network.coefficients(images.requires_grad_()), atol=2e-6, rtol=1e-4)
    alone = [network.coefficients(image[None].detach()) for image in images.flip(0)]
    assert torch.equal(by_spectra, torch.cat(alone).flip(0))


def test_a_network_of_large_images_is_exported_for_batches_of_any_size():
    network = ScatteringNetwork(1, (48, 20), 0, orientations=2, projection=10).eval()
    images = torch.rand(150, 1, 48, 20, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(network, (images[:3],), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    torch.testing.assert_close(program.module()(images), network(images), atol=1e-5, rtol=1e-4)


def test_there_are_81_maps_of_7x7_at_28x28():
    assert ScatteringNetwork(1, 28, 0, 8, None).coefficients(torch.rand(2, 1, 28, 28)).shape == (2, 81, 7, 7)


@pytest.mark.parametrize("stride", [1, 2])
def test_wavelets_do_not_see_a_constant(stride):
    for angle in (0.0, 0.3, 2.0):
        assert abs(morlet(1, angle, stride).sum()) < 1e-12
        assert abs(morlet(1, angle, stride)).sum() > 0.5
    constant = _Convolutions(8)(torch.full((1, 12, 12), 0.7))
    torch.testing.assert_close(constant[:, 0], torch.full((1, 3, 3), 0.7))
    assert constant[:, 1:].abs().max() < 1e-5


def test_a_mirrored_image_has_the_mirrored_transform_with_mirrored_angles():
    image = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    order = orientation_order(8)
    partner = [1 + order.index(-angle % 8) for angle in order]
    straight, mirrored = _Convolutions(8)(image), _Convolutions(8)(image.flip(-1))
    torch.testing.assert_close(mirrored[:, 1:9], straight[:, partner].flip(-1), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("size", "grid"), [(8, (2, 2)), (27, (7, 7)), (30, (8, 8)), (48, (8, 8)), ((48, 21), (8, 6))])
def test_any_size_is_padded_or_averaged_to_a_bounded_grid(size, grid):
    network = ScatteringNetwork(3, size, 0, orientations=2, projection=None).eval()
    images = torch.rand(3, 3, *sides(size), generator=torch.Generator().manual_seed(0))
    assert network.coefficients(images).shape == (3, 3 * 9, *grid)
    assert network(images).shape == (3, network.feature_dim) == (3, 27 * math.prod(grid))


def test_channels_are_scattered_one_by_one():
    colour = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    together = ScatteringNetwork(3, 12, 0, 8, None).coefficients(colour)
    alone = [ScatteringNetwork(1, 12, 0, 8, None).coefficients(colour[:, [channel]]) for channel in range(3)]
    torch.testing.assert_close(together, torch.cat(alone, dim=1))


def test_features_are_standardised_logarithms_then_projected():
    network = ScatteringNetwork(1, 12, seed=3, orientations=4, projection=10).eval()
    images = torch.rand(70, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    with batch_statistics(network, "current"):
        features = network(images)
    logarithms = (network.coefficients(images).flatten(1) + 1e-3).log()
    standardised = (logarithms - logarithms.mean(0)) / (logarithms.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(features, standardised @ network.projection, atol=1e-4, rtol=1e-4)


def test_darker_than_black_is_a_number_and_spoils_no_other_image_of_its_batch():
    """A prompt's frame may be darker than black: where the average is below zero a logarithm would be none, and the
    batch's statistics would make it of all."""
    network = ScatteringNetwork(channels=1, size=12, seed=0, orientations=4, projection=None)
    images = torch.rand(6, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    dark = images.clone()
    dark[0, 0, :4] = -0.7
    black = torch.zeros(1, 1, 12, 12)
    assert torch.equal(network.described(black), torch.full_like(network.described(black), math.log(1e-3)))
    assert network.described(dark).min() >= math.log(1e-3)
    assert torch.equal(network.described(dark)[1:], network.described(images)[1:])
    with batch_statistics(network, "current"):
        assert network(dark).isfinite().all()
        (gradient,) = torch.autograd.grad(network(dark.requires_grad_()).square().sum(), dark)
    assert gradient.isfinite().all()


def test_recorded_statistics_make_features_independent_of_the_batch():
    network = ScatteringNetwork(1, 12, seed=3, orientations=4, projection=None).eval()
    images = torch.rand(64, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    record_statistics(network, [images[:32], images[32:]])
    features = network(images)
    torch.testing.assert_close(features[:5], network(images[:5]))
    assert features.mean().abs() < 0.05
    assert 0.9 < features.std() < 1.1
