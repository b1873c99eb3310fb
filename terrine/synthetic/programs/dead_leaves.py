"""Dead leaves, mixed shapes: overlapping opaque random shapes that cover all pixels.

Radii take 200 values linear in [0.03, 1] of the side with density proportional to r^-3 - 1; shapes are uniform over
circle, square, oriented square, rectangle, triangle and quadrilateral; colours and centres are uniform; there are at
most 5,000 leaves, and bare pixels stay black (Baradad et al. 2021, section 3.1 and the published generator). Every
polygon is inscribed in the circle of its radius. Geometry is continuous and sampled at pixel centres. One channel is
the first channel of the colour image.

The published program paints back to front. Here leaves are painted front to back: leaf 0 is on top, and a pixel belongs
to the first leaf that covers it, which gives the same distribution. A round of leaves of many images is painted by one
scatter-minimum of leaf numbers. Each leaf is tested on the smallest square window of pixels that contains it (leaves
are sorted by window), and leaves whose window has no bare pixel are skipped.
"""

from functools import cache

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import cosine, sine
from terrine.synthetic.program import chunks, image_program

MAX_LEAVES = 5_000
RADII = 200
SMALLEST, LARGEST = 0.03, 1.0
SHAPES = ("circle", "square", "oriented_square", "rectangle", "triangle", "quadrilateral")
LEAVES_PER_ROUND = 200
# A pixel is stored as one integer: the leaf's number (13 bits) above its colour (8 bits per channel). A bit above both
# marks a bare pixel.
NUMBER_BITS = 13


