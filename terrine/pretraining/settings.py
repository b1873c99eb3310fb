"""The settings of SimCLR; the defaults are those of DIET-PATE, or of the public code its numbers come from."""

from typing import Annotated

from terrine.settings import Field, Settings, Unit


class SimCLRSettings(Settings):
    """How a backbone is trained (`terrine.pretraining.simclr`)."""

    epochs: int = Field(50, ge=1)
    """Passes over the images; the last, incomplete batch of each is dropped."""
    batch: Annotated[int, Unit("images")] = Field(256, ge=2)
    """Images in a step, of all processes together; all others of the step are what each is told apart from."""
    learning_rate: float = Field(3e-4, gt=0)
    """Of Adam."""
    weight_decay: float = Field(1e-4, ge=0)
    """Of Adam."""
    temperature: float = Field(0.07, gt=0)
    """τ of the contrastive loss NT-Xent."""
    projection: Annotated[int, Unit("features")] = Field(128, ge=1)
    """Width of the head that is thrown away after training."""
    checkpoint_minutes: Annotated[float, Unit("minutes")] = Field(1.0, gt=0)
    """How often the state is saved, from which an interrupted training goes on."""
