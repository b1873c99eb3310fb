"""A ResNet10 pretrained on synthetic images, whose features of all levels are projected: settings."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from terrine.geometry import Size
from terrine.models.architecture import Built, Projected, Trained
from terrine.models.deformations import Deformations


class ResNetLevels(Projected, Trained):
    """Features of all levels of a ResNet10 with the small stem, projected to deformation-invariant directions.

    For colour photographs: the network is trained by SimCLR on images drawn by programs, which takes minutes on a GPU,
    or read from a file for `resnet10` with stem `small`. The projection is learned from the queries.
    """

    kind: Literal["resnet_levels"] = "resnet_levels"
    mirrored: bool = True
    """Average features over an image and its mirror image. Use false for letters and digits."""
    deformations: Deformations = Deformations(rotation=10, scale=0.15, shift=0.15)
    """Deformations that do not change what an image shows."""

    learns_projection: ClassVar[bool] = True
    reference: ClassVar[Literal["queries", "pretraining"] | None] = "queries"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"mirrored": self.mirrored, "projection": self.projection}

    @staticmethod
    def network(
        kind: str, channels: int, size: Size, seed: int, *, mirrored: bool = True, projection: int | None = 1000
    ) -> Built:
        from terrine.models.projected import LevelsNetwork

        network = LevelsNetwork(channels, seed, mirrored, projection)
        return network, network.feature_dim
