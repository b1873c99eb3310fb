"""Current statistics touch nothing and reach every batch normalisation."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from terrine.errors import InputError
from terrine.models.statistics import batch_statistics, has_batch_norm, record_statistics
from terrine.vision import timm, torchvision


def small_network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5), nn.BatchNorm1d(5)
    )
    for layer in network:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return network.eval()


def images(count: int = 6) -> torch.Tensor:
    return torch.rand(count, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def normalised_plainly(network: nn.Module, batch: torch.Tensor, halfway: bool = False) -> torch.Tensor:
    """The network layer by layer, batch normalisation written out, one channel at a time."""
    for layer in network:
        if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            batch = layer(batch)
            continue
        result = torch.empty_like(batch)
        for channel in range(batch.shape[1]):
            values = batch[:, channel]
            deviation = ((values - values.mean()).square().mean() + layer.eps).sqrt()
            if halfway:
                deviation = (deviation * (layer.running_var[channel] + layer.eps).sqrt()).sqrt()
            result[:, channel] = (values - values.mean()) / deviation * layer.weight[channel] + layer.bias[channel]
        batch = result
    return batch


@torch.no_grad()
def test_current_statistics_are_those_of_the_batch():
    network, batch = small_network(), images()
    with batch_statistics(network, "current"):
        result = network(batch)
    torch.testing.assert_close(result, normalised_plainly(network, batch))


@torch.no_grad()
def test_halfway_is_the_batchs_mean_and_the_geometric_mean_of_its_deviations_and_the_stored_ones():
    network, batch = small_network(), images()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with batch_statistics(network, "halfway"):
        result = network(batch)
        assert torch.equal(result, network(batch))
    torch.testing.assert_close(result, normalised_plainly(network, batch, halfway=True))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@torch.no_grad()
def test_halfway_to_no_stored_deviations_is_the_batchs_own():
    network, batch = nn.BatchNorm2d(2, track_running_stats=False).eval(), images()
    with batch_statistics(network, "halfway"):
        halfway = network(batch)
    with batch_statistics(network, "current"):
        assert torch.equal(halfway, network(batch))


@torch.no_grad()
def test_original_statistics_are_the_stored_ones():
    network, batch = small_network(), images()
    with batch_statistics(network, "original"):
        result = network(batch)
    assert torch.equal(result, network(batch))


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["resnet10t", "efficientnet_b0", "torchvision"])
def test_buffers_and_flags_are_bit_identical_afterwards(architecture):
    torch.manual_seed(0)
    network = torchvision.models.resnet18() if architecture == "torchvision" else timm.create_model(architecture)
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    batch = torch.rand(4, 3, 32, 32)
    with batch_statistics(network, "current"):
        first, second = network(batch), network(batch)
    assert torch.equal(first, second)
    assert not torch.equal(first, network(batch))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(layer.training for layer in network.modules())


@torch.no_grad()
def test_timm_networks_use_the_batch_as_they_do_in_training():
    torch.manual_seed(0)
    network = timm.create_model("resnet10t").eval()  # no dropout, so only batch normalisation tells the modes apart
    batch = torch.rand(4, 3, 32, 32)
    expected = copy.deepcopy(network).train()(batch)
    with batch_statistics(network, "current"):
        torch.testing.assert_close(network(batch), expected)


@torch.no_grad()
def test_it_works_under_vmap_and_functional_call():
    networks = [small_network() for _ in range(3)]
    for scale, network in enumerate(networks):
        network[0].weight.mul_(1 + scale)
        network[4].weight.add_(0.1 * scale)
    parameters, buffers = stack_module_state(networks)
    batch = images()
    with batch_statistics(networks[0], "current"):
        together = vmap(lambda p, b: functional_call(networks[0], (p, b), (batch,)))(parameters, buffers)
    for network, result in zip(networks, together, strict=True):
        torch.testing.assert_close(result, normalised_plainly(network, batch))


def test_gradients_flow_through_current_statistics():
    network, batch = small_network(), images()
    with batch_statistics(network, "current"):
        network(batch).square().sum().backward()
    expected = copy.deepcopy(network)
    expected.zero_grad()
    expected.train()(batch).square().sum().backward()
    torch.testing.assert_close(network[0].weight.grad, expected[0].weight.grad)


@torch.no_grad()
def test_threads_with_different_statistics_do_not_disturb_each_other():
    network, batch = small_network(), images()
    original = network(batch)
    inside, leave = threading.Event(), threading.Event()

    def hold_current() -> None:
        with batch_statistics(network, "current"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold_current)
    thread.start()
    inside.wait(10)
    try:
        assert torch.equal(network(batch), original)
    finally:
        leave.set()
        thread.join()


def test_a_network_in_training_is_evaluated_and_goes_back_to_training():
    network = nn.Sequential(small_network(), nn.Dropout(0.5)).train()
    network[0][1].eval()
    with batch_statistics(network, "current"):
        assert torch.equal(network(images()), network(images()))
    assert network.training
    assert network[1].training
    assert not network[0][1].training
    assert network[0][5].num_batches_tracked == 0


@pytest.mark.parametrize("statistics", ["current", "halfway"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_without_statistics_is_refused(count, statistics):
    network = small_network()
    with batch_statistics(network, statistics), pytest.raises(InputError, match="at least 2 images"):
        network(images(count))
    with batch_statistics(network, "original"):
        assert network(images(count)).shape == (count, 5)


def test_recorded_statistics_are_the_average_over_the_batches_for_layers_without_weights():
    network = nn.Sequential(small_network(), nn.BatchNorm1d(5, affine=False)).eval()
    trained = [network[0][1].running_mean.clone(), network[0][1].running_var.clone()]
    batches = [images(4), images(6) * 2]
    record_statistics(network, batches)
    with torch.no_grad():
        features = [network[0](batch) for batch in batches]
    torch.testing.assert_close(network[1].running_mean, sum(each.mean(0) for each in features) / 2)
    torch.testing.assert_close(network[1].running_var, sum(each.var(0, unbiased=True) for each in features) / 2)
    assert [network[0][1].running_mean.tolist(), network[0][1].running_var.tolist()] == [t.tolist() for t in trained]
    assert network[1].momentum == 0.1
    assert not any(layer.training for layer in network.modules())


def test_a_network_without_batch_norm_says_so():
    assert has_batch_norm(small_network())
    assert not has_batch_norm(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_recorded_statistics_of_all_layers_reach_those_with_weights():
    network = small_network()
    batches = [images(4), images(6) * 2]
    record_statistics(network, batches, "all")
    with torch.no_grad():
        maps = [network[0](batch) for batch in batches]
    torch.testing.assert_close(network[1].running_mean, sum(each.mean(dim=(0, 2, 3)) for each in maps) / 2)
    variances = [each.transpose(0, 1).flatten(1).var(dim=1) for each in maps]
    torch.testing.assert_close(network[1].running_var, sum(variances) / 2)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["resnet10t", "mobilenetv3_small_050"])
def test_timm_models_vote_under_vmap_as_they_do_alone(architecture):
    torch.manual_seed(0)
    networks = [timm.create_model(architecture, num_classes=4).eval() for _ in range(2)]
    parameters, buffers = stack_module_state(networks)
    before = {name: value.clone() for name, value in buffers.items()}
    batch = torch.rand(16, 3, 64, 64)
    with batch_statistics(networks[0], "current"):
        together = vmap(lambda p, b: functional_call(networks[0], (p, b), (batch,)))(parameters, buffers)
    for network, result in zip(networks, together, strict=True):
        with batch_statistics(network, "current"):
            torch.testing.assert_close(network(batch), result, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in buffers.items())


@torch.no_grad()
def test_every_dimension_of_batch_norm_takes_part():
    for layer, shape in (
        (nn.BatchNorm1d(3), (5, 3)),
        (nn.BatchNorm1d(3), (5, 3, 4)),
        (nn.BatchNorm2d(3), (5, 3, 4, 2)),
        (nn.BatchNorm3d(3), (5, 3, 4, 2, 2)),
    ):
        nn.init.normal_(layer.running_mean)
        layer.eval()
        batch = torch.randn(shape)
        with batch_statistics(layer, "current"):
            result = layer(batch)
        for channel in range(3):
            values = batch[:, channel]
            expected = (values - values.mean()) / (values.var(unbiased=False) + layer.eps).sqrt()
            torch.testing.assert_close(result[:, channel], expected, rtol=1e-4, atol=1e-5)
