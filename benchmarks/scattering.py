"""Speed of the scattering transform on one core, against a plain implementation in the same run.

    python benchmarks/scattering.py [--size 28] [--images 512] [--repeats 9]

The plain reference filters one image at a time in Fourier space with NumPy, on images mirrored far enough that nothing
wraps around. `transform` is the transform alone, `features` the whole backbone: transform, logarithm, standardisation,
projection. CPU seconds of one thread are counted, so that other work on the machine disturbs less; the median and the
best of the repeats are shown.
"""

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from cells import common_options, times

from terrine.models.architecture import build_backbone
from terrine.models.wavelets import ScatteringNetwork, gaussian, morlet, orientation_order


class PlainScattering:
    """One image at a time: every filter in Fourier space at full resolution, then every stride."""

    def __init__(self, size: int, orientations: int = 8) -> None:
        self.size = size
        angles = [k * math.pi / orientations for k in orientation_order(orientations)]
        self.fine = [self._prepare(morlet(0, angle, 1).numpy(), size) for angle in angles]
        self.coarse = [self._prepare(morlet(1, angle, 2).numpy(), size) for angle in angles]
        self.wide = self._prepare(gaussian(4, 1).numpy(), size)
        self.narrow = self._prepare(gaussian(2, 2).numpy(), size // 2)

    @staticmethod
    def _prepare(kernel: np.ndarray, side: int) -> tuple[np.ndarray, int]:
        taps = kernel.shape[0]
        length = side + 2 * (taps // 2) + taps - 1
        return np.fft.fft2(kernel, (length, length)), taps

    @staticmethod
    def _filter(pixels: np.ndarray, prepared: tuple[np.ndarray, int], stride: int) -> np.ndarray:
        spectrum, taps = prepared
        mirrored = np.pad(pixels, taps // 2, mode="symmetric")
        result = np.fft.ifft2(np.fft.fft2(mirrored, spectrum.shape) * spectrum)
        start = taps - 1 if taps % 2 else taps + stride // 2 - 1
        places = start + stride * np.arange(len(pixels) // stride)
        return result[np.ix_(places, places)]

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return the maps [1 + 2 L + L^2, side / 4, side / 4] of one image [side, side]."""
        fine = [abs(self._filter(image, wavelet, 1)) for wavelet in self.fine]
        coarse = [abs(self._filter(pixels, wavelet, 2)) for pixels in [image, *fine] for wavelet in self.coarse]
        maps = [self._filter(pixels, self.wide, 4) for pixels in [image, *fine]]
        return np.stack(maps + [self._filter(pixels, self.narrow, 2) for pixels in coarse]).real


def seconds(compute: Callable[[], object], repeats: int) -> np.ndarray:
    compute()
    return times(compute, repeats, time.thread_time)


def main() -> None:
    parser = common_options(__doc__, repeats=9)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--images", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size, count = arguments.size, arguments.images
    images = torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(0))

    backbone = build_backbone("scattering", channels=1, size=size, seed=0)
    network = backbone.network
    assert isinstance(network, ScatteringNetwork)
    plain = PlainScattering(size)
    expected = np.stack([plain(image[0].numpy().astype(np.float64)) for image in images[:4]])
    difference = np.abs(network.transform(images[:4, 0]).numpy() - expected).max()

    reference = seconds(lambda: [plain(image[0].numpy()) for image in images[:8]], 5) / 8
    transform = seconds(lambda: [network.transform(part[:, 0]) for part in images.split(64)], arguments.repeats) / count
    features = seconds(lambda: backbone.features(images, "current"), arguments.repeats) / count

    print(f"scattering at {size}x{size}, {count} images, one thread; largest difference {difference:.1e}\n")
    print(f"{'':24}{'images/s (median)':>20}{'images/s (best)':>18}{'× plain':>10}")
    for name, found in (("plain, image by image", reference), ("transform", transform), ("features", features)):
        median = np.median(found)
        print(f"{name:24}{1 / median:>20,.0f}{1 / found.min():>18,.0f}{np.median(reference) / median:>10.1f}")


if __name__ == "__main__":
    main()
