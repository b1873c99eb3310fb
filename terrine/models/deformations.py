"""Small random deformations that do not change what an image shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from terrine.settings import Settings, Unit

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Deformations(Settings):
    """Largest amount of each deformation; amounts are uniform between minus and plus this value."""

    rotation: Annotated[float, Unit("degrees")] = Field(15.0, ge=0, le=180)
    """Largest rotation. Use 180 for cells and tissue, which have no orientation."""
    scale: float = Field(0.12, ge=0, lt=1)
    """Largest change of scale, as a share of the image size."""
    shear: float = Field(0.2, ge=0)
    """Largest shear, as a share of the image height."""
    shift: float = Field(1 / 7, ge=0)
    """Largest shift, as a share of half the image side."""


def deform(images: Tensor, deformations: Deformations, generator: torch.Generator) -> Tensor:
    """Return float images [B, C, H, W], each under its own random affine map; borders are mirrored.

    `generator` lives on the CPU, so a seed gives the same deformations on every device.
    """
    return deform_by(images, deformations, draw_amounts(len(images), generator))


def draw_amounts(count: int, generator: torch.Generator) -> Tensor:
    """Draw the relative rotation, scale, shear and two shifts of each of `count` images: [count, 5], -1 to 1."""
    import torch

    return torch.cat([torch.rand(count, columns, generator=generator) * 2 - 1 for columns in (1, 1, 1, 2)], dim=1)


def deform_by(images: Tensor, deformations: Deformations, amounts: Tensor) -> Tensor:
    """Return float images [B, C, H, W], each deformed by its own row of amounts [B, 5]; borders are mirrored."""
    import torch
    import torch.nn.functional as F

    turned, scaled, slanted, shift = amounts.split((1, 1, 1, 2), dim=1)
    angle, scale = turned * math.radians(deformations.rotation), 1 + scaled * deformations.scale
    shear, shift = slanted * deformations.shear, shift * deformations.shift
    cosine, sine = angle.cos(), angle.sin()
    matrix = torch.stack([cosine, shear - sine, shift[:, :1], sine, cosine, shift[:, 1:]], dim=1).view(-1, 2, 3)
    matrix[:, :, :2] *= scale[:, :, None]
    grid = F.affine_grid(matrix.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
