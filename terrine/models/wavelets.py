"""A fixed wavelet scattering transform: a backbone without training and without data.

    S(x) = [ x * phi,  |x * psi_a| * phi,  ||x * psi_a| * psi_b| * phi ]

with Morlet wavelets psi at two scales (J = 2) and L orientations, a Gaussian phi, and only the pairs whose second scale
is the coarser one: 1 + 2 L + L^2 maps at a quarter of the image's side (81 maps of 7x7 for L = 8 at 28x28). The
features are log(max(S, 0) + 1e-3), each standardised by a batch normalisation without parameters, then a fixed random
projection. See Bruna and Mallat 2013 for the transform; kymatio for the filters' shapes.

Conventions, chosen so that a mirrored image has the mirrored transform:
- a map that is coarser by s has its samples at the centres of s x s blocks of pixels;
- every convolution sees its own input mirrored at the border (half-sample symmetric), and filters end at 4 standard
  deviations of their longer axis;
- orientations come in the order 0, L/2, then 1 .. L/2-1, then their mirror images L-1 .. L/2+1 (times pi/L).

Three implementations of the transform agree up to rounding. `_Convolutions` convolves, for any size. `_Quadrants` is
for images of at most 32x32, about three times as fast on a CPU: there a convolution is one matrix product, and because
the filters are mirror images of one another, images split by their symmetry about both axes need a quarter of its
arithmetic. `Spectra` is for larger ones on a CPU if no gradient is needed, and is also about three times as fast.
"""

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from terrine.errors import SettingError
from terrine.geometry import Size, sides
from terrine.models.projected import ProjectedNetwork
from terrine.models.spectra import Spectra

SCALES = 2
STRIDE = 2**SCALES
LOG_OFFSET = 1e-3

_SIGMA = 0.8  # deviation of the finest wavelet and of phi, in samples of their grid
_SLANT = 0.5  # the envelope is 1 / _SLANT times as long across the wave as along it
_TRUNCATION = 4.0
_LARGEST_DENSE_SIDE = 32
_LARGEST_GRID = 8
_CACHED_PIXELS = 2**16  # pixels at a time: intermediate maps are hundreds of times larger, and must fit the cache


def orientation_order(orientations: int) -> list[int]:
    """Return the orientations (multiples of pi / `orientations`) in the order of the transform's maps."""
    half = orientations // 2
    return [0, half, *range(1, half), *range(orientations - 1, half, -1)]


def _offsets(radius: int, stride: int) -> Tensor:
    """Distances of a filter's taps from its centre: integers, or half-integers between the samples of a stride."""
    if stride == 1:
        return torch.arange(-radius, radius + 1, dtype=torch.float64)
    return torch.arange(-radius, radius, dtype=torch.float64) + 0.5


def morlet(scale: int, angle: float, stride: int) -> Tensor:
    """Return the Morlet wavelet of `scale` (0, 1, ...) whose wave runs along `angle`, complex [side, side].

    Envelope deviation 0.8 * 2^scale along the wave and twice that across it, frequency 3/4 * pi / 2^scale; the sum is
    exactly zero. An even number of taps, centred between samples, when `stride` is above 1.
    """
    sigma = _SIGMA * 2**scale
    frequency = 0.75 * math.pi / 2**scale
    offsets = _offsets(math.ceil(_TRUNCATION * sigma / _SLANT), stride)
    row, column = torch.meshgrid(offsets, offsets, indexing="ij")
    along = column * math.cos(angle) + row * math.sin(angle)
    across = -column * math.sin(angle) + row * math.cos(angle)
    envelope = torch.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * sigma**2))
    wave = envelope * torch.exp(1j * frequency * along)
    return (wave - envelope * (wave.sum() / envelope.sum())) * (_SLANT / (2 * math.pi * sigma**2))


def gaussian(stride: int, grid: int) -> Tensor:
    """Return the low-pass phi, real [side, side] with sum 1, for maps whose samples are `grid` pixels apart."""
    sigma = _SIGMA * 2 ** (SCALES - 1) / grid
    offsets = _offsets(math.ceil(_TRUNCATION * sigma), stride)
    window = torch.exp(-(offsets**2) / (2 * sigma**2))
    window = window / window.sum()
    return torch.outer(window, window)


