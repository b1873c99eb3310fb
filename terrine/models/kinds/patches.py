"""A dictionary of patches, learned from public images (`terrine.models.patches`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from terrine.geometry import Size
from terrine.models.architecture import Architecture, Built, Projected
from terrine.models.kinds.scattering import PROJECTION_BATCHES, Deformations
from terrine.settings import Unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from terrine.models.backbone import Backbone
    from terrine.npy import Rows


class Patches(Projected, Architecture):
    """Likeness to words of a dictionary of patches, projected to what small deformations leave (Coates and Ng 2011).

    For colour photographs, of which a wavelet transform says less.
    """

    kind: Literal["patches"] = "patches"
    words: Annotated[int, Unit("patches")] = Field(400, ge=2, multiple_of=2)
    """In the dictionary."""
    mirrored: bool = True
    """An image and its mirror image mean the same. Not so for letters and digits."""
    deformations: Deformations = Deformations(rotation=10, scale=0.15, shift=0.15)
    """What is done to an image that leaves it the same."""

    @property
    def learns_projection(self) -> bool:
        return True

    @property
    def reference(self) -> Literal["queries"]:
        return "queries"

    def adapt(
        self, backbone: Backbone, images: Rows, batches: Sequence[np.ndarray], *, seed: int, device: torch.device | str
    ) -> None:
        from terrine.models.invariance import learn_projection
        from terrine.models.patches import learn_dictionary

        own = batches[:PROJECTION_BATCHES]
        learn_dictionary(backbone.network, images, own, seed=seed)
        learn_projection(backbone, images, own, seed=seed, device=device, deformations=self.deformations)
        super().adapt(backbone, images, batches, seed=seed, device=device)

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"words": self.words, "mirrored": self.mirrored, "projection": self.projection}

    @staticmethod
    def network(
        kind: str,
        channels: int,
        size: Size,
        seed: int,
        *,
        words: int = 400,
        mirrored: bool = True,
        projection: int | None = 1000,
    ) -> Built:
        from terrine.models.patches import PatchNetwork

        network = PatchNetwork(channels, size, seed, words, mirrored, projection)
        return network, network.feature_dim
