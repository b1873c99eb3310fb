"""Layers for small maps, and ResNets that compute what torchvision's do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from terrine.models.networks import PartsAverage, SmallMapConv2d, averaged, build_resnet
from terrine.vision import torchvision
from tests.devices import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (1, 2, 2, 5), (3, 1, 16, 9)])
def test_means_and_their_gradients_are_those_of_adaptive_pooling(device, shape):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(shape, generator=generator).to(device).requires_grad_()
    towards = torch.randn(*shape[:2], 4, 4, generator=generator).to(device)
    plain = F.adaptive_avg_pool2d(maps, 4)
    torch.testing.assert_close(averaged(maps, 4), plain)
    torch.testing.assert_close(
        torch.autograd.grad((averaged(maps, 4) * towards).sum(), maps),
        torch.autograd.grad((plain * towards).sum(), maps),
    )


def test_mixed_precision_does_not_reach_the_means():
    maps = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = PartsAverage(4)(maps)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, averaged(maps.float(), 4), rtol=0, atol=0)


def test_doubles_stay_doubles():
    maps = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(averaged(maps, 4), F.adaptive_avg_pool2d(maps, 4))


@pytest.mark.parametrize("side", [1, 2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_small_map_convolution_equals_the_ordinary_one_with_its_gradients(side, stride):
    torch.manual_seed(0)
    plain = nn.Conv2d(5, 4, 3, stride=stride, padding=1, bias=False)
    maps = torch.randn(3, 5, side, side)
    expected = plain(maps)
    expected.square().sum().backward()
    gradient = plain.weight.grad.clone()
    plain.weight.grad = None
    result = SmallMapConv2d.like(plain)(maps)
    result.square().sum().backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(plain.weight.grad, gradient)


@pytest.mark.parametrize("depth", [18, 34])
@torch.no_grad()
def test_a_resnet_computes_what_torchvisions_does_with_the_same_weights(depth):
    torch.manual_seed(0)
    network = build_resnet(depth, 3).eval()
    reference = getattr(torchvision.models, f"resnet{depth}")().eval()
    reference.fc = nn.Identity()
    reference.load_state_dict(network.state_dict())
    for side in (28, 64):
        images = torch.rand(2, 3, side, side)
        torch.testing.assert_close(network(images), reference(images), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_small_stem_keeps_the_resolution_of_its_first_blocks():
    shapes = {}
    for stem in ("standard", "small"):
        network = build_resnet(10, 1, stem).eval()
        network.layer1.register_forward_hook(lambda _, __, out, stem=stem: shapes.update({stem: tuple(out.shape)}))
        assert network(torch.rand(2, 1, 28, 28)).shape == (2, 512)
    assert shapes == {"standard": (2, 64, 7, 7), "small": (2, 64, 28, 28)}
