"""The size of images: one number where they are square, or their height and width.

Settings, manifests and identities hold a square's side alone, also where `[n, n]` was said: what was made of squares
keeps its name. In JSON a pair is a list.

    >>> sides(28), sides((96, 64)), size_of((500, 1, 96, 64)), as_size([28, 28])
    ((28, 28), (96, 64), (96, 64), 28)
"""

from collections.abc import Sequence
from typing import Any

Size = int | tuple[int, int]
"""The side of square images, or height and width, in pixels."""


def sides(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def as_size(said: int | Sequence[int]) -> Size:
    """Return the size that a number or a pair means."""
    if isinstance(said, int):
        return said
    height, width = said
    return height if height == width else (height, width)


def size_of(shape: Sequence[int]) -> Size:
    """Return the size of images in an array of this shape, [..., height, width]."""
    return as_size((int(shape[-2]), int(shape[-1])))


def is_size(value: Any) -> bool:
    """Whether a value from a file is a size."""
    pair = value if isinstance(value, list | tuple) else [value, value]
    return len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)


def in_json(size: Size) -> int | list[int]:
    """Return a size as JSON has it."""
    return size if isinstance(size, int) else list(size)


def in_words(size: Size) -> str:
    """Return `28 x 28`, or `64 wide and 96 high`."""
    return f"{size} x {size}" if isinstance(size, int) else f"{size[1]} wide and {size[0]} high"


def largest(size: Size) -> int:
    """Return the longer side."""
    return max(sides(size))


def pixels(size: Size) -> int:
    """Return the number of pixels."""
    height, width = sides(size)
    return height * width
