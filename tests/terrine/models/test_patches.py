"""Patches compared with a dictionary: against a plain computation, one patch at a time, and what mirroring changes."""

import numpy as np
import pytest
import torch

import terrine as tr
from terrine.models.architecture import build_backbone
from terrine.models.patches import learn_dictionary
from terrine.models.projected import PARTS, SIDE, STRIDE, THRESHOLD

WORDS = 12


@pytest.fixture(autouse=True)
def _few_patches(monkeypatch):
    monkeypatch.setattr("terrine.models.patches._PATCHES", 4000)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    coarse = torch.rand(96, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return (torch.nn.functional.interpolate(coarse, size=20, mode="bicubic").clamp(0, 1) * 255).byte().numpy()


BATCHES = [np.arange(48), np.arange(48, 96)]


def network_of(images, mirrored, seed=0):
    network = build_backbone(
        "patches", channels=3, size=20, seed=0, words=WORDS, mirrored=mirrored, projection=None
    ).network
    learn_dictionary(network, images, BATCHES, seed=seed)
    return network


def test_coefficients_are_those_of_a_plain_computation(images):
    network = network_of(images, mirrored=False)
    image = images[3].astype(np.float64) / 255
    kernels, offset = network.kernels.double().numpy().reshape(WORDS, -1), network.offset.double().numpy()
    places = range(0, 20 - SIDE + 1, STRIDE)
    maps = np.zeros((2 * WORDS, len(places), len(places)))
    for row, top in enumerate(places):
        for column, left in enumerate(places):
            patch = image[:, top : top + SIDE, left : left + SIDE].ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 10 / 255**2)
            likeness = kernels @ patch - offset
            maps[:, row, column] = np.maximum(np.concatenate([likeness, -likeness]) - THRESHOLD, 0)
    edges = [(part * len(places) // PARTS, -(-(part + 1) * len(places) // PARTS)) for part in range(PARTS)]
    expected = [maps[:, a:b, c:d].mean(axis=(1, 2)) for a, b in edges for c, d in edges]
    found = network.described(torch.from_numpy(images[3:4]).float() / 255).view(2 * WORDS, -1).T
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=2e-5)


def test_words_are_white_directions_and_patches_are_like_the_nearest(images):
    kernels = network_of(images, mirrored=False).kernels.flatten(1)
    np.testing.assert_allclose(kernels.sum(1).numpy(), 0, atol=1e-5)
    assert len({tuple(word) for word in kernels.tolist()}) == WORDS
    described = network_of(images, mirrored=False).described(torch.from_numpy(images).float() / 255)
    assert (described > 0).any(dim=0).float().mean() > 0.9


def test_mirroring_changes_nothing_where_it_is_said_to_and_something_elsewhere(images):
    batch = torch.from_numpy(images[:8]).float() / 255
    for mirrored in (True, False):
        network = network_of(images, mirrored)
        difference = (network.described(batch) - network.described(batch.flip(-1))).abs().max()
        assert (difference < 1e-5) == mirrored


def test_a_dictionary_does_not_depend_on_the_number_of_threads(images):
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(network_of(images, mirrored=True).kernels.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] != network_of(images, mirrored=True, seed=1).kernels.numpy().tobytes()


def test_a_fitted_backbone_has_a_learned_projection_and_is_built_again_from_its_description(images):
    backbone = build_backbone("patches", channels=3, size=20, seed=0, words=WORDS, projection=10)
    random = backbone.network.projection.clone()
    tr.Patches(words=WORDS, projection=10).adapt(backbone, images, BATCHES, seed=0, device="cpu")
    assert not torch.equal(backbone.network.projection, random)
    described, shown = backbone.describe(), torch.from_numpy(images[:40])
    again = build_backbone(**(described | described.pop("options")), seed=5)
    again.load_state_dict(backbone.state_dict())
    torch.testing.assert_close(again.features(shown, "original"), backbone.features(shown, "original"))
    assert backbone.features(shown, "original").shape == (40, 10)
