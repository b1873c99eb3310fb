"""Guided queries: public images moved towards what a student of the released answers does not know.

The student is public, so its gradient is. Here the pixels of query images climb the entropy of its answer, by a few
steps of Adam (Kingma and Ba 2015) and within a bound on the change, and the teachers are asked about what comes out, in
the place of the images it was made from. Everything that is read is public or released: it costs no privacy.

A backbone under current statistics couples the images of a batch. So images are moved in fixed batches of one source,
all of a batch together, and these batches belong to them from then on, as those of other queries do.

On the CPU each batch is moved by one thread: equal arguments give equal bytes on any number of cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from terrine.classifiers import Head
from terrine.determinism.parallel import side_by_side
from terrine.errors import InputError
from terrine.models.backbone import Backbone
from terrine.models.statistics import Statistics, batch_statistics, fewest
from terrine.queries import Queries

RADIUS = 0.1
"""Most that an image may change: the root mean square over its pixels, where black is 0 and white is 1."""
STEPS = 10
STEP_LENGTH = 0.02
"""Of Adam, in the same units: a pixel whose gradient keeps its sign could go twice as far as the bound."""

_LEAST_ENTROPY = 1e-30

IMAGES, STARTS, BATCHES = "guided", "guided_start", "guided_batch"
"""What the arrays of a release are called that hold guided queries."""


@dataclass(frozen=True, eq=False)
class Guided:
    """Guided queries in the order they were made in.

    images: uint8 [guided, C, H, W]. starts: int64 [guided], the number in the pool of the image each was made from.
    batches: index arrays that cover 0 .. guided - 1 in order, the images that share their batch statistics.
    """

    images: np.ndarray
    starts: np.ndarray
    batches: list[np.ndarray]

    def sources(self, pool: Queries) -> list[str]:
        """Return the name of each batch's source: `guided` and the source of the images it was made from."""
        of_image = np.empty(len(pool.images), dtype=np.int64)
        for number, batch in enumerate(pool.batches):
            of_image[batch] = number
        return [f"guided {pool.sources[of_image[self.starts[batch[0]]]]}" for batch in self.batches]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as a release holds them."""
        batch = np.empty(len(self.starts), dtype=np.int64)
        for number, members in enumerate(self.batches):
            batch[members] = number
        return {IMAGES: self.images, STARTS: self.starts, BATCHES: batch}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Guided:
        """Return what `to_arrays` described."""
        batch = np.asarray(arrays[BATCHES])
        members = [np.flatnonzero(batch == number) for number in range(int(batch.max(initial=-1)) + 1)]
        return cls(np.asarray(arrays[IMAGES]), np.asarray(arrays[STARTS]), members)


def none_yet(pool: Queries) -> Guided:
    """Return no guided queries, of the geometry of a pool's images."""
    return Guided(np.empty((0, *pool.images.shape[1:]), np.uint8), np.empty(0, np.int64), [])


def joined(first: Guided, second: Guided) -> Guided:
    """Return the guided queries of `first`, then those of `second`; their batches stay apart."""
    return Guided(
        np.concatenate([first.images, second.images]),
        np.concatenate([first.starts, second.starts]),
        [*first.batches, *(batch + len(first.starts) for batch in second.batches)],
    )


def guide(
    backbone: Backbone,
    head: Head,
    pool: Queries,
    unasked: np.ndarray,
    count: int,
    *,
    statistics: Statistics,
    most: int,
    device: torch.device | str = "cpu",
) -> Guided:
    """Make at most `count` guided queries from images of the pool that were not asked, the first ones in their order.

    The order of a pool is as good as chance, so that starts are of all sources and all sorts; which of them matter is
    left to the gradient. An image that would be alone of its source is left out under current statistics.

    Args:
        backbone: Moved to `device`, where it stays.
        unasked: int64, ascending: numbers in the pool that may be used.
        statistics: The teachers', who will be asked.

    Raises:
        InputError: numbers that are not in the pool, or images or a head that do not fit the backbone.
    """
    groups = deal(unasked, pool, count, most=most, fewest=fewest(statistics))
    if not groups:
        return none_yet(pool)
    starts = np.concatenate(groups)
    ends = np.cumsum([len(group) for group in groups])
    batches = [np.arange(end - len(group), end) for group, end in zip(groups, ends, strict=True)]
    return Guided(uncertain_images(backbone, head, pool.images[starts], batches, statistics, device), starts, batches)


