"""The image programs by name, and the one door through which images are drawn.

A new program is one file in `terrine.synthetic.programs` (see `program` for its contract).

    >>> draw("dead_leaves", seed=0, first=1000, count=8, size=28, channels=1).shape
    torch.Size([8, 1, 28, 28])

`mixup` mixes shader images, as published; `mixup:dead_leaves+stylegan` mixes those two, and so on for any others.
"""

import torch
from torch import Tensor

from terrine.errors import SettingError, did_you_mean
from terrine.geometry import Size, in_json, sides
from terrine.synthetic.program import Program, programs
from terrine.synthetic.programs.mixup import Mixup

VERSION = 1
"""Raised whenever a program draws other bytes for the same (seed, index): stored images then are drawn anew."""

SMALLEST_SIZE, LARGEST_SIZE = 8, 320


def program(kind: str) -> Program:
    """Return the image program called `kind`: a program's name, or mixup:NAME+NAME+... of any others.

    Raises SettingError that lists the known ones.
    """
    named = programs()
    if kind in named:
        return named[kind]
    head, colon, sources = kind.partition(":")
    if head == "mixup" and colon and sources and not any(name.startswith("mixup") for name in sources.split("+")):
        return Mixup(tuple(program(name) for name in sources.split("+")))
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
