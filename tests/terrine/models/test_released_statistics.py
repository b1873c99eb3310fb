"""Moments of images: one vector of every unit that no other unit moves, and the statistics that follow from them."""

import math

import numpy as np
import pytest
import torch

from terrine.models.architecture import build_backbone
from terrine.models.released_statistics import bound_for, image_vectors, statistics_from, unit_vectors
from terrine.privacy.noise import lattice_step
from terrine.privacy.noised_sum import ClippedMean
from tests.student_folders import SIZE, images


@pytest.fixture(scope="module")
def backbone():
    made = build_backbone("scattering", channels=1, size=SIZE, seed=1, orientations=4, projection=24)
    logs = logs_of(made, images(80, seed=1) // 2)
    made.network.standardise.running_mean = torch.from_numpy(logs.mean(0)).float()
    made.network.standardise.running_var = torch.from_numpy(logs.var(0)).float()
    return made


def logs_of(backbone, batch):
    with torch.no_grad():
        coefficients = backbone.network.coefficients(torch.from_numpy(batch).float() / 255)
    return np.log(coefficients.flatten(1).double().numpy() + 1e-3)


def units_of(backbone, batch, units):
    return np.concatenate(list(unit_vectors(backbone, batch, units, 1.5)))


def test_a_units_vector_is_the_mean_of_its_images_and_of_no_others_to_the_bit(backbone):
    """Groups of 1 to 90 images, also across blocks, exchanged, removed and added."""
    batch = images(200, seed=2)
    units = np.random.default_rng(3).choice([5, 7, 11, 90], size=200, p=[0.01, 0.1, 0.44, 0.45])
    found = dict(zip(np.unique(units), units_of(backbone, batch, units), strict=True))
    for code, vector in found.items():
        plain = image_vectors(backbone.network, torch.from_numpy(batch[units == code]), 1.5).double().mean(0)
        np.testing.assert_allclose(vector, plain.numpy(), atol=1e-6)
    exchanged = np.where((units == 11)[:, None, None, None], 255 - batch, batch)
    for other, codes in ((exchanged, units), (batch[units != 11], units[units != 11])):
        again = dict(zip(np.unique(codes), units_of(backbone, other, codes), strict=True))
        for code in {5, 7, 90}:
            np.testing.assert_array_equal(again[code], found[code])
    assert np.abs(units_of(backbone, exchanged, units)[2] - found[11]).max() > 1e-3


@pytest.mark.parametrize("unit", ["record", "group"])
def test_no_unit_exchanged_removed_or_added_moves_the_sums_by_more_than_is_charged(backbone, unit):
    batch = images(130, seed=7)
    codes = np.arange(130) if unit == "record" else np.arange(130) // 4
    mechanism = ClippedMean(2.0)
    step = lattice_step(mechanism.event.sigma)

    def total(taken, units):
        return mechanism.total(unit_vectors(backbone, taken, units, 0.7))  # most are clipped

    own = total(batch, codes)
    for code in (0, 17, codes[-1]):
        mine = codes == code
        for other in (255 - batch, np.zeros_like(batch), np.random.default_rng(1).permutation(batch)):
            exchanged = np.where(mine[:, None, None, None], other, batch)
            assert 0.01 < np.linalg.norm((total(exchanged, codes) - own).astype(float)) * step <= 2
        left = total(batch[~mine], codes[~mine]) - own  # seen from there, one was added
        assert np.sqrt(3) < np.linalg.norm(left.astype(float)) * step <= 2


def test_without_noise_statistics_are_means_of_places_and_deviations_of_maps(backbone):
    batch = images(120, seed=4)
    logs, layer = logs_of(backbone, batch), backbone.network.standardise
    mean = units_of(backbone, batch, np.arange(120)).mean(0)
    statistics = statistics_from(backbone, mean, 0.0, 1.5)
    np.testing.assert_allclose(statistics["mean"], logs.mean(0), atol=1e-4)
    places = math.prod(backbone.network.grid)
    ratio = (logs.var(0) / (layer.running_var.double().numpy() + layer.eps)).reshape(-1, places).mean(1)
    expected = np.repeat(ratio, places) * (layer.running_var.double().numpy() + layer.eps) - layer.eps
    np.testing.assert_allclose(statistics["variance"], expected, rtol=1e-3, atol=1e-5)


def test_noise_makes_no_variance_negative_and_maps_are_drawn_together_by_as_much_as_it_drove_them_apart(backbone):
    layer = backbone.network.standardise
    length = layer.num_features
    noise = np.random.default_rng(0).normal(size=length + length // math.prod(backbone.network.grid)) * 0.02
    apart, together = (statistics_from(backbone, noise, known, 1.5)["variance"] for known in (0.0, 0.02))
    assert min(apart.min(), together.min()) >= 0
    spread = [
        float(np.std((variance + layer.eps) / (layer.running_var + layer.eps).numpy()))
        for variance in (apart, together)
    ]
    assert spread[1] < spread[0] / 2


def test_means_that_are_all_noise_are_drawn_to_the_public_ones(backbone):
    layer = backbone.network.standardise
    length = layer.num_features
    noise = np.random.default_rng(0).normal(size=length + length // math.prod(backbone.network.grid)) * 0.02
    away = [
        np.linalg.norm(statistics_from(backbone, noise, known, 1.5)["mean"] - layer.running_mean.numpy())
        for known in (0.0, 0.02)
    ]
    assert away[1] < away[0] / 2


def test_the_bound_grows_with_the_units_that_anybody_may_know_of_between_its_ends(backbone):
    assert [bound_for(backbone, units, 10.0) for units in (None, 10, 857, 10**6)] == pytest.approx(
        [1.5, 1.5, 0.35 * 857 / 150, 2.5]
    )
