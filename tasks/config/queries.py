"""The section `queries`: the images that teachers vote on, and which of them are asked first."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from terrine.queries import shares
from terrine.settings import Automatic, Settings, Unit

Weights = dict[str, Annotated[float, Field(gt=0)]]


class Images(Settings):
    """A number of synthetic images from weighted sources."""

    count: Annotated[int, Unit("images")] = Field(ge=1)
    """How many."""
    sources: Weights = Field(min_length=1)
    """Image programs and their weights, for example {dead_leaves: 1, stylegan: 1}; `terrine images` draws them."""

    def shares(self) -> dict[str, int]:
        """Return how many images each source draws: whole numbers that add up (largest remainders)."""
        return shares(self.count, self.sources)


class Queries(Images):
    """The images teachers vote on, in fixed batches of one source each."""

    count: Annotated[int, Unit("images"), Automatic(1000)] = Field(1000, ge=1)
    """How many images there are to be asked about; the budget ends it earlier."""
    sources: Weights = Field(default={"dead_leaves": 1.0, "stylegan": 1.0}, min_length=1)
    """Image programs and their weights; `pool` is the real images that data.pool declares public."""
    batch: Annotated[int, Unit("images")] = Field(500, ge=1)
    """Images of one source that share their batch statistics."""
    select: Literal["order", "balanced", "uncertain", "diverse"] = "order"
    """Order of the queries: as they were drawn, or as a student of the answers released so far suggests."""
    rounds: Annotated[int, Unit("rounds")] = Field(1, ge=1, le=100)
    """How often the student looks at what was released and chooses again."""
