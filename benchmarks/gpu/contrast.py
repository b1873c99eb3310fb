"""SimCLR in whole steps: on CUDA a training step is one graph, and views are drawn on a second stream.

`terrine.pretraining.simclr` launches the kernels of views and optimiser one by one, which takes most of the time on
small images. Here the random numbers of many steps are drawn at once, each order of the colour operations has a graph
that applies them, and forward pass, loss, backward pass and Adam are one graph: 2.4 ms a step of ResNet18 at 28x28
instead of 9.1 ms (H200). With `seconds`, the number of steps follows from the speed of the card.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from terrine.device import mixed_precision
from terrine.geometry import sides
from terrine.models.backbone import as_float
from terrine.pretraining import augment
from terrine.pretraining.augment import Views, ViewSettings, draw_views
from terrine.pretraining.simclr import nt_xent

_DRAWN = 64  # steps whose views are drawn together
_FIELDS = [each.name for each in fields(Views) if each.name not in ("colour_order", "blur_radius")]
_TRUTHS = ("flip", "grey")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training: `side` is that of the views in pixels, `warmup` a share of the steps."""

    side: int
    batch: int = 256
    learning_rate: float = 3e-4
    temperature: float = 0.07
    weight_decay: float = 1e-4
    projection: int = 128
    hidden: int | None = None
    warmup: float = 0.0
    views: ViewSettings = field(default_factory=ViewSettings)


def projector(width: int, recipe: Recipe) -> nn.Module:
    """Return SimCLR's projection head; with `hidden`, batch normalisation stands between its layers."""
    hidden = recipe.hidden or width
    between = [nn.BatchNorm1d(hidden)] if recipe.hidden else []
    return nn.Sequential(
        nn.Linear(width, hidden, bias=not between), *between, nn.ReLU(), nn.Linear(hidden, recipe.projection)
    )


def apply(images: Tensor, views: Views, side: int) -> Tensor:
    """Return views [B, C, side, side] of square images of any side; otherwise as `augment.apply_views`."""
    size = images.shape[-1]
    rows = _crop(views.top, views.height, size, side)
    columns = _crop(views.left, views.width, size, side)
    columns = torch.where(views.flip[:, None, None], columns.flip(1), columns)
    result = augment._along_both_axes(as_float(images), rows, columns)
    for operation in views.colour_order:
        result = augment._adjust_colour(result, views, operation)
    if images.shape[1] == 3:
        result = torch.where(views.grey[:, None, None, None], augment._grey(result), result)
    if views.blur_radius:
        blur = augment._blur_matrices(views.sigma, views.blur_radius, side)
        result = augment._along_both_axes(result, blur, blur)
    return result


def _crop(start: Tensor, length: Tensor, size: int, side: int) -> Tensor:
    """Return matrices [B, side, size] that stretch the samples from `start` over `length` to `side`, bilinearly."""
    centre = (torch.arange(side, device=start.device) + 0.5) * (length / side)[:, None] - 0.5
    source = start[:, None] + torch.minimum(centre.clamp(min=0), length[:, None] - 1)
    distance = source[:, :, None] - torch.arange(size, device=start.device)
    return (1 - distance.abs()).clamp_(min=0)


