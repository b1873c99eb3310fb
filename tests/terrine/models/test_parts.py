import pytest
import torch
import torch.nn.functional as F

from terrine.models.parts import PartsAverage, averaged
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
