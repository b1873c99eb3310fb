"""FractalDB: attractors of random iterated function systems.

After Kataoka et al. (2020). A category is a system of 2..7 affine maps whose six parameters are uniform on (-1, 1).
Maps are chosen with probability proportional to |ad - bc|, and a system is kept if its points fill at least a fifth of
the canvas. An instance multiplies one of the six parameters of every map by 0.2, 0.6, 1.4 or 1.8, or none (25 weights),
stamps one of ten random 3×3 patches at every point, and flips the picture (4 ways). That makes 1,000 categories × 25 ×
10 × 4 = 1,000,000 instances, and each image has its own random walk.

The paper does not specify the following. If weights destroy the attractor (its points diverge or shrink to less than a
tenth of the canvas), the instance uses the category's weights. Pictures are drawn on a canvas of at least 112 pixels a
side and at least twice the image's side, and averaged down, so that small images are smooth.
"""

from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch
from torch import Tensor

from terrine.determinism import philox
from terrine.determinism.portable_math import tree_sum
from terrine.synthetic.program import chunks, image_program

CATEGORIES = 1_000
WEIGHTS = 25
PATCHES = 10
LEAST_MAPS, MOST_MAPS = 2, 7
FILL = 0.2
LEAST_FILL = 0.1
FACTORS = (0.2, 0.6, 1.4, 1.8)
# Points per canvas pixel (the paper draws 100,000 on 512 × 512), steps per walk, and steps before the first point.
DENSITY = 0.38
STEPS = 64
BURN_IN = 16
SEARCH_CANVAS = 64
ATTEMPTS_AT_A_TIME = 8
SEARCHED_AT_A_TIME = 64
# A map is chosen by one byte, so its probability is a multiple of 1/256.
CHOICES = 256


