"""Kinds of images, drawn at random: what a student that is asked about one image at a time is made ready for.

A *domain* here is a set of images that share what current statistics take away: how bright and how full of contrast
they are, whether they are shades, shapes or lines, and whether an object stands before an empty background. Each domain
is public images under one such change, drawn anew ("domain randomisation"); nothing private is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PROGRAMS = ("dead_leaves", "stylegan", "fractal", "shaders", "gaussian")
"""Image programs that domains are made of, beside the queries."""


def draw_domain(pools: Sequence[np.ndarray], number: int, count: int, generator: np.random.Generator) -> Tensor:
    """Return `count` images of a random domain, float32 [count, C, H, W] in [0, 1].

    pools: uint8 images [N, C, H, W]; the domain takes its own from one of them, in turns by its `number`.
    """
    pool = pools[number % len(pools)]
    images = torch.from_numpy(pool[generator.choice(len(pool), count, replace=len(pool) < count)]).float() / 255
    if generator.random() < 0.25:
        return images  # the public images as they are are a domain, too
    images = _windowed(_toned(images, generator), generator)
    if generator.random() < 0.3:
        images = 1 - images
    if generator.random() < 0.4:
        smooth = torch.nn.functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False)
        images = images + generator.uniform(0, 1) * (smooth - images)
    low, high = np.sort(generator.uniform(0, 1, 2))
    if generator.random() < 0.5 and high - low > 0.2:
        images = low + (high - low) * images
    return images.clamp(0, 1).float()


def _toned(images: Tensor, generator: np.random.Generator) -> Tensor:
    """Turn shades into shapes (bright above a level), into lines (bright near a level), or into other shades."""
    kind = generator.random()
    if kind < 0.4:
        level = _quantile(images, generator.uniform(0.2, 0.8))
        return torch.sigmoid((images - level) / generator.uniform(0.01, 0.2))
    if kind < 0.7:
        level = _quantile(images, generator.uniform(0.3, 0.7))
        return torch.exp(-((images - level) / generator.uniform(0.02, 0.15)).square())
    return images.pow(float(np.exp(generator.normal(0, 0.6))))


def _quantile(images: Tensor, share: float) -> Tensor:
    return torch.quantile(images.flatten(1), share, dim=1).view(-1, 1, 1, 1)


def _windowed(images: Tensor, generator: np.random.Generator) -> Tensor:
    """Put, mostly, each image into a window of about the same form, before one background."""
    if generator.random() >= 0.6:
        return images
    count, height, width = len(images), *images.shape[-2:]
    jitter = generator.uniform(0, 0.3)
    sides = generator.uniform(0.4, 1.1, 2) * np.exp(generator.normal(0, jitter, (count, 2)))
    centres = generator.normal(0, jitter / 2, (count, 2))
    power, softness = float(generator.choice([2, 4, 8])), generator.uniform(0.05, 0.4)
    background = generator.uniform(0, 1) if generator.random() < 0.5 else float(generator.random() < 0.3)
    distances = [
        ((torch.linspace(-1, 1, length) - torch.from_numpy(centres[:, axis, None])) / sides[:, axis, None]).abs()
        ** power
        for axis, length in enumerate((height, width))
    ]
    radius = (distances[0][:, :, None] + distances[1][:, None, :]) ** (1 / power)
    window = torch.sigmoid((1 - radius) / softness)[:, None].float()
    return window * images + (1 - window) * background
