"""Mathematical functions with equal bits on every machine.

The bytes of an image must not depend on its batch, the number of threads or the processor. Library sines, logarithms,
sums and matrix products differ between vector widths, between a vector loop and its tail, and between CPU and GPU. IEEE
754 only guarantees single additions, subtractions, multiplications, divisions and square roots. Image programs
therefore use only these, one tensor operation each, and the functions here.

Rules for callers: no `alpha=`, `addcmul` or `lerp` (may be fused), no division by a Python number that is not a power
of two (a GPU multiplies by the reciprocal), no `sum` or `matmul` of floats unless every partial sum is an exact
integer.
"""

import math

import torch
from torch import Tensor

# sin(π/2·q) = q·P(q²) on [-1, 1], fitted at Chebyshev nodes: error 4e-9, below float32's own rounding.
_SINE = (1.57079629, -0.64596336, 0.07968847, -0.00467222, 0.000150817)
_LOG_SERIES = (2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0)
# arctan(q) / 2π = q·P(q²) on [-1, 1], fitted likewise: error 5e-8.
_ARCTANGENT = (0.159154247, -0.053024064, 0.0315077322, -0.0210019307, 0.012573214, -0.00526886433, 0.0010596997)
_HALF_ROOT = 0x3F3504F3  # the bits of float32 √½
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(8))


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value.add_(coefficient).mul_(x)
    return value.add_(coefficients[0])


def sine(turns: Tensor) -> Tensor:
    """Return sin(2π·turns); the absolute error is below 1e-6 up to two turns, then that of rounding `turns`."""
    # Fold one turn onto [-1, 1] in quarter turns, where the polynomial is accurate: a triangle wave.
    fold = turns - 0.25
    fold = fold - torch.round(fold)
    quarter = fold.abs_().mul_(4.0).neg_().add_(1.0)
    return _polynomial(quarter * quarter, _SINE).mul_(quarter)


def cosine(turns: Tensor) -> Tensor:
    """Return cos(2π·turns); see `sine`."""
    return sine(turns + 0.25)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of positive float32 numbers, relative error below 1e-6."""
    # With a mantissa in [√½, √2) the series in (m - 1)/(m + 1) converges fast.
    bits = x.view(torch.int32) - _HALF_ROOT
    exponent = bits >> 23
    mantissa = ((bits & 0x7FFFFF) + _HALF_ROOT).view(torch.float32)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    return _polynomial(ratio * ratio, _LOG_SERIES).mul_(ratio) + exponent.to(torch.float32) * math.log(2.0)


def exp2(x: Tensor) -> Tensor:
    """Return 2^x for float32 x in [-100, 100], relative error below 1e-6."""
    whole = torch.round(x)
    scale = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return _polynomial(x - whole, _EXP2).mul_(scale)


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """Return base^exponent for positive float32 bases."""
    return exp2(log(base) * exponent * (1.0 / math.log(2.0)))


def box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Turn two tensors of uniform 32-bit words into two float32 tensors of independent standard normals."""
    # 23 bits plus one half: exact in float32, and never zero.
    uniform = ((first >> 9).to(torch.float32) + 0.5) * 2.0**-23
    radius = log(uniform).mul_(-2.0).sqrt_()
    turns = (second >> 8).to(torch.float32) * 2.0**-24
    return radius * cosine(turns), radius * sine(turns)


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Return the sum over `dim` (kept, length 1) in a fixed order on every device."""
    length = x.shape[dim]
    kept = (length + 1) // 2
    total = x.narrow(dim, 0, kept).clone()
    total.narrow(dim, 0, length - kept).add_(x.narrow(dim, kept, length - kept))
    while kept > 1:
        length, kept = kept, (kept + 1) // 2
        total.narrow(dim, 0, length - kept).add_(total.narrow(dim, kept, length - kept))
    return total.narrow(dim, 0, 1)


def angle(y: Tensor, x: Tensor) -> Tensor:
    """Return the angle of the point (x, y) in turns, in [-0.5, 0.5], absolute error below 1e-5; 0 at the origin."""
    across, up = x.abs(), y.abs()
    ratio = torch.minimum(across, up) / torch.maximum(across, up).clamp_(min=1e-20)
    turns = _polynomial(ratio * ratio, _ARCTANGENT).mul_(ratio)
    turns = torch.where(up > across, 0.25 - turns, turns)
    turns = torch.where(x < 0, 0.5 - turns, turns)
    return torch.where(y < 0, -turns, turns)