def contrast(
    network: nn.Module,
    width: int,
    images: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    steps: int | None = None,
    seconds: float = 0.0,
    report: Callable[[str], None] = print,
) -> dict[str, float | int | list[float]]:
    """Train `network` in place on uint8 images [N, C, S, S] on their device: `steps`, or as many as `seconds` allow.

    Returns steps, seconds, seconds per step and the loss in twenty parts of the training.
    """
    device = images.device
    graphs = device.type == "cuda"
    torch.manual_seed(seed)
    learner = nn.Sequential(network, projector(width, recipe)).to(device).train()
    if graphs:
        learner.to(memory_format=torch.channels_last)
    rate = torch.zeros((), device=device)
    adam = torch.optim.Adam(
        learner.parameters(),
        lr=rate if graphs else recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        fused=graphs,
        capturable=graphs,
    )
    count, channels = recipe.batch, images.shape[1]
    inputs = torch.zeros((2 * count, channels, recipe.side, recipe.side), device=device)
    if graphs:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    waiting = torch.zeros_like(inputs)
    total, counted = torch.zeros((), device=device), 0
    chosen = torch.zeros(count, dtype=torch.int64, device=device)
    drawn = torch.zeros((2, len(_FIELDS), count), device=device)
    radius = int(recipe.views.blur_kernel * min(sides(recipe.side))) // 2

    def step() -> None:
        with mixed_precision(device):
            projected = learner(inputs)
        loss = nt_xent(*projected.float().split(count), recipe.temperature)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        total.add_(loss.detach())

    def view(which: int, order: tuple[int, ...]) -> None:
        columns = dict(zip(_FIELDS, drawn[which].unbind(0), strict=True))
        columns |= {name: columns[name] > 0.5 for name in _TRUTHS}
        mine = Views(**columns, colour_order=order, blur_radius=radius)
        waiting[which * count : (which + 1) * count] = apply(images[chosen], mine, recipe.side)

    orders = sorted({_effective(order, channels) for order in itertools.permutations(range(4))})
    calls: dict[tuple[int, tuple[int, ...]], Callable[[], None]] = {}
    take_step: Callable[[], None] = step
    if graphs:
        before = {name: value.clone() for name, value in learner.state_dict().items()}
        inputs.copy_(torch.rand_like(inputs))
        pool = torch.cuda.graph_pool_handle()
        take_step = captured(step, pool)
        apart = torch.cuda.graph_pool_handle()  # views run beside the step
        for which, order in itertools.product(range(2), orders):
            calls[which, order] = captured(lambda which=which, order=order: view(which, order), apart)
        learner.load_state_dict(before)
        for state in adam.state.values():
            for value in state.values():
                value.zero_()
        total.zero_()

    generator = torch.Generator().manual_seed(seed)
    order_of_images = _orders(len(images), count, seed, device)
    side_stream = torch.cuda.Stream() if graphs else None
    ready, taken = (torch.cuda.Event() for _ in range(2)) if graphs else (None, None)
    tables: list[Tensor] = []
    kinds: list[tuple[int, ...]] = []

    def prepare(number: int) -> None:
        """Apply the views of a step to its images, into `waiting`."""
        nonlocal tables, kinds
        if number % _DRAWN == 0:
            tables = []
            for which in range(2):
                own = seed * 1_000_003 + 2 * number + which
                views = draw_views(count * _DRAWN, images.shape[-1], recipe.views, seed=own, device=device)
                table = torch.stack([getattr(views, name).float() for name in _FIELDS])
                tables.append(table.view(len(_FIELDS), _DRAWN, count).transpose(0, 1).contiguous())
            kinds = [
                _effective(tuple(torch.randperm(4, generator=generator).tolist()), channels) for _ in range(2 * _DRAWN)
            ]
        place = number % _DRAWN
        chosen.copy_(next(order_of_images))
        for which in range(2):
            drawn[which].copy_(tables[which][place])
            order = kinds[2 * place + which]
            calls[which, order]() if graphs else view(which, order)

    def prepare_beside(number: int) -> None:
        if side_stream is None:
            prepare(number)
            return
        with torch.cuda.stream(side_stream):
            side_stream.wait_event(taken)
            prepare(number)
            ready.record(side_stream)

    if graphs:
        torch.cuda.synchronize()
        taken.record()
    begun = time.monotonic()
    prepare_beside(0)
    losses: list[float] = []
    number, measured, planned = 0, 0.0, steps or 10**9
    every = max(1, (steps or 10**9) // 20)
    while number < planned:
        if graphs:
            torch.cuda.current_stream().wait_event(ready)
        inputs.copy_(waiting)
        if graphs:
            taken.record()
        if number + 1 < planned:
            prepare_beside(number + 1)
        if steps is None and number in (20, 120):  # how many steps fit: the schedule has to end
            if graphs:
                torch.cuda.synchronize()
            if number == 120 or seconds < 2:
                each = max(1e-4, (time.monotonic() - measured) / 100)
                planned = max(number + 1, number + int((seconds - (time.monotonic() - begun)) / each))
                every = max(1, planned // 20)
                report(f"{each * 1000:.2f} ms a step, {planned} steps")
            measured = time.monotonic()
        share = number / planned if planned < 10**9 else 0.0
        level = 0.5 * (1 + math.cos(math.pi * share))
        if recipe.warmup:
            length = recipe.warmup * (planned if planned < 10**9 else 5_000)
            level = min(level, (number + 1) / max(1.0, length))
        _set_rate(adam, rate, recipe.learning_rate * level)
        take_step()
        number += 1
        if number % every == 0 or number == planned:
            losses.append(round(float(total) / (number - counted), 4))
            total.zero_()
            counted = number
    if graphs:
        torch.cuda.synchronize()
    taken_seconds = time.monotonic() - begun
    network.eval()
    return {
        "steps": number,
        "pretraining_seconds": round(taken_seconds, 2),
        "ms_per_step": round(1000 * taken_seconds / max(1, number), 3),
        "losses": losses,
    }


def _set_rate(adam: torch.optim.Optimizer, rate: Tensor, value: float) -> None:
    if rate.is_cuda:
        rate.fill_(value)
        return
    for group in adam.param_groups:
        group["lr"] = value


def _effective(order: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Drop the operations that leave grey images as they are."""
    return order if channels == 3 else tuple(operation for operation in order if operation < 2)


def _orders(images: int, batch: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the image numbers of one batch after the other, epoch by epoch."""
    generator = torch.Generator(device=device).manual_seed(seed)
    while True:
        order = torch.randperm(images, generator=generator, device=device)
        yield from order[: images // batch * batch].split(batch)


def captured(call: Callable[[], None], pool: tuple[int, int]) -> Callable[[], None]:
    """Return what replays `call` as a CUDA graph, after three runs that warm it up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        call()
    return graph.replay
