"""Queries from image programs, equal to those of a run with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from terrine.determinism.randomness import derive_seed
from terrine.errors import SettingError
from terrine.geometry import Size, in_json, size_of
from terrine.queries import Queries, in_turns, shares
from terrine.synthetic import program

if TYPE_CHECKING:
    import torch

    from terrine.data.dataset import Dataset


def draw(
    programs: str | Mapping[str, float],
    *,
    count: int,
    like: Dataset | None = None,
    size: Size = 28,
    channels: int = 1,
    seed: int = 0,
    batch: int = 500,
    device: torch.device | str = "cpu",
) -> Queries:
    """Draw synthetic images for teachers to vote on.

    Args:
        programs: Name of an image program (`terrine.synthetic.programs`), or programs with their weights.
        count: Number of images.
        like: Dataset that determines size and channels of the images.
        size: Side in pixels, 8 to 320, or height and width.
        channels: 1 for grey, 3 for colour.
        seed: Equal seeds give equal images on every machine.
        batch: Largest number of images that share batch statistics; all are of one program.
        device: Device that draws them.

    Returns:
        Queries of uint8 images [count, channels, *size].

    Raises:
        SettingError: an unknown program, an impossible size, or a table as `like`.
    """
    if like is not None:
        if like.column_names is not None:
            raise SettingError(f"{like.name} is a table: draw rows from its columns, not images from programs.")
        channels, size = like.train_images.shape[1], size_of(like.train_images.shape)
    weights = {programs: 1.0} if isinstance(programs, str) else dict(programs)
    counts = shares(count, weights)
    drawn = {
        kind: program.draw(
            kind, seed=derive_seed(seed, "queries"), first=0, count=number, size=size, channels=channels, device=device
        )
        .cpu()
        .numpy()
        for kind, number in counts.items()
    }
    turns = in_turns(counts, batch)
    origin = {
        "programs": weights,
        "count": count,
        "size": in_json(size),
        "channels": channels,
        "seed": seed,
        "batch": batch,
    }
    return Queries(
        np.concatenate([drawn[kind][start : start + number] for kind, start, number in turns]),
        np.split(np.arange(count), np.cumsum([number for _, _, number in turns])[:-1]),
        [kind for kind, _, _ in turns],
        origin,
    )
