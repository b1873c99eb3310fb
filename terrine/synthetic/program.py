"""Image programs: their contract, their registry, and the one function that draws images.

A program is a function of (seed, index, size, channels). `index` is an int64 tensor of image numbers on the device that
does the work; the result is uint8 [images, channels, size, size] on that device. The contract:

- image i's bytes depend only on (seed, i, size, channels): not on the other images in `index`, nor on their number, nor
  on the device or the machine (see `terrine.determinism.portable_math`);
- randomness comes from `terrine.determinism.philox` with stream names that begin with the program's name;
- memory is bounded whatever the number of images: `chunks` cuts `index` into parts.

A new program is one file in `terrine.synthetic.programs`.

    >>> draw("dead_leaves", seed=0, first=1000, count=8, size=28, channels=1).shape
    torch.Size([8, 1, 28, 28])

`mixup` mixes shader images, as published; `mixup:dead_leaves+stylegan` mixes those two, and so on for any others.
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
"""Raised whenever a program draws other bytes for the same (seed, index): stored images then are drawn anew."""

SMALLEST_SIZE, LARGEST_SIZE = 8, 320


class Program(Protocol):
    """An image program; see the module's text for the contract."""

    def __call__(self, seed: int, index: Tensor, size: int, channels: int) -> Tensor: ...


P = TypeVar("P", bound=Program)

_PROGRAMS: dict[str, Program] = {}


def image_program(name: str) -> Callable[[P], P]:
    """Register a program under a name, in Terrine, a plugin or a notebook.

    Raises SettingError for the name of one of Terrine's own: its bytes are what stored images were drawn as.
    """

    def register(program: P) -> P:
        if name in _PROGRAMS and _PROGRAMS[name].__module__.startswith("terrine."):
            raise SettingError(f"image program '{name}': Terrine has one of this name. Choose another.")
        _PROGRAMS[name] = program
        return program

    return register


def programs() -> dict[str, Program]:
    """Return all programs by their names."""
    import_modules("terrine.synthetic.programs")
    load_plugins()
    return dict(sorted(_PROGRAMS.items()))


def chunks(index: Tensor, size: int, *, cpu: int, gpu: int) -> Iterator[Tensor]:
    """Cut `index` into parts of at most `cpu` (or, on an accelerator, `gpu`) pixels, and at least one image.

    The parts are a matter of memory and caches only; no image depends on them.
    """
    budget = cpu if index.device.type == "cpu" else gpu
    yield from index.split(max(1, budget // (size * size)))


def to_bytes(picture: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Shift and scale every channel of every image, and write bytes: uint8 of the shape of `picture`.

    `picture` is float32 [images, channels, height, width]; `mean` and `deviation`, as fractions of white, broadcast to
    [images, channels, 1]. A channel without contrast stays flat. Values outside 0..255 are clipped, so the deviation
    of the bytes may be a little smaller than the one asked for.
    """
    share = 1 / (picture.shape[2] * picture.shape[3])
    flat = picture.flatten(2)
    centred = flat - tree_sum(flat, 2) * share
    spread = (tree_sum(centred * centred, 2) * share).sqrt_()
    level = centred * (deviation / spread.clamp_(min=1e-3)) + mean
    return (level * 255.0).round_().clamp_(0, 255).to(torch.uint8).view(picture.shape)


def program(kind: str) -> Program:
    """Return the image program called `kind`: a program's name, or mixup:NAME+NAME+... of any others.

    Raises SettingError that lists the known ones.
    """
    named = programs()
    if kind in named:
        return named[kind]
    head, colon, sources = kind.partition(":")
    if head == "mixup" and colon and sources and not any(name.startswith("mixup") for name in sources.split("+")):
        # The registered mixup is a dataclass of its sources.
        return cast(Program, replace(cast(Any, named["mixup"]), sources=tuple(map(program, sources.split("+")))))
    known, near = ", ".join(named), did_you_mean(kind, named)
    raise SettingError(
        f"image program: there is none called '{kind}'.{near} Known are: {known}, mixup:A+B of any others."
    )


def draw(
    kind: str, *, seed: int, first: int, count: int, size: Size, channels: int, device: str | torch.device = "cpu"
) -> Tensor:
    """Draw images `first` .. `first + count - 1` of the program `kind`: uint8 [count, channels, *size].

    Images that are not square are the middle of square ones, of the longer side.

    The same (kind, seed, image number, size, channels) gives the same bytes whatever the range it is drawn in, on every
    CPU. Other devices give those of `gaussian`, `dead_leaves` and `fractal`; of the others a CUDA device was seen to
    round up to 0.05 % of the bytes the other way, by one. Work happens on `device` and the result stays there; MPS has
    no float64, so there the work is done on the CPU and the result is moved. Working memory beside the result is
    bounded.

    Raises SettingError for an unknown kind, a size outside 8..320, channels other than 1 and 3, or a negative range.
    """
    chosen = program(kind)
    height, width = sides(size)
    side = max(height, width)
    if not SMALLEST_SIZE <= min(height, width) <= side <= LARGEST_SIZE:
        raise SettingError(
            f"image program '{kind}': size {in_json(size)} is outside {SMALLEST_SIZE}..{LARGEST_SIZE} pixels; choose "
            "one inside."
        )
    if channels not in (1, 3):
        raise SettingError(f"image program '{kind}': {channels} channels were asked for; use 1 (grey) or 3 (colour).")
    if first < 0 or count < 0:
        raise SettingError(
            f"image program '{kind}': first {first} and count {count} must not be negative; images are numbered from 0."
        )
    device = torch.device(device)
    worker = torch.device("cpu") if device.type == "mps" else device
    if count == 0:
        return torch.empty((0, channels, height, width), dtype=torch.uint8, device=device)
    # Half precision from a caller's autocast would break the exactness on which equal bytes rest.
    with torch.no_grad(), torch.autocast(worker.type, enabled=False):
        images = chosen(seed, torch.arange(first, first + count, device=worker), side, channels)
    top, left = (side - height) // 2, (side - width) // 2
    return images[:, :, top : top + height, left : left + width].contiguous().to(device)
