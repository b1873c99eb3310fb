"""Image programs: contract, registry, and drawing.

A program is a function of (seed, index, size, channels), where `index` is an int64 tensor of image numbers on some
device. The function returns uint8 [images, channels, size, size] on that device. The contract:

- image i's bytes depend only on (seed, i, size, channels), not on other images, the device or the machine (see
  `terrine.determinism.portable_math`);
- randomness comes from `terrine.determinism.philox` with stream names that start with the program's name;
- memory is bounded for any number of images: `chunks` divides `index`.

A new program is one file in `terrine.synthetic.programs`.

    >>> draw("dead_leaves", seed=0, first=1000, count=8, size=28, channels=1).shape
    torch.Size([8, 1, 28, 28])

`mixup` mixes shader images, as published; `mixup:dead_leaves+stylegan` mixes those two.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from terrine.determinism.portable_math import tree_sum
from terrine.errors import SettingError, did_you_mean
from terrine.geometry import Size, in_json, sides
from terrine.settings import import_modules, load_plugins

VERSION = 1
"""Version, increased when a program's bytes for a (seed, index) change: stored images are then drawn again."""

SMALLEST_SIZE, LARGEST_SIZE = 8, 320


class Program(Protocol):
    """An image program; see the module docstring for the contract."""

    def __call__(self, seed: int, index: Tensor, size: int, channels: int) -> Tensor: ...


P = TypeVar("P", bound=Program)

_PROGRAMS: dict[str, Program] = {}


def image_program(name: str) -> Callable[[P], P]:
    """Register a program under a name, in Terrine, a plugin or a notebook.

    The decorated function is called with `seed` (int), `index` (int64 tensor [images]), `size` (int, pixels) and
    `channels` (1 or 3). It returns a torch tensor, uint8 [images, channels, size, size], on the device of `index`.

    Raises:
        SettingError: one of Terrine's programs has this name.
    """

    def register(program: P) -> P:
        if name in _PROGRAMS and _PROGRAMS[name].__module__.startswith("terrine."):
            raise SettingError(f"image program '{name}' is part of Terrine. Choose another name.")
        _PROGRAMS[name] = program
        return program

    return register


def programs() -> dict[str, Program]:
    """Return all programs by their names."""
    import_modules("terrine.synthetic.programs")
    load_plugins()
    return dict(sorted(_PROGRAMS.items()))


def chunks(index: Tensor, size: int, *, cpu: int, gpu: int) -> Iterator[Tensor]:
    """Divide `index` into parts of at most `cpu` (or, on an accelerator, `gpu`) pixels, and at least one image.

    The division does not affect any image.
    """
    budget = cpu if index.device.type == "cpu" else gpu
    yield from index.split(max(1, budget // (size * size)))


def to_bytes(picture: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Shift and scale each channel of each image, and return uint8 of the same shape.

    Args:
        picture: float32 [images, channels, height, width].
        mean: Mean as a fraction of white, which broadcasts to [images, channels, 1].
        deviation: Standard deviation of each channel of each image; clipping to 0..255 may reduce it. Flat channels
            stay flat.
    """
    share = 1 / (picture.shape[2] * picture.shape[3])
    flat = picture.flatten(2)
    centred = flat - tree_sum(flat, 2) * share
    spread = (tree_sum(centred * centred, 2) * share).sqrt_()
    level = centred * (deviation / spread.clamp_(min=1e-3)) + mean
    return (level * 255.0).round_().clamp_(0, 255).to(torch.uint8).view(picture.shape)


def program(kind: str) -> Program:
    """Return the image program of a name, or of mixup:NAME+NAME+... Raise SettingError for an unknown name."""
    named = programs()
    if kind in named:
        return named[kind]
    head, colon, sources = kind.partition(":")
    if head == "mixup" and colon and sources and not any(name.startswith("mixup") for name in sources.split("+")):
        # The registered mixup is a dataclass with its sources as field.
        return cast(Program, replace(cast(Any, named["mixup"]), sources=tuple(map(program, sources.split("+")))))
    known, near = ", ".join(named), did_you_mean(kind, named)
    raise SettingError(
        f"image program '{kind}' does not exist.{near} Expected one of: {known}, mixup:A+B of any others."
    )


def draw(
    kind: str, *, seed: int, first: int, count: int, size: Size, channels: int, device: str | torch.device = "cpu"
) -> Tensor:
    """Draw images `first` .. `first + count - 1` of a program: uint8 [count, channels, *size] on `device`.

    An image depends only on program, seed, number, size and channels, on every CPU. Other devices give equal bytes for
    `gaussian`, `dead_leaves` and `fractal`; for other programs CUDA changed up to 0.05 % of the bytes by one. On MPS,
    which lacks float64, the CPU draws. The working memory is bounded for any number of images.

    Args:
        kind: Name of the program.
        seed: Seed.
        first: Number of the first image.
        count: Number of images.
        size: Side in pixels, 8..320; or height and width, cropped from the centre of a square image of the longer side.
        channels: 1 (grey) or 3 (colour).
        device: Device of the result.

    Raises:
        SettingError: an unknown program, or another argument out of range.
    """
    chosen = program(kind)
    height, width = sides(size)
    side = max(height, width)
    if not SMALLEST_SIZE <= min(height, width) <= side <= LARGEST_SIZE:
        raise SettingError(
            f"image program '{kind}': size {in_json(size)} must be between {SMALLEST_SIZE} and {LARGEST_SIZE} pixels."
        )
    if channels not in (1, 3):
        raise SettingError(f"image program '{kind}': channels must be 1 (grey) or 3 (colour), got {channels}.")
    if first < 0 or count < 0:
        raise SettingError(f"image program '{kind}': first={first} and count={count} must not be negative.")
    device = torch.device(device)
    worker = torch.device("cpu") if device.type == "mps" else device
    if count == 0:
        return torch.empty((0, channels, height, width), dtype=torch.uint8, device=device)
    # Half precision from a caller's autocast would change the bytes.
    with torch.no_grad(), torch.autocast(worker.type, enabled=False):
        images = chosen(seed, torch.arange(first, first + count, device=worker), side, channels)
    expected = (count, channels, side, side)
    if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.shape != expected:
        kinds = f"{getattr(images, 'dtype', '')} {list(getattr(images, 'shape', ()))}"
        raise SettingError(
            f"image program '{kind}' must return a torch tensor, torch.uint8 {list(expected)}, got "
            f"{type(images).__module__}.{type(images).__name__}, {kinds}."
        )
    top, left = (side - height) // 2, (side - width) // 2
    return images[:, :, top : top + height, left : left + width].contiguous().to(device)
