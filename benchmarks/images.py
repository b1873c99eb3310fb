"""Images per second of every image program, against plain per-image references in the same run.

    python benchmarks/images.py                       # one core, 28×28 grey
    python benchmarks/images.py --device cuda         # an accelerator
    python benchmarks/images.py --kinds dead_leaves,stylegan --size 64 --channels 3

A reference makes one image at a time, the obvious way: the painter that lays leaf on leaf until no pixel is bare, the
walk that takes one step after another, a network with a convolution per layer. Without a reference, the program draws
image by image. Figures are medians over repeats. On the CPU the clock is the process's own processor time, summed over
its threads, so that a busy machine does not change the comparison.
"""

import argparse
import math
import platform
import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

from terrine.synthetic.program import draw, programs

TARGETS = {"dead_leaves": 1_500, "stylegan": 2_000, "fractal": 1_500, "shaders": 3_000}
ACCELERATOR_TARGET = 100_000


def paint_dead_leaves(generator: np.random.Generator, size: int, channels: int) -> np.ndarray:
    """The published painter: leaf after leaf over the whole picture, looking for bare pixels after each."""
    values = np.linspace(0.03, 1.0, 200)
    law = np.cumsum(values**-3.0 - 1.0)
    law /= law[-1]
    rows, columns = np.mgrid[:size, :size] + 0.5
    image = np.zeros((size, size, channels), dtype=np.uint8)
    bare = np.ones((size, size), dtype=bool)
    for _ in range(5_000):
        shape = generator.integers(6)
        radius = values[np.searchsorted(law, generator.random())] * size
        x, y = columns - generator.random() * size, rows - generator.random() * size
        if shape == 0:
            inside = x**2 + y**2 <= radius**2
        else:
            tilt = generator.random() * 2 * np.pi
            if shape == 3:
                angles = np.array([tilt / 4, np.pi - tilt / 4, np.pi + tilt / 4, 2 * np.pi - tilt / 4])
            elif shape >= 4:
                angles = np.sort(generator.random(3 if shape == 4 else 4) * 2 * np.pi)
            else:
                angles = np.pi / 4 * np.array([1, 3, 5, 7]) + (tilt if shape == 2 else 0.0)
            corners = radius * np.stack([np.cos(angles), np.sin(angles)], 1)
            inside = np.ones((size, size), dtype=bool)
            for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
                inside &= (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= 0
        image[inside] = generator.integers(0, 256, channels)
        bare &= ~inside
        if not bare.any():
            break
    return image


def run_stylegan(generator: np.random.Generator, size: int, channels: int) -> np.ndarray:
    """A network of 32 channels with a modulated, demodulated 3×3 convolution per layer."""
    sides = [size]
    while sides[-1] > 5:
        sides.append(-(-sides[-1] // 2))
    sides.reverse()
    width = 32
    x = torch.from_numpy(generator.standard_normal((1, width, sides[0], sides[0]), dtype=np.float32))
    picture = torch.zeros(1, channels, sides[0], sides[0])
    for number, side in enumerate(sides):
        noise = torch.from_numpy(generator.standard_normal((1, 1, side, side), dtype=np.float32))
        if number:
            x = functional.interpolate(x, (side, side), mode="bilinear")
            picture = functional.interpolate(picture, (side, side), mode="bilinear")
        for _ in range(2 if number else 1):
            weight = torch.from_numpy(generator.standard_normal((width, width, 3, 3), dtype=np.float32))
            style = torch.from_numpy(generator.standard_normal((1, width, 1, 1), dtype=np.float32)) + 1
            weight = weight * style
            weight = weight / weight.square().sum((1, 2, 3), keepdim=True).sqrt()
            bias = torch.from_numpy(generator.random(width, dtype=np.float32)) * 0.4 - 0.2
            x = (
                functional.relu(functional.conv2d(x, weight, bias, padding=1) + noise * generator.random() * 0.3)
                * 1.4142
            )
        colours = torch.from_numpy(generator.standard_normal((channels, width, 1, 1), dtype=np.float32))
        picture = picture + functional.conv2d(x, colours)
    level = (picture - picture.mean((2, 3), keepdim=True)) / picture.std((2, 3), keepdim=True)
    return (level * 55 + 120).clamp(0, 255).to(torch.uint8).numpy()


def walk_fractal(generator: np.random.Generator, size: int, channels: int) -> np.ndarray:
    """One walk, one step at a time, on the canvas that the program uses; systems are not searched for."""
    canvas = size * max(2, -(-112 // size))
    maps = [[generator.uniform(-0.8, 0.8) for _ in range(6)] for _ in range(4)]
    weights = [abs(a * d - b * c) for a, b, c, d, _, _ in maps]
    x = y = 0.0
    points = []
    for a, b, c, d, e, f in random.choices(maps, weights, k=int(0.38 * canvas * canvas)):
        x, y = a * x + b * y + e, c * x + d * y + f
        points.append((x, y))
    place = np.array(points)
    place = (place - place.min(0)) / np.maximum(place.max(0) - place.min(0), 1e-6) * (canvas - 7) + 3
    image = np.zeros((canvas, canvas), dtype=np.float32)
    for column, row in place.astype(int):
        image[row - 1 : row + 2, column - 1 : column + 2] = 1
    pooled = image.reshape(size, canvas // size, size, -1).mean((1, 3))
    return np.stack([pooled * 200] * channels).astype(np.uint8)


def transform_spectrum(generator: np.random.Generator, size: int, channels: int) -> np.ndarray:
    """One inverse transform per channel."""
    frequency = np.abs(np.fft.fftfreq(size) * size)
    a, b = generator.uniform(0.5, 3.5, 2)
    total = frequency[None] ** a + frequency[:, None] ** b
    amplitude = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
    planes = []
    for _ in range(channels):
        noise = generator.standard_normal((2, size, size))
        plane = np.fft.ifft2((noise[0] + 1j * noise[1]) * amplitude).real
        planes.append(np.clip((plane - plane.mean()) / plane.std() * 50 + 128, 0, 255).astype(np.uint8))
    return np.stack(planes)


def draw_gaussian(generator: np.random.Generator, size: int, channels: int) -> np.ndarray:
    """NumPy's normals, rounded and clipped."""
    noise = generator.standard_normal((channels, size, size)) * 42.5 + 127.5
    return np.clip(np.round(noise), 0, 255).astype(np.uint8)


REFERENCES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "dead_leaves": paint_dead_leaves,
    "stylegan": run_stylegan,
    "fractal": walk_fractal,
    "spectrum": transform_spectrum,
    "gaussian": draw_gaussian,
}


def reference_rate(kind: str, size: int, channels: int, seconds: float) -> float:
    """Return the images per second of the plain reference, or of the program image by image if it has no reference."""
    generator = np.random.default_rng(0)
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds or count < 3:
        if kind in REFERENCES:
            REFERENCES[kind](generator, size, channels)
        else:
            draw(kind, seed=0, first=count, count=1, size=size, channels=channels)
        count += 1
    return count / (time.process_time() - start)


def rate(kind: str, device: str, size: int, channels: int, count: int, repeats: int) -> float:
    """Return the program's images per second, the median over repeats; tables and kernels are warm."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    rates = []
    for repeat in range(repeats + 1):
        start = clock()
        draw(kind, seed=0, first=repeat * count, count=count, size=size, channels=channels, device=device)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        rates.append(count / (clock() - start))
    return statistics.median(rates[1:])


def main() -> None:
    """Measure and print one line per program."""
    parser = argparse.ArgumentParser(description="Images per second of every image program.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", default=",".join(programs()))
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--count", type=int, help="images per repeat; default 2,048, or 65,536 on an accelerator")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reference-seconds", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    accelerated = options.device != "cpu"
    count = options.count or (65_536 if accelerated else 2_048)
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor()
    print(f"{options.size}×{options.size}×{options.channels}, {options.device} ({name}), {options.threads} thread(s)")
    print(f"{'program':<14}{'images/s':>12}{'reference/s':>14}{'ratio':>9}{'target':>10}")
    for kind in options.kinds.split(","):
        ours = rate(kind, options.device, options.size, options.channels, count, options.repeats)
        plain = reference_rate(kind, options.size, options.channels, options.reference_seconds)
        target = ACCELERATOR_TARGET if accelerated else TARGETS.get(kind, math.nan)
        wanted = "" if math.isnan(target) else f"{target:,}"
        print(f"{kind:<14}{ours:>12,.0f}{plain:>14,.1f}{ours / plain:>9,.0f}{wanted:>10}", flush=True)


if __name__ == "__main__":
    main()
