"""Image sizes: the side of a square image, or height and width.

A square size is stored as a single int, even if given as `[n, n]`, so identifiers stay stable.

    >>> sides(28), sides((96, 64)), size_of((500, 1, 96, 64)), as_size([28, 28])
    ((28, 28), (96, 64), (96, 64), 28)
"""

from collections.abc import Sequence
from typing import Any

Size = int | tuple[int, int]
"""Side of square images, or height and width, in pixels."""


def sides(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def as_size(value: int | Sequence[int]) -> Size:
    """Return a number or a pair as a size."""
    if isinstance(value, int):
        return value
    height, width = value
    return height if height == width else (height, width)


def size_of(shape: Sequence[int]) -> Size:
    """Return the size of images in an array of shape [..., height, width]."""
    return as_size((int(shape[-2]), int(shape[-1])))


def is_size(value: Any) -> bool:
    """Return whether a value from a file is a size."""
    pair = value if isinstance(value, list | tuple) else [value, value]
    return len(pair) == 2 and all(type(side) is int and side > 0 for side in pair)


def in_json(size: Size) -> int | list[int]:
    """Return a size as a JSON value."""
    return size if isinstance(size, int) else list(size)


def in_words(size: Size) -> str:
    """Return `28 x 28`, or `64 wide and 96 high`."""
    return f"{size} x {size}" if isinstance(size, int) else f"{size[1]} wide and {size[0]} high"


def pixels(size: Size) -> int:
    """Return the number of pixels."""
    height, width = sides(size)
    return height * width
