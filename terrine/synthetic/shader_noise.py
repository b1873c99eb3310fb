"""Building blocks of fragment programs: per-image parameters, lattice noise, cells, rotations and distances.

Everything works on planes, float32 [images, size, size], and follows the rules of `portable_math`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from terrine.determinism.portable_math import cosine, sine

PERIOD = 16


@dataclass(frozen=True)
class Scene:
    """Inputs of a fragment program for its batch: the plane's coordinates and each image's random numbers."""

    x: Tensor  # float32 [images, size, size], about -1..1, turned and zoomed per image
    y: Tensor
    random: Tensor  # float32 [images, parameters], uniform on [0, 1)
    lattice: Tensor  # float32 [images, 16 · 16], uniform on [0, 1)

    def uniform(self, number: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return parameter `number` of every image, uniform on [low, high): float32 [images, 1, 1]."""
        return (self.random[:, number] * (high - low) + low)[:, None, None]

    def integer(self, number: int, low: int, high: int) -> Tensor:
        """Return parameter `number` as an integer in low..high, in float32 [images, 1, 1]."""
        return self.uniform(number, float(low), float(high + 1)).floor()

    def point(self, number: int, reach: float = 0.8) -> tuple[Tensor, Tensor]:
        """Return a random point of the square [-reach, reach)², given by parameters `number` and `number + 1`."""
        return self.uniform(number, -reach, reach), self.uniform(number + 1, -reach, reach)

    def at(self, column: Tensor, row: Tensor) -> Tensor:
        """Return each image's lattice value at integer coordinates (periodic), given as int32 planes."""
        base = torch.arange(len(self.lattice), device=row.device, dtype=torch.int32)[:, None, None] * PERIOD**2
        place = ((row & (PERIOD - 1)) * PERIOD + (column & (PERIOD - 1))) + base
        return self.lattice.reshape(-1).index_select(0, place.view(-1)).view(place.shape)


def fraction(value: Tensor) -> Tensor:
    """Return value - floor(value)."""
    return value - value.floor()


def smooth(value: Tensor) -> Tensor:
    """Return the smoothstep 3t² - 2t³ of values in [0, 1]."""
    return value * value * (3.0 - value * 2.0)


def step(value: Tensor, width: float) -> Tensor:
    """Return a soft step: 0 below -width, 1 above width."""
    return smooth((value * (0.5 / width) + 0.5).clamp(0.0, 1.0))


def rotate(x: Tensor, y: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates turned by `turns` full turns."""
    c, s = cosine(turns), sine(turns)
    return x * c - y * s, x * s + y * c


def length(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance from the origin."""
    return (x * x + y * y).sqrt()


def value_noise(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    """Return lattice noise in [0, 1), smooth between the integers, with period 16."""
    floor_x, floor_y = x.floor(), y.floor()
    column, row = floor_x.to(torch.int32), floor_y.to(torch.int32)
    across, down = smooth(x - floor_x), smooth(y - floor_y)
    first, second = scene.at(column, row), scene.at(column, row + 1)
    first = first + (scene.at(column + 1, row) - first) * across
    second = second + (scene.at(column + 1, row + 1) - second) * across
    return first + (second - first) * down


def fractal_noise(scene: Scene, x: Tensor, y: Tensor, octaves: int, fold: str = "none") -> Tensor:
    """Return a sum of `octaves` of value noise (fBm), each twice as fine and half as strong, in [0, 1).

    `fold` is "none", "ridge" (crests where the noise is near its middle value) or "billow" (creases there).
    """
    total, amplitude, whole = torch.zeros_like(x), 1.0, 0.0
    for octave in range(octaves):
        noise = value_noise(scene, x + 5.17 * octave, y + 3.71 * octave)
        if fold != "none":
            noise = (noise * 2.0 - 1.0).abs()
        total = total + (1.0 - noise if fold == "ridge" else noise) * amplitude
        whole, amplitude = whole + amplitude, amplitude * 0.5
        x, y = rotate(x * 2.0, y * 2.0, torch.full_like(x[:, :1, :1], 0.1))
    return total * (1.0 / whole)


def cells(scene: Scene, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, with one random site per unit square, the distances to the two nearest and the number of the nearest.

    The number is the site's lattice value, uniform on [0, 1).
    """
    floor_x, floor_y = x.floor(), y.floor()
    column, row = floor_x.to(torch.int32), floor_y.to(torch.int32)
    far = torch.full_like(x, 9.0)
    nearest, second, number = far, far, far
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            value = scene.at(column + across, row + down)
            other = scene.at(column + (across + 7), row + (down + 5))
            dx = x - floor_x - value - float(across)
            dy = y - floor_y - other - float(down)
            distance = dx * dx + dy * dy
            closer = distance < nearest
            second = torch.minimum(second, torch.maximum(nearest, distance))
            nearest = torch.minimum(nearest, distance)
            number = torch.where(closer, value, number)
    return nearest.sqrt(), second.sqrt(), number


def box(x: Tensor, y: Tensor, half_width: Tensor, half_height: Tensor) -> Tensor:
    """Return the signed distance to an upright rectangle around the origin."""
    dx, dy = x.abs() - half_width, y.abs() - half_height
    outside = length(dx.clamp(min=0.0), dy.clamp(min=0.0))
    return outside + torch.maximum(dx, dy).clamp(max=0.0)


def smooth_union(first: Tensor, second: Tensor, width: float) -> Tensor:
    """Return the signed distance to the union of two shapes with a fillet of about `width` between them."""
    gap = (width - (first - second).abs()).clamp(min=0.0)
    return torch.minimum(first, second) - gap * gap * (0.25 / width)
