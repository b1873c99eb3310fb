"""Speed of SimCLR pretraining end to end, against a plain implementation in the same run.

    python benchmarks/pretraining.py [--device cpu|cuda] [--backbone resnet18] [--size 28] [--channels 1]
                                     [--images 2048] [--batch 256] [--seconds 10]

Counted are images (each seen as two views) per second of wall-clock time. The plain reference makes views one image at
a time with torchvision's own functions and trains in float32 with an ordinary optimiser; it is measured on a few steps.
Needs torch, torchvision and NumPy alone, so it runs on a bare GPU machine with PYTHONPATH=. and nothing installed.
"""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from terrine import vision
from terrine.models.registry import build_backbone
from terrine.pretraining import simclr
from terrine.pretraining.augment import Views, ViewSettings, apply_views, draw_views
from terrine.pretraining.contrastive import nt_xent
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain


def plain_view(image: Tensor, views: Views, i: int) -> Tensor:
    """One view of one uint8 image by torchvision's functions."""
    functional = vision.torchvision.transforms.functional
    size = image.shape[-1]
    box = [int(part[i]) for part in (views.top, views.left, views.height, views.width)]
    image = functional.resized_crop(image / 255, *box, [size, size])
    if views.flip[i]:
        image = functional.hflip(image)
    operations = (
        (functional.adjust_brightness, views.brightness),
        (functional.adjust_contrast, views.contrast),
        (functional.adjust_saturation, views.saturation),
        (functional.adjust_hue, views.hue),
    )
    for which in views.colour_order:
        operation, strength = operations[which]
        image = operation(image, float(strength[i]))
    if views.grey[i] and len(image) == 3:
        image = functional.rgb_to_grayscale(image, 3)
    taps = 2 * views.blur_radius + 1
    return functional.gaussian_blur(image, [taps, taps], [float(views.sigma[i])] * 2)


def rate(step: Callable[[int], int], seconds: float, device: torch.device) -> float:
    """Return images per second of `step` (number -> images), after one step to warm up."""
    step(0)
    _wait(device)
    start, done = time.perf_counter(), 0
    for number in itertools.count(1):
        done += step(number)
        if number % 8 == 0 or device.type == "cpu":
            _wait(device)
            if time.perf_counter() - start > seconds:
                break
    _wait(device)
    return done / (time.perf_counter() - start)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def plain_rates(arguments: argparse.Namespace, images: np.ndarray, device: torch.device) -> tuple[float, float]:
    """Return images/s of plain views alone, and of plain SimCLR."""
    backbone = build_backbone(arguments.backbone, channels=arguments.channels, size=arguments.size, seed=0)
    head = nn.Sequential(nn.Linear(backbone.feature_dim, 512), nn.ReLU(), nn.Linear(512, 128))
    learner = nn.Sequential(backbone.network, head).to(device).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-4)

    def views_of(number: int, count: int) -> list[Tensor]:
        pair = []
        for which in range(2):
            views = draw_views(count, arguments.size, ViewSettings(), seed=2 * number + which, device="cpu")
            pair.append(torch.stack([plain_view(torch.from_numpy(images[i]), views, i) for i in range(count)]))
        return pair

    def make_views(number: int) -> int:
        return len(views_of(number, 64)[0])

    def train(number: int) -> int:
        first, second = views_of(number, arguments.batch)
        first, second = learner(torch.cat([first, second]).to(device)).split(arguments.batch)
        optimizer.zero_grad()
        nt_xent(first, second, 0.1).backward()
        optimizer.step()
        return arguments.batch

    return rate(make_views, arguments.seconds / 4, device), rate(train, arguments.seconds / 2, device)


def batched_views_rate(arguments: argparse.Namespace, images: np.ndarray, device: torch.device) -> float:
    """Return images/s of batched views alone, on the device."""
    batch = torch.from_numpy(images[: arguments.batch]).to(device)

    def make_views(number: int) -> int:
        for which in range(2):
            seed = 2 * number + which
            apply_views(batch, draw_views(len(batch), arguments.size, ViewSettings(), seed=seed, device=device))
        return len(batch)

    return rate(make_views, arguments.seconds / 4, device)


def simclr_rate(arguments: argparse.Namespace, images: np.ndarray, device: torch.device) -> float:
    """Return images/s of `pretrain`, from its progress reports: the time from the first report to the last."""
    backbone = build_backbone(arguments.backbone, channels=arguments.channels, size=arguments.size, seed=0)
    marks: list[tuple[float, float]] = []

    def mark(fraction: float, text: str) -> None:
        marks.append((time.perf_counter(), fraction))
        if marks[-1][0] - marks[0][0] > arguments.seconds:
            raise TimeoutError

    settings = SimCLRSettings(epochs=1_000_000, batch=arguments.batch)
    with contextlib.suppress(TimeoutError):
        pretrain(backbone, images, settings, seed=0, device=device, progress=mark)
    (start, first), (end, last) = marks[0], marks[-1]
    total = settings.epochs * (len(images) // settings.batch) * settings.batch
    return (last - first) * total / (end - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    simclr._REPORT_SECONDS = 0.2 if device.type == "cuda" else 0.0
    shape = (arguments.images, arguments.channels, arguments.size, arguments.size)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    plain_views, plain_training = plain_rates(arguments, images, device)
    views = batched_views_rate(arguments, images, device)
    training = simclr_rate(arguments, images, device)

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    side = f"{arguments.size}x{arguments.size}x{arguments.channels}"
    print(f"SimCLR {arguments.backbone}, {side}, batches of {arguments.batch}, on {name}; images/s\n")
    print(f"{'':28}{'plain':>12}{'terrine':>12}{'ratio':>10}")
    for label, plain, ours in (("two views of an image", plain_views, views), ("end to end", plain_training, training)):
        print(f"{label:28}{plain:>12,.0f}{ours:>12,.0f}{ours / plain:>10.1f}")


if __name__ == "__main__":
    main()