def convolve_mirrored(maps: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """Convolve maps [M, H, W] with real `kernels` [K, h, w]: [M, K, H / stride, W / stride], borders mirrored."""
    pad = kernels.shape[-1] // 2 - stride // 2
    rows, columns = (
        torch.from_numpy(np.pad(np.arange(side), pad, mode="symmetric")).to(maps.device) for side in maps.shape[-2:]
    )
    extended = maps.index_select(-2, rows).index_select(-1, columns)
    # conv2d correlates: a convolution takes the taps in reverse.
    return F.conv2d(extended[:, None], kernels.flip(-1, -2)[:, None].to(maps.dtype), stride=stride)


def _wavelets(scale: int, orientations: int, stride: int) -> Tensor:
    return torch.stack([morlet(scale, k * math.pi / orientations, stride) for k in orientation_order(orientations)])


def _keep(module: nn.Module, name: str, constant: Tensor) -> None:
    module.register_buffer(name, constant.float(), persistent=False)


class _Convolutions(nn.Module):
    """The transform of images [N, H, W], as [N, maps, H / 4, W / 4], by convolutions."""

    wavelets_0: Tensor
    wavelets_1: Tensor
    lowpass_1: Tensor
    lowpass_2: Tensor

    def __init__(self, orientations: int) -> None:
        super().__init__()
        self.orientations = orientations
        for scale in range(SCALES):
            wavelets = _wavelets(scale, orientations, stride=2**scale)
            _keep(self, f"wavelets_{scale}", torch.cat([wavelets.real, wavelets.imag]))
        _keep(self, "lowpass_1", gaussian(STRIDE, grid=1)[None])
        _keep(self, "lowpass_2", gaussian(STRIDE // 2, grid=2)[None])

    def forward(self, images: Tensor) -> Tensor:
        count, height, width = images.shape
        few = max(1, _CACHED_PIXELS // (height * width))
        # An exported program takes batches of any size, so it cannot be cut into a fixed number of parts.
        if images.device.type == "cpu" and not torch.compiler.is_exporting() and count > few:
            return torch.cat([self(part) for part in images.split(few)])
        fine = self._modulus(images, self.wavelets_0, 1)
        orders = [
            convolve_mirrored(images, self.lowpass_1, STRIDE),
            convolve_mirrored(fine, self.lowpass_1, STRIDE),
            convolve_mirrored(self._modulus(images, self.wavelets_1, 2), self.lowpass_2, STRIDE // 2),
            convolve_mirrored(self._modulus(fine, self.wavelets_1, 2), self.lowpass_2, STRIDE // 2),
        ]
        return torch.cat([maps.view(count, -1, height // STRIDE, width // STRIDE) for maps in orders], dim=1)

    def _modulus(self, maps: Tensor, kernels: Tensor, stride: int) -> Tensor:
        real, imaginary = convolve_mirrored(maps, kernels, stride).split(self.orientations, dim=1)
        square = real.square() + imaginary.square()
        return (_differentiable_root(square) if square.requires_grad else square.sqrt_()).flatten(0, 1)


class _Quadrants(nn.Module):
    """The transform of images [N, H, W] as matrix products on their four quadrants.

    Let V mirror the rows and H the columns. A map is kept as four quadrants [4, M, n]: itself and its H, V and VH
    images, each cut to the upper left corner. The sums and differences of the four quadrants, a Hadamard transform, are
    the four parts of the map that are even or odd in V and in H. Wavelets of angles a and -a are mirror images: psi_a =
    A + B and psi_-a = A - B, where the real and imaginary parts of A and B are even or odd themselves, so that
    convolution with them keeps the parts apart. Each part thus needs the response only in its upper left corner, a
    product with an [n, n'] matrix, and a second Hadamard transform leads back to the quadrants. With the right signs
    the product gives

        |x * psi_a| in the quadrants where V and H agree,  |x * psi_-a| in the two others,

    so those two are exchanged between a and -a (angles 0 and pi/2 are their own mirror images up to conjugation).
    """

    hadamard: Tensor
    wavelets_0: Tensor
    wavelets_1: Tensor
    lowpass_1: Tensor
    lowpass_2: Tensor

    def __init__(self, size: Size, orientations: int) -> None:
        super().__init__()
        self.shape, self.orientations = sides(size), orientations
        signs = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        _keep(self, "hadamard", torch.kron(signs, signs))
        for name, operator in _operators(self.shape, orientations).items():
            _keep(self, name, operator.clone())

    def forward(self, images: Tensor) -> Tensor:
        count, (height, width) = images.shape[0], self.shape  # `len` would not export
        quadrants = to_quadrants(images)
        parts = self._transform(quadrants)
        fine = self._modulus(parts, self.wavelets_0)
        orders = [
            torch.bmm(quadrants, self.lowpass_1).sum(0),
            torch.bmm(fine, self.lowpass_1).sum(0),
            torch.bmm(self._modulus(parts, self.wavelets_1), self.lowpass_2).sum(0),
            torch.bmm(self._modulus(self._transform(fine), self.wavelets_1), self.lowpass_2).sum(0),
        ]
        return torch.cat([maps.view(count, -1, height // STRIDE, width // STRIDE) for maps in orders], dim=1)

    def _transform(self, quadrants: Tensor) -> Tensor:
        return (self.hadamard @ quadrants.view(4, -1)).view_as(quadrants)

    def _modulus(self, parts: Tensor, operator: Tensor) -> Tensor:
        """Return the quadrants [4, M * L, n'] of the moduli of the wavelet transform of maps with parts [4, M, n]."""
        count = parts.shape[1]
        response = self._transform(torch.bmm(parts, operator)).view(4, count, 2, self.orientations, -1)
        real, imaginary = response.unbind(2)
        square = (real * real).addcmul_(imaginary, imaginary)
        single, plus, minus = slice(0, 2), slice(2, self.orientations // 2 + 1), slice(self.orientations // 2 + 1, None)
        agree, differ = slice(0, 4, 3), slice(1, 3)
        if square.requires_grad:
            exchanged = torch.cat([square[differ, :, part] for part in (single, minus, plus)], dim=2)
            square = torch.cat([square[:1], exchanged, square[3:]])
            return _differentiable_root(square).view(4, count * self.orientations, -1)
        moduli = torch.empty_like(square)
        torch.sqrt(square[:, :, single], out=moduli[:, :, single])
        torch.sqrt(square[agree, :, 2:], out=moduli[agree, :, 2:])
        torch.sqrt(square[differ, :, plus], out=moduli[differ, :, minus])
        torch.sqrt(square[differ, :, minus], out=moduli[differ, :, plus])
        return moduli.view(4, count * self.orientations, -1)


@lru_cache(maxsize=2)
def _operators(shape: tuple[int, int], orientations: int) -> dict[str, Tensor]:
    """Return the operators of `_Quadrants`. A run loads its backbone a dozen times, and they take half a second."""
    halved = (shape[0] // 2, shape[1] // 2)
    operators = {}
    for scale in range(SCALES):
        wavelets = _wavelets(scale, orientations, stride=2**scale)
        kernels = torch.cat([wavelets.real, wavelets.imag])
        operators[f"wavelets_{scale}"] = _parts_operator(shape, kernels, 2**scale)
    operators["lowpass_1"] = _quadrants_operator(shape, gaussian(STRIDE, grid=1)[None], STRIDE)
    operators["lowpass_2"] = _quadrants_operator(halved, gaussian(STRIDE // 2, grid=2)[None], STRIDE // 2)
    return {name: operator.float() for name, operator in operators.items()}


def _differentiable_root(square: Tensor) -> Tensor:
    """Return the square root, whose gradient at zero is taken to be zero: that of a modulus would be NaN."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def to_quadrants(maps: Tensor) -> Tensor:
    """Cut maps [M, H, W] into quadrants [4, M, H / 2 * W / 2]: the upper left of a map and its H, V and VH images."""
    height, width = (side // 2 for side in maps.shape[-2:])
    images = (maps, maps.flip(-1), maps.flip(-2), maps.flip(-1, -2))
    return torch.stack([image[:, :height, :width].flatten(1) for image in images])


def _quadrants_operator(shape: tuple[int, int], kernels: Tensor, stride: int) -> Tensor:
    """Return the convolution with one kernel as matrices [4, n, n'] from a map's quadrants to the whole result."""
    area = math.prod(shape)
    impulses = torch.eye(area).view(-1, *shape)
    responses = convolve_mirrored(impulses, kernels, stride).flatten(1)  # [pixels, n']
    pixels = to_quadrants(torch.arange(area).view(1, *shape)).flatten(1)  # [4, n]
    return responses[pixels]


def _parts_operator(shape: tuple[int, int], kernels: Tensor, stride: int) -> Tensor:
    """Return convolutions with `kernels` [K, h, w] as matrices [4, n, K * n'], from each part to its upper left corner.

    The matrices include the factor 1/4 that two Hadamard transforms require.
    """
    height, width = (side // 2 for side in shape)
    impulses = torch.zeros(height * width, *shape)
    impulses[:, :height, :width] = torch.eye(height * width).view(-1, height, width) / 4
    mirrored = [impulses, impulses.flip(-1), impulses.flip(-2), impulses.flip(-1, -2)]
    responses = [
        convolve_mirrored(image, kernels, stride)[:, :, : height // stride, : width // stride] for image in mirrored
    ]
    a, h, v, vh = (response.flatten(1) for response in responses)
    return torch.stack([a + h + v + vh, a - h + v - vh, a + h - v - vh, a - h - v + vh])


class ScatteringNetwork(ProjectedNetwork):
    """Scattering features of float images.

    Sides that are not divisible by 4 are mirrored outwards; grids above 8x8 are averaged down to 8x8, so that the
    number of features does not grow with the image.
    """

    def __init__(self, channels: int, size: Size, seed: int, orientations: int, projection: int | None) -> None:
        if orientations < 2 or orientations % 2:
            raise SettingError(f"scattering: orientations is {orientations}, and must be an even number from 2 on.")
        shape = sides(size)
        padded = (math.ceil(shape[0] / STRIDE) * STRIDE, math.ceil(shape[1] / STRIDE) * STRIDE)
        grid = (min(padded[0] // STRIDE, _LARGEST_GRID), min(padded[1] // STRIDE, _LARGEST_GRID))
        super().__init__(
            "scattering", channels * (1 + SCALES * orientations + orientations**2) * math.prod(grid), projection, seed
        )
        self.grid = grid
        self.margins = [
            ((new - old) // 2, new - old - (new - old) // 2) for old, new in zip(shape, padded, strict=True)
        ]
        dense = max(padded) <= _LARGEST_DENSE_SIDE
        self.transform = _Quadrants(padded, orientations) if dense else _Convolutions(orientations)
        self.spectra = None
        if not dense:
            wavelets = [_wavelets(scale, orientations, stride=2**scale) for scale in range(SCALES)]
            windows = [gaussian(STRIDE, grid=1).sum(0), gaussian(STRIDE // 2, grid=2).sum(0)]
            self.spectra = Spectra(padded, grid, wavelets, windows)

    def described(self, images: Tensor) -> Tensor:
        """See `ProjectedNetwork.described`: logarithms. A prompt's frame may be darker than black."""
        return self.coefficients(images).flatten(1).clamp_min_(0).add_(LOG_OFFSET).log_()

    def coefficients(self, images: Tensor) -> Tensor:
        """Return the scattering coefficients [B, C * maps, *grid] of float images [B, C, *size]."""
        for axis, margin in zip((-2, -1), self.margins, strict=True):
            if any(margin):
                index = torch.from_numpy(np.pad(np.arange(images.shape[axis]), margin, mode="symmetric"))
                images = images.index_select(axis, index.to(images.device))
        count, channels = images.shape[:2]
        planes = images.reshape(-1, *images.shape[-2:])
        moving = planes.requires_grad and torch.is_grad_enabled()
        if self.spectra is None or moving or planes.device.type != "cpu" or torch.compiler.is_exporting():
            maps = self.transform(planes)
            if maps.shape[-2:] != self.grid:
                maps = F.adaptive_avg_pool2d(maps, self.grid)
        else:
            maps = self.spectra(planes)
        return maps.view(count, channels * maps.shape[1], *self.grid)
