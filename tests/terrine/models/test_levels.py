"""A ResNet10's features of all levels."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from terrine.models.architecture import build_backbone
from terrine.models.backbone import features_in_batches, features_one_by_one
from terrine.models.levels import ResNetLevels
from terrine.models.statistics import batch_statistics
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain
from terrine.queries import Queries

SIZE = 16


@pytest.fixture(scope="module")
def queries():
    images = np.random.default_rng(0).integers(0, 256, (24, 3, SIZE, SIZE), dtype=np.uint8)
    return Queries(images, [np.arange(12), np.arange(12, 24)], ["a", "b"])


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet10.safetensors"
    network = build_backbone("resnet10", channels=3, size=SIZE, seed=5, stem="small").network
    save_file({name: value.half() for name, value in network.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def backbone(queries, weights):
    return ResNetLevels(weights=weights, projection=8).fit(queries)


def test_features_are_means_of_the_maps_of_the_network_in_the_file(backbone):
    plain = build_backbone("resnet10", channels=3, size=SIZE, seed=5, stem="small").network.half().float()
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        found = backbone.network.described(images).unflatten(1, (-1, 4))
        expected = (plain(images) + plain(images.flip(-1))) / 2
    torch.testing.assert_close(found[:, -512:].mean(2), expected, atol=1e-4, rtol=1e-4)
    assert found.shape == (2, 64 + 128 + 256 + 512, 4)


def test_a_mirrored_image_has_the_same_features(backbone):
    images = torch.rand(2, 3, SIZE, SIZE)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.network.described(images), backbone.network.described(images.flip(-1)), atol=1e-5, rtol=1e-5
        )


def test_coefficients_do_not_depend_on_the_batch_under_any_statistics(backbone):
    images = torch.rand(4, 3, SIZE, SIZE)
    with torch.no_grad(), batch_statistics(backbone, "current"):
        together = backbone.network.described(images)
        alone = torch.cat([backbone.network.described(image[None]) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_original_features_are_those_of_each_image_by_itself(backbone, queries):
    one = np.concatenate(list(features_one_by_one(backbone, queries.images, lambda rows: rows)))
    batches = features_in_batches(backbone, queries.images, queries.batches, "original")
    np.testing.assert_allclose(one, batches, atol=1e-4)
    assert one.shape == (24, 8)


def test_simclr_trains_the_network_and_leaves_the_projection(backbone, queries, weights):
    other = ResNetLevels(weights=weights, projection=8).fit(queries)
    before = {name: value.clone() for name, value in other.network.state_dict().items()}
    pretrain(other, queries.images, SimCLRSettings(epochs=1, batch=8), seed=0, device="cpu")
    changed = {name for name, value in other.network.state_dict().items() if not torch.equal(value, before[name])}
    assert "network.layer4.0.conv2.weight" in changed
    assert not changed & {"projection", "standardise.running_mean"}
