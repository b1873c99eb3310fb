"""NT-Xent against the double loop of its definition."""

import math

import pytest
import torch

from terrine.errors import InputError
from terrine.pretraining.simclr import nt_xent


def nt_xent_plainly(first: torch.Tensor, second: torch.Tensor, temperature: float) -> float:
    views = [row.double() for row in first] + [row.double() for row in second]
    count, total = len(first), 0.0

    def similarity(i: int, j: int) -> float:
        return float(views[i] @ views[j] / (views[i].norm() * views[j].norm())) / temperature

    for i in range(2 * count):
        partner = (i + count) % (2 * count)
        others = sum(math.exp(similarity(i, k)) for k in range(2 * count) if k != i)
        total -= math.log(math.exp(similarity(i, partner)) / others)
    return total / (2 * count)


@pytest.mark.parametrize("count", [2, 3, 17])
@pytest.mark.parametrize("width", [1, 4, 128])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_the_loss_equals_the_double_loop(count, width, temperature):
    generator = torch.Generator().manual_seed(count * width)
    first, second = torch.randn(2, count, width, generator=generator)
    assert float(nt_xent(first, second, temperature)) == pytest.approx(
        nt_xent_plainly(first, second, temperature), rel=1e-4
    )


def test_low_precision_views_are_compared_in_single_precision():
    first, second = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nt_xent(first, second, 0.1)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(nt_xent_plainly(first, second, 0.1), rel=1e-4)


def test_views_that_do_not_match_are_refused():
    with pytest.raises(InputError, match=r"\(3, 4\) and \(2, 4\)"):
        nt_xent(torch.zeros(3, 4), torch.zeros(2, 4), 1.0)
    with pytest.raises(InputError, match="no negatives"):
        nt_xent(torch.zeros(1, 4), torch.zeros(1, 4), 1.0)
