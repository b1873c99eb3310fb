"""Architectures of timm, and the smallest image side that an architecture accepts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from terrine.errors import SettingError
from terrine.geometry import Size, in_json, sides
from terrine.models.architecture import Built, Enlarged, Trained, build_backbone, known_to_timm

SIDES = (32, 64, 128, 224)
"""Candidate sides for enlarging images that an architecture does not accept; the first that works is used."""

_TINY_VIT = "tiny_vit_21m_224"


class Timm(Enlarged, Trained):
    """Any architecture of timm."""

    kind: Literal["timm"] = "timm"
    architecture: str = Field(min_length=1)
    """timm's name of the architecture, such as efficientnet_b0."""
    from_tensorflow: bool = False
    """Pad convolutions and scale pixels to [-1, 1] as TensorFlow does, for weights trained there."""
    levels: bool = False
    """Use the average feature maps of all levels of the network instead of only the last. Recommended for enlarged
    images, which contain little detail."""
    mirrored: bool = False
    """Average features over an image and its mirror image. Use false for letters and digits."""

    outputs: Literal["features", "scores"] = "features"
    """`scores`: keep the classifier and return its scores, as Prom-PATE's label mappings expect."""

    @model_validator(mode="after")
    def _check_architecture(self) -> Timm:
        if not known_to_timm(self.architecture):
            raise ValueError(
                f"architecture names '{self.architecture}', which timm does not know. "
                "`terrine.vision.timm.list_models()` lists timm's"
            )
        if self.levels and self.outputs == "scores":
            raise ValueError("levels=true uses feature maps, and outputs=scores the classifier. Set levels to false")
        return self

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        own = self.model_dump(include={"architecture", "from_tensorflow", "levels", "mirrored", "outputs"})
        return own | enlarged(self.architecture, self.enlarge, channels, size)

    @staticmethod
    def network(  # type: ignore[override]
        kind: str,
        channels: int,
        size: Size,
        seed: int,
        *,
        architecture: str,
        enlarge: int | None = None,
        from_tensorflow: bool = False,
        levels: bool = False,
        mirrored: bool = False,
        outputs: str = "features",
    ) -> Built:
        from terrine.models.networks import TimmNetwork

        how = {"from_tensorflow": from_tensorflow, "levels": levels, "mirrored": mirrored}
        network = TimmNetwork(architecture, channels, size, enlarge, **how, classifier=outputs == "scores")
        return network, network.feature_dim


class TinyViT(Enlarged, Trained):
    """A small vision transformer (Wu et al. 2022, table 1), as timm has it."""

    kind: Literal["tiny_vit"] = "tiny_vit"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return enlarged(_TINY_VIT, self.enlarge, channels, size)

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, enlarge: int | None = None) -> Built:
        return Timm.network(kind, channels, size, seed, architecture=_TINY_VIT, enlarge=enlarge)


def enlarged(architecture: str, side: int | None, channels: int, size: Size) -> dict[str, int]:
    """Return the option to enlarge images to `side` or to the smallest side that works, or {} if unnecessary.

    Raises SettingError for an architecture that accepts none of the sides tried.
    """
    if side is not None:
        return {"enlarge": side}
    error: SettingError | None = None
    for enlarge in ({}, *({"enlarge": side} for side in SIDES if side > max(sides(size)))):
        try:
            build_backbone("timm", channels=channels, size=size, seed=0, architecture=architecture, **enlarge)
        except SettingError as refused:
            error = refused
            continue
        return enlarge
    raise SettingError(
        f"backbone: {architecture} takes images of side {in_json(size)} neither as they are nor enlarged to "
        f"{', '.join(map(str, SIDES))} ({error}). Set backbone.enlarge to the side it was made for."
    )
