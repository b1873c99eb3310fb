"""The section `pretraining`: SimCLR on synthetic images."""

from __future__ import annotations

from pydantic import Field

from tasks.config.queries import Images
from terrine.settings import Settings


class Pretraining(Settings):
    """SimCLR on synthetic images (ignored by a backbone without weights)."""

    images: Images | None = None
    epochs: int = Field(50, ge=1)
    batch: int = Field(256, ge=2)
    learning_rate: float = Field(3e-4, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    temperature: float = Field(0.07, gt=0)
    projection: int = Field(128, ge=1)
    checkpoint_minutes: float = Field(1.0, gt=0)
