"""The scattering transform of large images by Fourier transforms, averaged down to a grid: on a CPU, without gradients.

A wavelet of the second scale has 26 x 26 taps, which take nearly all of the time for a large image. Here a map is
mirrored outwards by more than a filter's reach, to a length that transforms quickly, and its transform is multiplied by
the filter's; a stride of 2 folds the product, so that only every other sample is transformed back. The low-pass and the
average over the cells of the grid are one matrix for rows and one for columns. The result equals the average of the
convolutions (`terrine.models.wavelets`) up to rounding, in a third to two thirds of their time.

Images are transformed one by one, so an image has the same bits in every batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.fft import next_fast_len
from torch import Tensor, nn

REACH = 14
"""Number of pixels by which a map is mirrored outwards: even, and at least half of the longest filter."""


class Spectra(nn.Module):
    """The transform of images [N, H, W] with sides divisible by 4, as [N, maps, *grid]; see `terrine.models.wavelets`.

    wavelets: complex filters by scale, 0 and 1, each [L, taps, taps], the second centred between samples. windows: the
    low-pass for maps at full and at half size, by its taps along one axis, real [taps], centred between samples.
    """

    def __init__(
        self, shape: tuple[int, int], grid: tuple[int, int], wavelets: Sequence[Tensor], windows: Sequence[Tensor]
    ) -> None:
        super().__init__()
        self.between: Tensor
        self.places_0: Tensor
        self.places_1: Tensor
        self.shape, self.grid = shape, grid
        # Even lengths without prime factors above 5: their transforms are fast.
        lengths = [2 * next_fast_len(-(-side // 2) + REACH, real=True) for side in shape]
        for axis, (side, length) in enumerate(zip(shape, lengths, strict=True)):
            places = np.pad(np.arange(side), (REACH, length - side - REACH), mode="symmetric")
            self.register_buffer(f"places_{axis}", torch.from_numpy(places), persistent=False)
            for scale, window in enumerate(windows):
                matrix = _averages(side >> scale, window, 4 >> scale, grid[axis])
                self.register_buffer(f"averages_{scale}_{axis}", matrix.float(), persistent=False)
        for scale, filters in enumerate(wavelets):
            self.register_buffer(f"filters_{scale}", _transforms(filters, lengths, 1 + scale), persistent=False)
        # A shift by half a sample: the filters of the second scale are centred between two samples.
        angles = [torch.fft.fftfreq(length, dtype=torch.float64) * np.pi for length in lengths]
        between = torch.exp(1j * (angles[0][:, None] + angles[1]))
        self.register_buffer("between", between.to(torch.complex64), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([self._one(image) for image in images])

    def _one(self, image: Tensor) -> Tensor:
        spectrum = self._transform(image)
        fine = self._moduli(spectrum, 0)
        second = (self._moduli(self._transform(each) * self.between, 1) for each in fine)
        orders = [
            self._average(image[None], 0),
            self._average(fine, 0),
            self._average(self._moduli(spectrum * self.between, 1), 1),
            *(self._average(maps, 1) for maps in second),
        ]
        return torch.cat(orders)

    def _transform(self, image: Tensor) -> Tensor:
        return torch.fft.fft2(image.index_select(0, self.places_0).index_select(1, self.places_1))

    def _moduli(self, spectrum: Tensor, scale: int) -> Tensor:
        """Return |x * psi| [L, H / 2^scale, W / 2^scale] of a map with this transform."""
        filters, pairs = getattr(self, f"filters_{scale}"), torch.view_as_real(spectrum).flatten(1)
        if scale == 0:
            product = pairs * filters
        else:
            rows, columns = spectrum.shape[0] // 2, spectrum.shape[1]
            (a, b), (c, d) = ((half[:, :columns], half[:, columns:]) for half in (pairs[:rows], pairs[rows:]))
            (e, f), (g, h) = (
                (half[..., :columns], half[..., columns:]) for half in (filters[:, :rows], filters[:, rows:])
            )
            product = (a * e).addcmul_(b, f).addcmul_(c, g).addcmul_(d, h)
        response = torch.fft.ifft2(torch.view_as_complex(product.unflatten(-1, (-1, 2))))
        first, (height, width) = REACH >> scale, (side >> scale for side in self.shape)
        inner = torch.view_as_real(response)[:, first : first + height, first : first + width]
        real, imaginary = inner.unbind(-1)
        return (real * real).addcmul_(imaginary, imaginary).sqrt_()

    def _average(self, maps: Tensor, scale: int) -> Tensor:
        rows, columns = (getattr(self, f"averages_{scale}_{axis}") for axis in (0, 1))
        return rows.T @ (maps @ columns)


def _transforms(filters: Tensor, lengths: Sequence[int], stride: int) -> Tensor:
    """Return the transforms of filters [L, taps, taps], real since they are Hermitian about their centres.

    Each number is repeated, [L, lengths[0], 2 * lengths[1]], since it multiplies a real and an imaginary part, and
    divided by stride², since folding adds up what should be averaged.
    """
    taps = filters.shape[-1]
    around = torch.zeros(len(filters), *lengths, dtype=filters.dtype)
    around[:, :taps, :taps] = filters
    centre = (taps - 1) / 2
    angles = [2 * np.pi * centre * torch.fft.fftfreq(length, dtype=torch.float64) for length in lengths]
    centred = torch.fft.fft2(around) * torch.exp(1j * (angles[0][:, None] + angles[1]))
    return (centred.real / stride**2).float().repeat_interleave(2, dim=-1)


def _averages(side: int, window: Tensor, stride: int, cells: int) -> Tensor:
    """Return the matrix [side, cells] of a mirrored convolution with `window`, a stride, and averages over cells."""
    pad = len(window) // 2 - stride // 2
    places = torch.from_numpy(np.pad(np.arange(side), pad, mode="symmetric"))
    impulses = torch.eye(side, dtype=window.dtype)[:, None, places]
    convolved = F.conv1d(impulses, window.flip(0)[None, None], stride=stride)
    return F.adaptive_avg_pool1d(convolved, cells)[:, 0]
