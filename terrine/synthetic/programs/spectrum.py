"""Power-law noise: random pictures whose spectrum falls off like that of natural images.

The amplitude at frequency (u, v) is 1 / (|u|^a + |v|^b) with a and b uniform on [0.5, 3.5] per image, the coefficients
are Gaussian, and every channel gets a random mean and deviation (Baradad et al. 2021, section 3.2).

The Fourier transform is two matrix products per image in float64. The factors are multiples of 2^-20, 2^-20 and 2^-16,
so every partial sum is exact. A fast transform would round differently on each machine.
"""

import math
from functools import cache

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import power
from terrine.synthetic.program import chunks, image_program, to_bytes

LEAST_EXPONENT, MOST_EXPONENT = 0.5, 3.5
UNIT = 2.0**-20
MIDDLE_UNIT = 2.0**-16
MIDDLE_LIMIT = 2.0**7


@image_program("spectrum")
def spectrum(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the power-law images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    parts = chunks(index, size, cpu=1 << 16, gpu=1 << 22)
    return torch.cat([_draw(seed, part, size, channels) for part in parts])


def exponents(seed: int, index: Tensor) -> Tensor:
    """Return the two exponents (along x, along y) of each image, float32 [images, 2]."""
    return philox.uniforms(seed, "spectrum/exponents", index, 2) * (MOST_EXPONENT - LEAST_EXPONENT) + LEAST_EXPONENT


def amplitude(size: int, exponent: Tensor) -> Tensor:
    """Return 1 / (|u|^a + |v|^b) for all integer frequencies, 0 for the mean: float32 [images, size (v), size (u)]."""
    frequency = torch.arange(size, device=exponent.device)
    frequency = torch.minimum(frequency, size - frequency).to(torch.float32)
    powers = power(frequency.clamp(min=1.0)[None, None], exponent[:, :, None]) * (frequency > 0).to(torch.float32)
    total = powers[:, 0][:, None, :] + powers[:, 1][:, :, None]
    total[:, 0, 0] = 1.0
    result = 1.0 / total
    result[:, 0, 0] = 0.0
    return result


@cache
def _transform(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the inverse transform's matrices: columns [2n, 2n] on stacked (real, imaginary), rows [2n, n] to real."""
    turn = [[2 * math.pi * (j * k % size) / size for k in range(size)] for j in range(size)]
    cosine = torch.tensor([[round(math.cos(t) / UNIT) * UNIT for t in row] for row in turn], dtype=torch.float64)
    sine = torch.tensor([[round(math.sin(t) / UNIT) * UNIT for t in row] for row in turn], dtype=torch.float64)
    columns = torch.cat([torch.cat([cosine, -sine], 1), torch.cat([sine, cosine], 1)])
    rows = torch.cat([cosine, -sine])
    return columns.to(device), rows.to(device)


def _draw(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    normal = philox.normals(seed, "spectrum/coefficients", index, channels * 2 * size * size)
    normal = normal.view(-1, channels, 2, size, size) * amplitude(size, exponents(seed, index))[:, None, None]
    picture = real_inverse_transform(normal)
    level = philox.uniforms(seed, "spectrum/levels", index, 8).view(-1, 2, 4, 1)[:, :, :channels]
    return to_bytes(picture, level[:, 0] * 0.3 + 0.35, level[:, 1] * 0.15 + 0.12)


def real_inverse_transform(coefficients: Tensor) -> Tensor:
    """Return the real part of Σ c[v, u] exp(2πi (u·x + v·y) / n), float32 [..., n, n], rounded to about 2^-16.

    `coefficients` is float32 [..., 2, n, n]: real and imaginary parts, below 2^4 in size.
    """
    size = coefficients.shape[-1]
    columns, rows = _transform(size, coefficients.device)
    exact = (coefficients * (1 / UNIT)).round_().to(torch.float64) * UNIT
    middle = torch.matmul(columns, exact.flatten(-3, -2))
    middle = (middle * (1 / MIDDLE_UNIT)).round_().mul_(MIDDLE_UNIT).clamp_(-MIDDLE_LIMIT, MIDDLE_LIMIT)
    # The stacked halves are placed side by side, so that one product gives the real part.
    middle = torch.cat(middle.split(size, -2), -1)
    return torch.matmul(middle, rows).to(torch.float32)
