"""Machine-independent mathematics against the standard library's."""

import math

import pytest
import torch

from terrine.determinism import portable_math


def largest_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs).abs().max())


def test_sine_and_cosine_of_turns_agree_with_the_library():
    turns = torch.linspace(-2, 2, 100_001)
    angle = turns.double() * 2 * math.pi
    assert largest_error(portable_math.sine(turns), angle.sin()) < 1e-6
    assert largest_error(portable_math.cosine(turns), angle.cos()) < 1e-6
    assert portable_math.sine(torch.tensor([0.0, 0.25, 0.5, 0.75])).tolist() == pytest.approx([0, 1, 0, -1], abs=1e-7)


def test_logarithm_power_and_exponential_agree_with_the_library():
    x = torch.logspace(-30, 30, 100_001)
    expected = x.double().log()
    assert float(((portable_math.log(x) - expected).abs() / expected.abs().clamp(min=0.1)).max()) < 1e-6
    near_one = torch.linspace(0.5, 2.0, 10_001)
    assert largest_error(portable_math.log(near_one), near_one.double().log()) < 3e-7
    y = torch.linspace(-90, 90, 100_001)
    assert largest_error(portable_math.exp2(y) / torch.exp2(y.double()), torch.ones(len(y))) < 1e-6
    base, exponent = torch.tensor([1.0, 2.0, 14.0]), torch.tensor([3.3, 0.5, 2.5])
    assert portable_math.power(base, exponent).tolist() == pytest.approx((base.double() ** exponent).tolist(), rel=2e-6)


def test_angle_agrees_with_the_library_in_all_quadrants():
    turns = torch.linspace(-0.499, 0.499, 9_999, dtype=torch.float64)
    x, y = (turns * 2 * math.pi).cos(), (turns * 2 * math.pi).sin()
    assert largest_error(portable_math.angle(y.float(), x.float()), turns) < 1e-6
    zero = torch.zeros(1)
    assert portable_math.angle(zero, zero).item() == 0


def test_tree_sum_adds_in_its_fixed_order_whatever_the_layout():
    x = torch.randn(3, 27, 4, generator=torch.Generator().manual_seed(0))

    def plain(values: list[torch.Tensor]) -> torch.Tensor:
        while len(values) > 1:
            kept = (len(values) + 1) // 2
            values = [v + values[kept + k] if kept + k < len(values) else v for k, v in enumerate(values[:kept])]
        return values[0]

    total = portable_math.tree_sum(x, 1)
    assert total.shape == (3, 1, 4)
    assert torch.equal(total[:, 0], plain(list(x.unbind(1))))
    assert torch.equal(portable_math.tree_sum(x.transpose(0, 2).contiguous().transpose(0, 2), 1), total)
    assert torch.equal(portable_math.tree_sum(x[:, :1], 1), x[:, :1])


def test_box_muller_turns_extreme_words_into_finite_normals():
    words = torch.tensor([0, 1, 2**32 - 1])
    for first in words:
        a, b = portable_math.box_muller(first.expand(3), words)
        assert torch.isfinite(a).all()
        assert torch.isfinite(b).all()
        assert float((a * a + b * b).max()) < 34