@image_program("dead_leaves")
def dead_leaves(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the dead-leaves images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    budget = 1 << 19 if index.device.type == "cpu" else 1 << 24
    pool = max(1, budget // (size * size))
    parts = chunks(index, size, cpu=1 << 23, gpu=1 << 27)
    return torch.cat([_paint(seed, part, size, channels, pool) for part in parts])


def radii(size: int) -> list[float]:
    """Return the 200 radii in pixels."""
    step = (LARGEST - SMALLEST) / (RADII - 1)
    return [(SMALLEST + step * k) * size for k in range(RADII)]


def radius_probabilities() -> list[float]:
    """Return the probability of each of the 200 radii: proportional to r^-3 - 1, r as a fraction of the side."""
    weights = [max(radius**-3 - 1.0, 0.0) for radius in radii(1)]
    total = sum(weights)
    return [weight / total for weight in weights]


@cache
def _alias_table(device: torch.device) -> Tensor:
    """Return Walker's alias table over 256 slots, int64: the radius taken above the threshold, and the threshold.

    The threshold, in 2^24ths, is in the low 32 bits.
    """
    slots = 256
    mass = [p * slots for p in radius_probabilities()] + [0.0] * (slots - RADII)
    threshold, alias = [1 << 24] * slots, list(range(slots))
    small = [k for k in range(slots) if mass[k] < 1.0]
    large = [k for k in range(slots) if mass[k] >= 1.0]
    while small and large:
        poor, rich = small.pop(), large[-1]
        threshold[poor], alias[poor] = round(mass[poor] * (1 << 24)), rich
        mass[rich] -= 1.0 - mass[poor]
        if mass[rich] < 1.0:
            small.append(large.pop())
    return torch.tensor([a << 32 | t for a, t in zip(alias, threshold, strict=True)], device=device)


def draw_radius(word: Tensor) -> Tensor:
    """Map uniform 32-bit words (int64 [n]) to radius numbers 0..199."""
    slot = word >> 24
    entry = _alias_table(word.device).index_select(0, slot)
    # All ones to select the slot's own radius, else zero: cheaper than a comparison and a selection.
    own = ((word & 0xFFFFFF) - (entry & 0xFFFFFFFF)) >> 63
    alias = entry >> 32
    return alias ^ ((slot ^ alias) & own)


@cache
def window_sides(size: int) -> list[int]:
    """Return the sides of the windows of pixels on which leaves are tested: 1, 2, 3, 4, 6, 8, 12, ... up to `size`.

    No side is more than twice the previous one: `_bare_windows` relies on that.
    """
    sides = [1]
    while sides[-1] < size:
        last = sides[-1]
        sides.append(min(size, last + 1 if last < 4 else last * 3 // 2 if last & (last - 1) == 0 else last * 4 // 3))
    return sides


@cache
def _by_radius(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each of the 200 radii, its value in pixels, its window's number, and the window's last position."""
    length = torch.tensor(radii(size), dtype=torch.float32)
    # A leaf of radius r touches at most floor(2r) + 1 pixel centres along an axis.
    needed = (length * 2).floor().to(torch.int64) + 1
    sides = torch.tensor(window_sides(size))
    number = torch.searchsorted(sides, needed.clamp(max=size))
    return length.to(device), number.to(device), (size - sides[number]).to(torch.float32).to(device)


def _paint(seed: int, index: Tensor, size: int, channels: int, pool: int) -> Tensor:
    """Paint the pictures, `pool` at a time; the next picture replaces a complete one."""
    device = index.device
    kind = torch.int32 if channels == 1 else torch.int64
    bare = 1 << (NUMBER_BITS + 8 * channels)
    result = torch.empty((len(index), channels, size * size), dtype=torch.uint8, device=device)
    waiting = torch.arange(len(index), device=device)
    image, fallen = waiting[:0], waiting[:0]
    seen = torch.empty((0, size * size), dtype=kind, device=device)
    begun = 0
    while True:
        fresh = waiting[begun : begun + pool - len(image)]
        begun += len(fresh)
        if len(fresh):
            image, fallen = torch.cat([image, fresh]), torch.cat([fallen, torch.zeros_like(fresh)])
            seen = torch.cat([seen, seen.new_full((len(fresh), size * size), bare)])
        if not len(image):
            return result.view(-1, channels, size, size)
        _fall(seen, seed, index[image], fallen, size, channels)
        fallen = fallen + LEAVES_PER_ROUND
        going = (seen.amax(1) >= bare) & (fallen < MAX_LEAVES)
        done = (~going).nonzero()[:, 0]
        if len(done):
            complete = seen.index_select(0, done)
            result[image[done]] = torch.stack([(complete >> (8 * k)).to(torch.uint8) for k in range(channels)], 1)
            going = going.nonzero()[:, 0]
            image, fallen, seen = (part.index_select(0, going) for part in (image, fallen, seen))


def _fall(seen: Tensor, seed: int, index: Tensor, fallen: Tensor, size: int, channels: int) -> None:
    """Paint one round of leaves on the pictures `seen` [images, size²], after `fallen` [images] earlier leaves."""
    device = seen.device
    sides = window_sides(size)
    # Two leaves share a block; even ones come first in every tensor of leaves. All these tensors are flat from here on.
    lanes = philox.blocks(seed, "dead_leaves", index, LEAVES_PER_ROUND // 2, fallen // 2)
    shape, rest = philox.below(torch.cat([lanes[0], lanes[2]], 1).view(-1), len(SHAPES))
    centre = torch.cat([lanes[1], lanes[3]], 1).view(-1)
    step = torch.arange(LEAVES_PER_ROUND, device=device)
    number = (fallen[:, None] + torch.cat([step[::2], step[1::2]])).view(-1)
    picture = torch.arange(len(seen), device=device).repeat_interleave(LEAVES_PER_ROUND)

    length, window_number, last_place = (table for table in _by_radius(size, device))
    drawn = draw_radius(rest)
    radius, window, room = (table.index_select(0, drawn) for table in (length, window_number, last_place))
    centre_x = (centre >> 16).to(torch.float32) * (size / 65536)
    centre_y = (centre & 0xFFFF).to(torch.float32) * (size / 65536)
    # The window starts at the first pixel centre inside the leaf's bounding box and is moved back into the picture.
    left = torch.minimum((centre_x - radius - 0.5).ceil_().clamp_(min=0), room)
    upper = torch.minimum((centre_y - radius - 0.5).ceil_().clamp_(min=0), room)
    corner = (upper * size + left).to(torch.int64) + picture * (size * size)

    flat = seen.view(-1)
    windows = _bare_windows((flat >> (NUMBER_BITS + 8 * channels)).to(torch.uint8), size)
    alive = windows.view(-1).index_select(0, window * len(flat) + corner).nonzero()[:, 0]
    kind = window + (shape == 0) * len(sides)
    kind, order = kind.index_select(0, alive).to(torch.uint8).sort()
    place = alive.index_select(0, order)
    counts = torch.bincount(kind, minlength=2 * len(sides)).tolist()

    x, y, radius, corner, number, picture, shape = (
        values.index_select(0, place)
        for values in (left - centre_x, upper - centre_y, radius, corner, number, picture, shape)
    )
    details = philox.block_at(seed, "dead_leaves/details", index.index_select(0, picture), number)
    value = ((number << (8 * channels)) | (details[2] & ((1 << (8 * channels)) - 1))).to(seen.dtype)
    polygons = sum(counts[: len(sides)])
    planes = _half_planes(*(part[:polygons] for part in (shape, details[0], details[1], radius)))
    stop = 0
    for number_of_kind, members in enumerate(counts):
        here = slice(stop, stop + members)
        stop += members
        if not members:
            continue
        middle, place = _window(sides[number_of_kind % len(sides)], size, device)
        if number_of_kind < len(sides):
            depth = _depth_in_polygon(planes[:, :, None, here], x[here] + middle, y[here] + middle)
        else:
            across, down = x[here] + middle, y[here] + middle
            depth = (radius[here] * radius[here] - down * down)[:, None] - across * across
        # The sign bit is set if the pixel is outside; it becomes the bit that marks "bare".
        outside = depth.view(torch.int32).bitwise_right_shift_(31).bitwise_and_(1).to(seen.dtype)
        candidate = outside.bitwise_left_shift_(NUMBER_BITS + 8 * channels).bitwise_or_(value[here])
        target = corner[here] + place
        flat.scatter_reduce_(0, target.view(-1), candidate.view(-1), "amin")


@cache
def _window(side: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the centres of a window's pixels along an axis [side, 1], and their flat offsets [side, side, 1]."""
    steps = torch.arange(side, device=device)
    return (steps.to(torch.float32) + 0.5)[:, None], (steps[:, None] * size + steps)[:, :, None]


def _bare_windows(bare: Tensor, size: int) -> Tensor:
    """Return whether each window contains a bare pixel, by side and first corner: uint8 [sides, images · size²].

    `bare` is uint8 [images · size²], 1 or 0. Rows and pictures are treated as one long line, so results are undefined
    for corners whose window would leave the picture.
    """
    sides = window_sides(size)
    answers = torch.empty((len(sides), len(bare)), dtype=torch.uint8, device=bare.device)
    answers[0] = bare
    for before, answer, narrow, wide in zip(answers, answers[1:], sides, sides[1:], strict=False):
        step = wide - narrow
        rows = before[: -step * size] | before[step * size :]
        torch.bitwise_or(rows[:-step], rows[step:], out=answer[: len(rows) - step])
    return answers


def _half_planes(shape: Tensor, first: Tensor, second: Tensor, radius: Tensor) -> Tensor:
    """Return each polygon's four half-planes a·x + b·y + c ≥ 0 around its centre, float32 [3, 4, leaves].

    `first` and `second` are words with two 16-bit random angles each. A triangle repeats a corner: an edge of zero
    length has the whole plane as half-plane.
    """
    turn = [part * 2.0**-16 for part in (first >> 16, first & 0xFFFF, second >> 16, second & 0xFFFF)]
    tilt = turn[0]
    turn[3] = torch.where(shape == SHAPES.index("triangle"), turn[2], turn[3])
    # A sorting network for four numbers.
    for low, high in ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)):
        turn[low], turn[high] = torch.minimum(turn[low], turn[high]), torch.maximum(turn[low], turn[high])
    # Squares are rectangles whose corner lies an eighth of a turn above the axis; oriented ones are turned as well.
    lift = torch.where(shape == SHAPES.index("rectangle"), tilt * 0.25, 0.125)
    base = torch.where(shape == SHAPES.index("oriented_square"), tilt, 0.0)
    upright = torch.stack([lift, 0.5 - lift, lift + 0.5, 1.0 - lift]) + base
    angle = torch.where(shape >= SHAPES.index("triangle"), torch.stack(turn), upright)
    corner_x, corner_y = cosine(angle).mul_(radius), sine(angle).mul_(radius)
    edge_x, edge_y = corner_x.roll(-1, 0) - corner_x, corner_y.roll(-1, 0) - corner_y
    return torch.stack([-edge_y, edge_x, edge_y * corner_x - edge_x * corner_y])


def _depth_in_polygon(planes: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return float32 [side, side, leaves], negative where the window's pixel lies outside one of the half-planes.

    `planes` is [3, 4, 1, leaves]; `x` and `y` are [side, leaves].
    """
    a, b, c = planes
    along, down = (a * x).unbind(0), (b * y).add_(c)[:, :, None].unbind(0)
    depth = down[0] + along[0]
    for k in range(1, 4):
        torch.minimum(depth, down[k] + along[k], out=depth)
    # A negative zero would count as outside; adding zero makes it positive.
    return depth.add_(0.0)
