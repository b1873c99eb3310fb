"""Shaders: a family of 31 small fragment programs with random parameters.

The idea is from Baradad et al. (2022), whose 21,000 shader sources are no longer published. These programs are
Terrine's own, run on the device with tensors, and need no OpenGL. Each image draws its program, a rotation, a zoom, the
program's parameters and, per channel, a cosine palette; then every channel gets a random mean and deviation. Grey
images use one palette.

A fragment program computes a scalar field for a whole batch of images at once: every pixel depends only on its
coordinates and a few random parameters. A new program is a function here and its name in `FIELDS`. It may use
parameters 0..15 and the lattice of its scene, and must not be flat.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import angle, cosine, exp2, sine
from terrine.synthetic.program import chunks, image_program, to_bytes
from terrine.synthetic.shader_noise import (
    PERIOD,
    Scene,
    box,
    cells,
    fractal_noise,
    fraction,
    length,
    rotate,
    smooth_union,
    step,
    value_noise,
)

PARAMETERS = 16
# A faint slope keeps the rare view into the flat part of a field from having a single level.
SLOPE = 0.05

Field = Callable[[Scene], Tensor]


def plasma(s: Scene) -> Tensor:
    """Four sine waves: across, down, diagonal and radial."""
    x, y = s.x * s.uniform(0, 0.4, 1.5), s.y * s.uniform(1, 0.4, 1.5)
    cx, cy = s.point(2)
    waves = sine(x + s.uniform(4)) + sine(y + s.uniform(5)) + sine((x + y) * 0.7 + s.uniform(6))
    return waves + sine(length(s.x - cx, s.y - cy) * s.uniform(7, 0.5, 2.0))


def rings(s: Scene) -> Tensor:
    """Concentric waves around a random centre."""
    cx, cy = s.point(0)
    return sine(length(s.x - cx, s.y - cy) * s.uniform(2, 1.5, 4.0) + s.uniform(3))


def spiral(s: Scene) -> Tensor:
    """Arms that spiral out of a random centre."""
    cx, cy = s.point(0, 0.5)
    x, y = s.x - cx, s.y - cy
    return sine(angle(y, x) * s.integer(2, 1, 5) + length(x, y) * s.uniform(3, -2.5, 2.5))


def checkers(s: Scene) -> Tensor:
    """Draw a checkerboard, bent by a slow wave."""
    scale = s.uniform(0, 1.0, 3.0)
    bend = s.uniform(1, 0.0, 0.5)
    x = s.x * scale + sine(s.y * 0.5 + s.uniform(2)) * bend
    y = s.y * scale + sine(s.x * 0.5 + s.uniform(3)) * bend
    return step(sine(x * 0.5) * sine(y * 0.5), 0.15)


def stripes(s: Scene) -> Tensor:
    """Parallel bands with wavy edges."""
    x = s.x * s.uniform(0, 1.0, 4.0) + sine(s.y * s.uniform(1, 0.3, 1.5) + s.uniform(2)) * s.uniform(3, 0.0, 0.6)
    return step(sine(x), 0.4)


def clouds(s: Scene) -> Tensor:
    """Fractal Brownian motion."""
    scale = s.uniform(0, 1.0, 3.0)
    return fractal_noise(s, s.x * scale + 8.0, s.y * scale + 8.0, 4)


def ridges(s: Scene) -> Tensor:
    """Fractal noise folded into crests."""
    scale = s.uniform(0, 0.8, 2.0)
    value = fractal_noise(s, s.x * scale + 8.0, s.y * scale + 8.0, 4, "ridge")
    return value * value


def billows(s: Scene) -> Tensor:
    """Fractal noise folded into creases."""
    scale = s.uniform(0, 0.8, 2.0)
    return fractal_noise(s, s.x * scale + 8.0, s.y * scale + 8.0, 3, "billow")


def warped(s: Scene) -> Tensor:
    """Noise whose coordinates are displaced by noise (domain warping)."""
    x, y = s.x * s.uniform(0, 0.7, 1.8) + 8.0, s.y * s.uniform(1, 0.7, 1.8) + 8.0
    reach = s.uniform(2, 1.0, 3.0)
    dx, dy = fractal_noise(s, x + 3.1, y, 2), fractal_noise(s, x, y + 6.3, 2)
    return fractal_noise(s, x + dx * reach, y + dy * reach, 3)


def marble(s: Scene) -> Tensor:
    """Veins: a wave whose phase is noise."""
    noise = fractal_noise(s, s.x * 1.5 + 8.0, s.y * 1.5 + 8.0, 4)
    return sine(s.x * s.uniform(0, 0.4, 1.2) + noise * s.uniform(1, 1.0, 3.0)).abs()


def wood(s: Scene) -> Tensor:
    """Growth rings around a distant centre, roughened by noise."""
    cx, cy = s.point(0, 1.5)
    radius = length(s.x - cx, (s.y - cy) * s.uniform(2, 0.3, 1.0))
    return fraction(radius * s.uniform(3, 1.5, 4.0) + value_noise(s, s.x * 2.0 + 8.0, s.y * 2.0 + 8.0) * 0.6)


def bubbles(s: Scene) -> Tensor:
    """Draw the distance to the nearest of several random sites (Voronoi F1)."""
    scale = s.uniform(0, 1.2, 3.0)
    return cells(s, s.x * scale + 8.0, s.y * scale + 8.0)[0]


def cracks(s: Scene) -> Tensor:
    """Draw the borders between Voronoi cells."""
    scale = s.uniform(0, 1.0, 2.5)
    nearest, second, _ = cells(s, s.x * scale + 8.0, s.y * scale + 8.0)
    return step(second - nearest - 0.12, 0.12)


def mosaic(s: Scene) -> Tensor:
    """Voronoi cells, each of one level."""
    scale = s.uniform(0, 1.2, 3.0)
    return cells(s, s.x * scale + 8.0, s.y * scale + 8.0)[2]


def discs(s: Scene) -> Tensor:
    """Draw a union of five discs with sharp edges."""
    distance = torch.full_like(s.x, 9.0)
    for k in range(5):
        cx, cy = s.point(3 * k, 1.0)
        distance = torch.minimum(distance, length(s.x - cx, s.y - cy) - s.uniform(3 * k + 2, 0.1, 0.45))
    return step(distance, 0.05)


def metaballs(s: Scene) -> Tensor:
    """Contours of the summed attraction of five points."""
    total = torch.zeros_like(s.x)
    for k in range(5):
        cx, cy = s.point(2 * k)
        dx, dy = s.x - cx, s.y - cy
        total = total + s.uniform(10 + k, 0.02, 0.15) / (dx * dx + dy * dy + 0.03)
    return step(total - 1.2, 0.4)


def boxes(s: Scene) -> Tensor:
    """Draw a union of rotated rectangles."""
    distance = torch.full_like(s.x, 9.0)
    for k in range(3):
        cx, cy = s.point(5 * k)
        x, y = rotate(s.x - cx, s.y - cy, s.uniform(5 * k + 2))
        distance = torch.minimum(distance, box(x, y, s.uniform(5 * k + 3, 0.1, 0.5), s.uniform(5 * k + 4, 0.1, 0.5)))
    return step(distance, 0.05)


def contours(s: Scene) -> Tensor:
    """Level lines of the distance to a disc and a box that melt into each other."""
    cx, cy = s.point(0)
    bx, by = s.point(2)
    x, y = rotate(s.x - bx, s.y - by, s.uniform(4))
    first = length(s.x - cx, s.y - cy) - s.uniform(5, 0.1, 0.4)
    second = box(x, y, s.uniform(6, 0.1, 0.5), s.uniform(7, 0.1, 0.5))
    return sine(smooth_union(first, second, 0.4) * s.uniform(8, 1.5, 4.0))


def hexagons(s: Scene) -> Tensor:
    """Hexagonal tiles, shaded from the middle outwards."""
    scale = s.uniform(0, 1.0, 3.0)
    x, y = s.x * scale, s.y * scale * 0.5773503
    ax, ay = fraction(x) - 0.5, (fraction(y) - 0.5) * 1.7320508
    bx, by = fraction(x + 0.5) - 0.5, (fraction(y + 0.5) - 0.5) * 1.7320508
    first = torch.maximum(ax.abs(), ax.abs() * 0.5 + ay.abs() * 0.8660254)
    second = torch.maximum(bx.abs(), bx.abs() * 0.5 + by.abs() * 0.8660254)
    return torch.minimum(first, second)


def bricks(s: Scene) -> Tensor:
    """Draw a brick wall: rows shifted by half a brick, a random level for each brick, and mortar between bricks."""
    scale = s.uniform(0, 2.0, 5.0)
    y = s.y * scale
    row = y.floor()
    x = s.x * scale * 0.5 + row * 0.5
    level = s.at(x.floor().to(torch.int32), row.to(torch.int32)) * 0.5 + 0.5
    mortar = torch.minimum(0.5 - (fraction(x) - 0.5).abs(), (0.5 - (fraction(y) - 0.5).abs()) * 0.5)
    return level * step(mortar - 0.06, 0.05)


def truchet(s: Scene) -> Tensor:
    """Quarter arcs on square tiles, turned at random, which join into loops."""
    scale = s.uniform(0, 1.5, 4.0)
    x, y = s.x * scale, s.y * scale
    turned = s.at(x.floor().to(torch.int32), y.floor().to(torch.int32)) < 0.5
    u, v = fraction(x), fraction(y)
    u = torch.where(turned, 1.0 - u, u)
    distance = torch.minimum((length(u, v) - 0.5).abs(), (length(1.0 - u, 1.0 - v) - 0.5).abs())
    return step(distance - 0.15, 0.1)


def moire(s: Scene) -> Tensor:
    """Two systems of rings that interfere."""
    (ax, ay), (bx, by) = s.point(0), s.point(2)
    frequency = s.uniform(4, 2.0, 5.0)
    return sine(length(s.x - ax, s.y - ay) * frequency) * sine(length(s.x - bx, s.y - by) * frequency)


def kaleidoscope(s: Scene) -> Tensor:
    """Draw a plane folded into equal sectors, with waves in each."""
    cx, cy = s.point(0, 0.4)
    x, y = s.x - cx, s.y - cy
    sectors = s.integer(2, 3, 8)
    turns = (fraction(angle(y, x) * sectors) - 0.5).abs() / sectors
    radius = length(x, y)
    u, v = radius * cosine(turns), radius * sine(turns)
    return sine(u * s.uniform(3, 0.8, 2.0) + s.uniform(4)) + sine(v * s.uniform(5, 1.0, 3.0) + s.uniform(6))


def julia(s: Scene) -> Tensor:
    """Draw the smallest distance to the origin along ten steps of z² + c (an orbit trap)."""
    cx, cy = s.uniform(0, -0.9, 0.3), s.uniform(1, -0.8, 0.8)
    x, y = s.x * 1.2, s.y * 1.2
    trap = torch.full_like(x, 9.0)
    for _ in range(10):
        x, y = (x * x - y * y + cx).clamp_(-8.0, 8.0), (x * y * 2.0 + cy).clamp_(-8.0, 8.0)
        trap = torch.minimum(trap, x * x + y * y)
    return trap.sqrt()


def sine_network(s: Scene) -> Tensor:
    """Draw the output of a small network of sines of coordinates (a compositional pattern-producing network)."""
    units = []
    for k in range(4):
        wx, wy = s.uniform(3 * k, -1.2, 1.2), s.uniform(3 * k + 1, -1.2, 1.2)
        units.append(sine(s.x * wx + s.y * wy + s.uniform(3 * k + 2)))
    a, b, c, d = units
    first = sine((a - b) * s.uniform(12, 0.1, 0.5) + c * s.uniform(13, 0.1, 0.5))
    second = sine((c + d) * s.uniform(14, 0.1, 0.5) + a * s.uniform(15, 0.1, 0.5))
    return first + second


def swirl(s: Scene) -> Tensor:
    """Coordinates stirred by four rounds of sines, then banded."""
    x, y = s.x + s.uniform(0), s.y + s.uniform(1)
    force = s.uniform(2, 0.15, 0.4)
    for k in range(1, 5):
        x = x + sine(y * (0.35 * k) + s.uniform(2 + k)) * (force * (1.0 / k))
        y = y + sine(x * (0.35 * k) + s.uniform(6 + k)) * (force * (1.0 / k))
    return sine(x * s.uniform(11, 0.4, 1.0)) + sine(y * s.uniform(12, 0.4, 1.0))


def quasicrystal(s: Scene) -> Tensor:
    """Plane waves from five to seven directions."""
    directions = s.integer(0, 5, 7)
    frequency = s.uniform(1, 1.0, 3.0)
    total = torch.zeros_like(s.x)
    for k in range(7):
        u, _ = rotate(s.x, s.y, k * 0.5 / directions)
        total = total + cosine(u * frequency + s.uniform(2 + k)) * (directions > k).to(torch.float32)
    return total


def gyroid(s: Scene) -> Tensor:
    """Draw an oblique slice through a gyroid, with a soft threshold."""
    scale = s.uniform(0, 0.5, 1.5)
    x, y = s.x * scale, s.y * scale
    z = x * s.uniform(1, -1.0, 1.0) + y * s.uniform(2, -1.0, 1.0) + s.uniform(3)
    value = sine(x) * cosine(y) + sine(y) * cosine(z) + sine(z) * cosine(x)
    return step(value, 0.6)


def spheres(s: Scene) -> Tensor:
    """Three shaded balls under one light."""
    lx, ly = rotate(torch.full_like(s.x[:, :1, :1], 0.6), torch.zeros_like(s.x[:, :1, :1]), s.uniform(0))
    shade = (s.x * lx + s.y * ly) * 0.15
    for k in range(3):
        cx, cy = s.point(1 + 3 * k, 0.9)
        radius = s.uniform(3 + 3 * k, 0.2, 0.6)
        dx, dy = (s.x - cx) / radius, (s.y - cy) / radius
        height = 1.0 - dx * dx - dy * dy
        light = dx * lx + dy * ly + height.clamp(min=0.0).sqrt() * 0.8
        shade = torch.where(height > 0, light, shade)
    return shade


def facets(s: Scene) -> Tensor:
    """Flat facets: the largest of seven random planes (a polyhedral landscape)."""
    top = torch.full_like(s.x, -9.0)
    for k in range(7):
        x, _ = rotate(s.x, s.y, s.uniform(k))
        top = torch.maximum(top, x * s.uniform(k + 7, 0.3, 1.5) - s.uniform(k + 8, 0.0, 0.8))
    return fraction(top * s.uniform(15, 0.5, 1.5))


def labyrinth(s: Scene) -> Tensor:
    """Reaction and diffusion: noise that activates its neighbourhood and inhibits a wider one, six times."""
    value = value_noise(s, s.x * s.uniform(0, 6.0, 12.0) + 8.0, s.y * s.uniform(1, 6.0, 12.0) + 8.0) - 0.5
    gain = s.uniform(2, 6.0, 12.0)
    for _ in range(6):
        near = _blur(value, 1)
        wide = _blur(_blur(near, 2), 2)
        value = ((near - wide) * gain).clamp_(-1.0, 1.0)
    return value


def _blur(value: Tensor, reach: int) -> Tensor:
    """Average with neighbours `reach` pixels away along both axes, weights (1, 2, 1)/4, with mirrored borders."""
    for dim in (1, 2):
        size = value.shape[dim]
        place = torch.arange(size, device=value.device)
        before = value.index_select(dim, (place - reach).clamp(min=0))
        after = value.index_select(dim, (place + reach).clamp(max=size - 1))
        value = (before + after) * 0.25 + value * 0.5
    return value


FIELDS: tuple[Field, ...] = (
    plasma, rings, spiral, checkers, stripes, clouds, ridges, billows, warped, marble, wood, bubbles, cracks, mosaic,
    discs, metaballs, boxes, contours, hexagons, bricks, truchet, moire, kaleidoscope, julia, sine_network, swirl,
    quasicrystal, gyroid, spheres, facets, labyrinth,
)  # fmt: skip


@image_program("shaders")
def shaders(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the shader images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    result = torch.empty((len(index), channels, size, size), dtype=torch.uint8, device=index.device)
    family = family_of(seed, index)
    for number in range(len(FIELDS)):
        for place in chunks((family == number).nonzero()[:, 0], size, cpu=1 << 16, gpu=1 << 23):
            if len(place):
                result[place] = _render(seed, number, index[place], size, channels)
    return result


def family_of(seed: int, index: Tensor) -> Tensor:
    """Return the number of the program in `FIELDS` that each image (int64 [images]) runs."""
    return philox.below(philox.words(seed, "shaders/family", index, 1)[:, 0], len(FIELDS))[0]


def _render(seed: int, number: int, index: Tensor, size: int, channels: int) -> Tensor:
    word = philox.uniforms(seed, "shaders", index, 16 + PARAMETERS + PERIOD**2)
    view, parameters, lattice = word.split((16, PARAMETERS, PERIOD**2), 1)
    axis = (torch.arange(size, device=index.device).to(torch.float32) * 2.0 + (1.0 - size)) * (1 / size)
    zoom = exp2(view[:, 1] * 1.5 - 0.75)[:, None, None]
    x, y = rotate(axis[None, None] * zoom, axis[None, :, None] * zoom, view[:, 0, None, None])
    field = FIELDS[number](Scene(x, y, parameters, lattice))
    field = field + (x + y) * SLOPE
    # One palette per channel: rhythm (half a wave, which keeps the order of levels, to one and a half) and phase.
    rhythm, phase, mean, deviation = view[:, 2:14].view(-1, 3, 4)[:, :channels, :, None, None].unbind(2)
    colour = cosine(field[:, None] * (rhythm * 0.5 + 0.25) + phase)
    return to_bytes(colour, mean[:, :, :, 0] * 0.4 + 0.3, deviation[:, :, :, 0] * 0.18 + 0.12)