@image_program("fractal")
def fractal(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    """Return the fractal images `index` (int64 [images]): uint8 [images, channels, size, size]."""
    parts = chunks(index, size, cpu=1 << 17, gpu=1 << 22)
    return torch.cat([_draw(seed, part, size, channels) for part in parts])


@dataclass(frozen=True)
class Systems:
    """Iterated function systems: x' = a·x + b·y + e, y' = c·x + d·y + f."""

    parameters: Tensor  # float32 [systems, 7, 6]: a, b, c, d, e, f of each map; unused maps are zero
    choice: Tensor  # int32 [systems, 256]: the map that each byte chooses

    def __getitem__(self, place: Tensor) -> "Systems":
        return Systems(self.parameters[place], self.choice[place])


def random_systems(seed: int, category: Tensor, attempt: Tensor) -> Systems:
    """Return the system that each `attempt` (int64 [n]) at its `category` (int64 [n]) proposes."""
    word = philox.words(seed, "fractal/system", category * (1 << 20) + attempt, 1 + 6 * MOST_MAPS)
    maps, _ = philox.below(word[:, :1], MOST_MAPS - LEAST_MAPS + 1)
    used = (torch.arange(MOST_MAPS, device=category.device) < maps + LEAST_MAPS).to(torch.float32)
    parameters = (philox.to_uniform(word[:, 1:]) * 2.0 - 1.0).view(-1, MOST_MAPS, 6) * used[:, :, None]
    a, b, c, d = parameters[:, :, :4].unbind(2)
    area = (a * d - b * c).abs_()
    share = area / tree_sum(area, 1).clamp_(min=1e-12)
    # Bytes 0..255 are assigned in the order of the maps; the k-th boundary is the rounded cumulative probability.
    bounds = [share[:, :1] * CHOICES]
    for k in range(1, MOST_MAPS - 1):
        bounds.append(bounds[-1] + share[:, k : k + 1] * CHOICES)
    byte = torch.arange(CHOICES, device=category.device)
    choice = torch.stack([byte >= bound.round() for bound in bounds]).sum(0, dtype=torch.int32)
    return Systems(parameters, choice)


def walk(systems: Systems, seed: int, name: str, index: Tensor, points: int) -> tuple[Tensor, Tensor]:
    """Walk each system at random: coordinates x and y, float32 [64, systems, walks] with 64 · walks ≥ points.

    Parallel walks start at the origin and take 16 steps towards the attractor before the first of their 64 points.
    """
    count, walks = len(index), -(-points // STEPS)
    base = torch.arange(count, device=index.device)[:, None]
    columns = systems.parameters.flatten(0, 1).t().contiguous().unbind(0)
    choice = (systems.choice + (base * MOST_MAPS).to(torch.int32)).view(-1)
    table_start = base * CHOICES
    x, y = torch.zeros((2, count * walks), device=index.device)
    # Every step writes its points into the result; those of the burn-in are overwritten.
    all_x, all_y = torch.empty((2, STEPS, count * walks), device=index.device)
    rows = list(zip(all_x.unbind(0), all_y.unbind(0), strict=True))
    spare = torch.empty((2, count * walks), device=index.device).unbind(0)
    for step in range(BURN_IN + STEPS):
        # A block of four words has a byte for each of 16 steps.
        turn, part = divmod(step, 16)
        if part == 0:
            lanes = philox.blocks(seed, name, index, walks, turn * walks)
        byte = (lanes[part // 4] >> (8 * (part % 4))).bitwise_and_(CHOICES - 1)
        taken = choice.index_select(0, byte.add_(table_start).view(-1))
        a, b, c, d, e, f = (column.index_select(0, taken) for column in columns)
        next_x, next_y = rows[step - BURN_IN] if step >= BURN_IN else spare
        # Both old coordinates are needed for both new ones, so they are multiplied before either is stored.
        b.mul_(y), c.mul_(x)
        x, y = torch.add(a.mul_(x).add_(b), e, out=next_x), torch.add(c.add_(d.mul_(y)), f, out=next_y)
    return all_x.view(STEPS, count, walks), all_y.view(STEPS, count, walks)


def plot(x: Tensor, y: Tensor, canvas: int) -> Tensor:
    """Mark the pixels that points [steps, n, walks] fall on, after stretching their bounding box over the canvas.

    Returns uint8 [n, canvas²], 0 or 1; a margin of at least two pixels stays empty.
    """
    margin = 2 + canvas // 85
    reach = float(canvas - 1 - 2 * margin)

    def place(value: Tensor) -> Tensor:
        low, high = value.amin((0, 2), keepdim=True), value.amax((0, 2), keepdim=True)
        # Divergent orbits give NaN, which lands in one corner and fails every fill test.
        relative = ((value - low) * (reach / (high - low).clamp_(min=1e-6))).nan_to_num_(0.0, 0.0, 0.0)
        return relative.add_(0.5).to(torch.int32).clamp_(0, int(reach))

    start = torch.arange(x.shape[1], device=x.device)[:, None] * canvas**2 + (margin * canvas + margin)
    target = (place(y) * canvas + place(x)) + start
    marks = torch.zeros(x.shape[1] * canvas**2, dtype=torch.uint8, device=x.device)
    return marks.scatter_(0, target.view(-1), 1).view(-1, canvas**2)


def fill_rate(marks: Tensor) -> Tensor:
    """Return the share of marked pixels, float32 [n], of uint8 [n, pixels]."""
    return marks.sum(1, dtype=torch.int32).to(torch.float32) * (1 / marks.shape[1])


class Catalogue:
    """The categories of a seed, which are searched on first use and cached.

    A category depends only on (seed, category), not on the order of requests or the number of processes.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lock = Lock()
        self.found = torch.zeros(CATEGORIES, dtype=torch.bool)
        self.parameters = torch.zeros((CATEGORIES, MOST_MAPS, 6))
        self.choice = torch.zeros((CATEGORIES, CHOICES), dtype=torch.int32)

    def get(self, category: Tensor) -> Systems:
        """Return the systems of the categories (int64 [n], on any device) on their device."""
        wanted = category.unique().cpu()
        with self.lock:
            missing = wanted[~self.found[wanted]]
            for part in missing.split(SEARCHED_AT_A_TIME):
                self._search(part, category.device)
        table = Systems(self.parameters, self.choice)
        systems = table[category.cpu()]
        return Systems(systems.parameters.to(category.device), systems.choice.to(category.device))

    def _search(self, missing: Tensor, device: torch.device) -> None:
        points = int(DENSITY * SEARCH_CANVAS * SEARCH_CANVAS)
        first = 0
        while len(missing):
            category = missing.to(device).repeat_interleave(ATTEMPTS_AT_A_TIME)
            attempt = torch.arange(ATTEMPTS_AT_A_TIME, device=device).repeat(len(missing)) + first
            systems = random_systems(self.seed, category, attempt)
            marks = plot(*walk(systems, self.seed, "fractal/search", category, points), SEARCH_CANVAS)
            kept = (fill_rate(marks) >= FILL).view(-1, ATTEMPTS_AT_A_TIME)
            success = kept.any(1)
            best = kept.to(torch.uint8).argmax(1) + torch.arange(len(missing), device=device) * ATTEMPTS_AT_A_TIME
            chosen = systems[best[success]]
            success = success.cpu()
            self.parameters[missing[success]] = chosen.parameters.cpu()
            self.choice[missing[success]] = chosen.choice.cpu()
            self.found[missing[success]] = True
            missing = missing[~success]
            first += ATTEMPTS_AT_A_TIME


@cache
def catalogue(seed: int) -> Catalogue:
    """Return the catalogue of a seed, one per process."""
    return Catalogue(seed)


def _weights(device: torch.device) -> Tensor:
    """Return the 25 factors on (a, b, c, d, e, f), float32 [25, 6]; row 0 changes nothing."""
    table = torch.ones((WEIGHTS, 6))
    for row in range(1, WEIGHTS):
        table[row, (row - 1) // len(FACTORS)] = FACTORS[(row - 1) % len(FACTORS)]
    return table.to(device)


def _draw(seed: int, index: Tensor, size: int, channels: int) -> Tensor:
    scale = max(2, -(-112 // size))
    canvas = size * scale
    points = int(DENSITY * canvas * canvas)
    word = philox.words(seed, "fractal/instance", index, 8)
    category, weight, patch = (
        philox.below(word[:, k], bound)[0] for k, bound in enumerate((CATEGORIES, WEIGHTS, PATCHES))
    )
    systems = catalogue(seed).get(category)
    weighted = Systems(systems.parameters * _weights(index.device)[weight][:, None], systems.choice)
    marks = plot(*walk(weighted, seed, "fractal/walk", index, points), canvas)
    ruined = (fill_rate(marks) < LEAST_FILL).nonzero()[:, 0]
    if len(ruined):
        marks[ruined] = plot(*walk(systems[ruined], seed, "fractal/walk", index[ruined], points), canvas)

    cover = _stamp(marks, canvas, philox.words(seed, "fractal/patch", category * PATCHES + patch, 1))
    cover = _pool(cover.view(-1, canvas, canvas), scale)
    for bit, dim in ((0, 1), (1, 2)):
        cover = torch.where(((word[:, 3] >> bit) & 1).bool()[:, None, None], cover.flip(dim), cover)
    level = philox.to_uniform(word[:, 4 : 4 + channels]) * 159.0 + 96.0
    image = cover[:, None] * (level * (1 / scale**2))[:, :, None, None]
    return image.round_().clamp_(0, 255).to(torch.uint8)


def _stamp(marks: Tensor, canvas: int, word: Tensor) -> Tensor:
    """Stamp a random 3×3 patch, never an empty one, at every mark: uint8 of the shape of `marks`, 0 or 1."""
    pattern, _ = philox.below(word, 511)
    # The empty margin lets a whole picture be shifted as one line.
    edge = canvas + 1
    width = marks.shape[1] - 2 * edge
    stamped = torch.zeros_like(marks)
    middle = stamped[:, edge : edge + width]
    for tap in range(9):
        shift = (tap // 3) * canvas + tap % 3
        middle |= marks[:, shift : shift + width] & (((pattern + 1) >> tap) & 1).to(torch.uint8)
    return stamped


def _pool(cover: Tensor, scale: int) -> Tensor:
    """Add up each scale × scale block of uint8 [n, canvas, canvas], sums below 256: float32 [n, size, size]."""
    for dim in (1, 2):
        cover = cover.unflatten(dim, (-1, scale))
        total = cover.select(dim + 1, 0).clone()
        for k in range(1, scale):
            total += cover.select(dim + 1, k)
        cover = total
    return cover.to(torch.float32)
