"""Weighted, single and frozen statistics against plain loops."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from terrine.deployment.network import freeze_statistics, single_statistics, weighted_statistics
from terrine.errors import InputError
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics

SHAPES = [(5, 3), (4, 2, 3, 3), (6, 3, 1, 1)]


def layer_and_input(shape, affine=True):
    torch.manual_seed(sum(shape))
    layer = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(shape[1], affine=affine).eval()
    layer.running_mean.uniform_(-1, 1)
    layer.running_var.uniform_(0.5, 2)
    if affine:
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.uniform_(layer.bias, -1, 1)
    return layer, torch.randn(shape)


def normalised(value, mean, variance, layer, channel):
    result = (value - mean) / np.sqrt(variance + layer.eps)
    if layer.affine:
        result = result * layer.weight[channel].item() + layer.bias[channel].item()
    return result


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_weighted_statistics_are_those_of_a_plain_loop(shape, affine):
    layer, batch = layer_and_input(shape, affine)
    weights = torch.rand(shape[0])
    weights /= weights.sum()
    with weighted_statistics(weights), torch.no_grad():
        result = layer(batch)
    values = batch.double().numpy().reshape(*shape[:2], -1)
    expected = np.empty_like(values)
    for channel in range(shape[1]):
        mean = variance = 0.0
        for number in range(shape[0]):
            for value in values[number, channel]:
                mean += weights[number].item() * value / values.shape[2]
        for number in range(shape[0]):
            for value in values[number, channel]:
                variance += weights[number].item() * (value - mean) ** 2 / values.shape[2]
        expected[:, channel] = normalised(values[:, channel], mean, variance, layer, channel)
    np.testing.assert_allclose(result.numpy().reshape(values.shape), expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_single_statistics_are_those_of_a_plain_loop(shape):
    layer, batch = layer_and_input(shape)
    weight = 3.0
    with single_statistics(weight), torch.no_grad():
        result = layer(batch)
    values = batch.double().numpy().reshape(*shape[:2], -1)
    expected = np.empty_like(values)
    for number in range(shape[0]):
        for channel in range(shape[1]):
            own, recorded = values[number, channel], layer.running_mean[channel].item()
            mean = (own.mean() + weight * recorded) / (1 + weight)
            about = [np.mean((own - mean) ** 2), layer.running_var[channel].item() + (recorded - mean) ** 2]
            variance = (about[0] + weight * about[1]) / (1 + weight)
            expected[number, channel] = normalised(own, mean, variance, layer, channel)
    np.testing.assert_allclose(result.numpy().reshape(values.shape), expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "options"), [("scattering", {"projection": 20, "orientations": 4}), ("resnet10", {})])
def test_equal_weights_are_current_statistics_in_a_whole_network(kind, options):
    network = build_backbone(kind, channels=1, size=16, seed=0, **options).network
    batch = torch.rand(6, 1, 16, 16)
    with torch.no_grad():
        with batch_statistics(network, "current"):
            expected = network(batch)
        with weighted_statistics(torch.full((6,), 1 / 6)):
            result = network(batch)
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "options"), [("scattering", {"projection": 20, "orientations": 4}), ("resnet10", {})])
def test_a_frozen_network_gives_the_reference_images_what_current_statistics_give_them(kind, options):
    network = build_backbone(kind, channels=1, size=16, seed=0, **options).network
    reference = torch.rand(9, 1, 16, 16)
    frozen = copy.deepcopy(network)
    freeze_statistics(frozen, reference)
    with torch.no_grad():
        with batch_statistics(network, "current"):
            expected = network(reference)
        torch.testing.assert_close(frozen(reference), expected, atol=1e-4, rtol=1e-4)
        alone = torch.cat([frozen(image[None]) for image in reference])
    torch.testing.assert_close(alone, expected, atol=1e-4, rtol=1e-4)


def test_freezing_leaves_weights_and_modes_as_they_were():
    network = build_backbone("resnet10", channels=1, size=16, seed=0).network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    freeze_statistics(network, torch.rand(4, 1, 16, 16))
    assert all(layer.training for layer in network.modules())
    changed = {name.rpartition(".")[2] for name, value in network.state_dict().items() if not value.equal(before[name])}
    assert changed == {"running_mean", "running_var"}


@pytest.mark.parametrize("context", [weighted_statistics(torch.full((4,), 0.25)), single_statistics(2.0)])
def test_no_buffer_is_touched_by_statistics_for_the_time_of_a_block(context):
    layer, batch = layer_and_input((4, 2, 3, 3))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with context, torch.no_grad():
        first = layer(batch)
        assert layer(batch).equal(first)
    assert all(value.equal(before[name]) for name, value in layer.state_dict().items())


def test_one_reference_image_is_refused():
    with pytest.raises(InputError, match="at least 2"):
        freeze_statistics(nn.BatchNorm2d(1), torch.rand(1, 1, 4, 4))
