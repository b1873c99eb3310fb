"""Settings of the wavelet scattering transform (`terrine.models.wavelets`), and how it is fitted to public images."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from terrine.geometry import Size
from terrine.models.architecture import Built, Projected
from terrine.models.deformations import Deformations


class Scattering(Projected):
    """A fixed wavelet transform with a projection (Bruna and Mallat 2013, section 2)."""

    kind: Literal["scattering"] = "scattering"
    invariance: bool = False
    """Fit the projection in closed form to deformed query images instead of drawing it at random."""
    deformations: Deformations | None = None
    """With invariance: deformations that do not change what an image shows; null for those of digits."""
    fitted_to: Literal["queries", "pretraining"] = "queries"
    """Images to which the projection and the original statistics are fitted. Use `pretraining` if the queries are real
    images that the backbone must not depend on."""

    @model_validator(mode="after")
    def _deformations_are_for_invariance(self) -> Scattering:
        if self.deformations is not None and not self.invariance:
            raise ValueError(
                "deformations have no meaning without invariance. Set backbone.invariance=true, or "
                "backbone.deformations=null"
            )
        return self

    @property
    def learns_projection(self) -> bool:  # type: ignore[override]
        return self.invariance

    @property
    def reference(self) -> Literal["queries", "pretraining"]:  # type: ignore[override]
        return self.fitted_to

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"projection": self.projection}

    @staticmethod
    def network(
        kind: str, channels: int, size: Size, seed: int, *, orientations: int = 8, projection: int | None = 1000
    ) -> Built:
        from terrine.models.wavelets import ScatteringNetwork

        network = ScatteringNetwork(channels, size, seed, orientations, projection)
        return network, network.feature_dim
