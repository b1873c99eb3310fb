"""Settings of SimCLR; see `terrine.pretraining.simclr` for the source of the defaults."""

from typing import Annotated, Literal

from terrine.settings import Field, Settings, Unit


class SimCLRSettings(Settings):
    """Settings of contrastive pretraining (`terrine.pretraining.simclr`)."""

    epochs: int = Field(50, ge=1)
    """Passes over the images. The last, incomplete batch of each pass is dropped."""
    batch: Annotated[int, Unit("images")] = Field(256, ge=2)
    """Images per step over all processes. Each image is contrasted with all others of its step."""
    learning_rate: float = Field(3e-4, gt=0)
    """Adam learning rate."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate schedule: cosine to zero over all steps, or constant."""
    weight_decay: float = Field(1e-4, ge=0)
    """Adam weight decay."""
    temperature: float = Field(0.07, gt=0)
    """Temperature τ of the contrastive loss (NT-Xent)."""
    projection: Annotated[int, Unit("features")] = Field(128, ge=1)
    """Width of the projection head, which is discarded after training."""
    checkpoint_minutes: Annotated[float, Unit("minutes")] = Field(1.0, gt=0)
    """Interval between checkpoints, from which interrupted training resumes."""
