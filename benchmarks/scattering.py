"""Speed of the scattering transform on one core, against a plain implementation in the same run.

    python benchmarks/scattering.py [--size 28] [--images 512] [--repeats 9]

The plain reference filters one image at a time in Fourier space with NumPy, on images mirrored far enough that nothing
wraps around. The first line is the transform alone, the second the whole backbone: transform, logarithm, standardisation
and projection. CPU seconds of one thread are counted, so that other work on the machine disturbs less; the median and
the best of the repeats are shown.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from terrine.models.registry import build_backbone
from terrine.models.scattering import Scattering, gaussian, morlet, orientation_order


def plain_scattering(image: np.ndarray, orientations: int = 8) -> np.ndarray:
    """Return the maps [1 + 2 L + L^2, side / 4, side / 4] of one image: every filter by the FFT, then every stride."""

    def filtered(pixels: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
        reach = kernel.shape[0] // 2
        mirrored = np.pad(pixels, reach, mode="symmetric")
        shape = [side + kernel.shape[0] - 1 for side in mirrored.shape]
        spectrum = np.fft.fft2(mirrored, shape) * np.fft.fft2(kernel, shape)
        start = 2 * reach - (stride // 2 if stride > 1 else 0)
        start = start if kernel.shape[0] % 2 else start + stride - 1
        rows = start + stride * np.arange(pixels.shape[0] // stride)
        return np.fft.ifft2(spectrum)[np.ix_(rows, rows)]

    angles = [k * math.pi / orientations for k in orientation_order(orientations)]
    fine = [abs(filtered(image, morlet(0, angle, 1).numpy(), 1)) for angle in angles]
    wavelets = [morlet(1, angle, 2).numpy() for angle in angles]
    coarse = [abs(filtered(pixels, wavelet, 2)) for pixels in [image, *fine] for wavelet in wavelets]
    wide, narrow = gaussian(4, 1).numpy(), gaussian(2, 2).numpy()
    maps = [filtered(pixels, wide, 4) for pixels in [image, *fine]] + [filtered(each, narrow, 2) for each in coarse]
    return np.stack(maps).real


def seconds(compute: Callable[[], object], repeats: int) -> np.ndarray:
    compute()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        compute()
        times.append(time.thread_time() - start)
    return np.array(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size, count = arguments.size, arguments.images
    images = torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(0))

    backbone = build_backbone("scattering", channels=1, size=size, seed=0)
    network = backbone.network
    assert isinstance(network, Scattering)
    plain = np.stack([plain_scattering(image[0].numpy().astype(np.float64)) for image in images[:4]])
    difference = np.abs(network.transform(images[:4, 0]).numpy() - plain).max()

    reference = seconds(lambda: [plain_scattering(image[0].numpy()) for image in images[:4]], 3) / 4
    transform = seconds(lambda: [network.transform(part[:, 0]) for part in images.split(64)], arguments.repeats) / count
    features = seconds(lambda: backbone.features(images, "current"), arguments.repeats) / count

    print(f"scattering at {size}x{size}, {count} images, one thread; largest difference {difference:.1e}\n")
    print(f"{'':24}{'images/s (median)':>20}{'images/s (best)':>18}{'× plain':>10}")
    for name, times in (("plain, image by image", reference), ("transform", transform), ("features", features)):
        median = np.median(times)
        print(f"{name:24}{1 / median:>20,.0f}{1 / times.min():>18,.0f}{np.median(reference) / median:>10.1f}")


if __name__ == "__main__":
    main()