def deal(unasked: np.ndarray, pool: Queries, count: int, *, most: int, fewest: int) -> list[np.ndarray]:
    """Return the first `count` of the numbers `unasked`, in batches of one source and near-equal sizes up to `most`.

    A source of which there would be less than `fewest` is left out. Sources take turns. Raises InputError for numbers
    that are not in the pool.
    """
    unasked = np.asarray(unasked, np.int64)
    if len(unasked) and not (unasked.min() >= 0 and unasked.max() < len(pool.images)):
        raise InputError(f"Starts run to {unasked.max()}, but there are {len(pool.images)} query images.")
    chosen = unasked[:count]
    turns = []
    for members in pool.by_source().values():
        own = chosen[np.isin(chosen, members)]
        if len(own) >= max(fewest, 1):
            # A stray last image joins the others: a batch of one has no statistics.
            parts = np.array_split(own, max(1, min(-(-len(own) // most), len(own) // fewest)))
            turns.extend(((number + 0.5) / len(parts), part) for number, part in enumerate(parts))
    return [part for _, part in sorted(turns, key=lambda turn: turn[0])]


def uncertain_images(
    backbone: Backbone,
    head: Head,
    images: np.ndarray,
    batches: Sequence[np.ndarray],
    statistics: Statistics,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """Return images near the given ones about which the student is less sure: uint8 [N, C, H, W], in their order.

    Of each image the root mean square of the change is at most `RADIUS`. batches: index arrays that cover the images;
    those of each are moved together.
    """
    device = torch.device(device)
    backbone.to(device)
    module = head.module().to(device).requires_grad_(False)
    out = np.empty_like(images)

    def move(batch: np.ndarray) -> None:
        start = torch.from_numpy(np.ascontiguousarray(images[batch])).to(device).float().div_(255)
        change = torch.zeros_like(start).requires_grad_()
        optimiser = torch.optim.Adam([change], lr=STEP_LENGTH, maximize=True)
        for _ in range(STEPS):
            # Of one image the logarithm climbs where the entropy does; in a batch it lets no image that is uncertain
            # already drown out the others, and of an image that the student is quite sure of it still has a gradient.
            height = entropy(backbone, module, start + change, statistics).clamp_min(_LEAST_ENTROPY).log()
            (change.grad,) = torch.autograd.grad(height.sum(), change)
            optimiser.step()
            with torch.no_grad():
                size = change.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
                change.mul_(RADIUS / size.clamp_min(RADIUS))
                change.copy_(torch.maximum(torch.minimum(change, 1 - start), -start))
        # Whole grey levels, rounded towards the start: the bound holds for what teachers are shown.
        levels = torch.trunc(change.detach() * 255).to(torch.int16).cpu().numpy()
        out[batch] = np.clip(images[batch].astype(np.int16) + levels, 0, 255).astype(np.uint8)

    for _ in side_by_side(move, batches, device):
        pass
    return out


def entropy(backbone: Backbone, head: torch.nn.Module, images: Tensor, statistics: Statistics) -> Tensor:
    """Return the entropy, in nats, of the student's answer on every image of one batch, differentiable: [B].

    images: float [B, C, H, W] in [0, 1]; head: features [B, F] to scores [B, classes].
    """
    with batch_statistics(backbone, statistics):
        logarithms = torch.log_softmax(head(backbone(images)), dim=1)
    return -(logarithms.exp() * logarithms).sum(dim=1)
