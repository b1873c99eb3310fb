"""What a run may spend on its answers, and who draws their noise."""

from typing import Literal

from terrine.settings import Field, Settings


class Budget(Settings):
    """What a run may spend on its answers, and who draws their noise."""

    epsilon: float = Field(8.0, gt=0)
    """Budget of the run: answers stop before their exact ε would pass it."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ of the run's guarantee."""
    noise: Literal["secure", "replay"] = "secure"
    """`secure`: from the operating system. `replay`: from the seed, for ablations; NOT PRIVATE."""
    where: Literal["local", "parties"] = "local"
    """`local`: one process counts the votes. `parties`: each party keeps its own (see `collaboration`)."""
