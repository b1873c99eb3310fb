"""The section `backbone`: the feature extractor that teachers and student share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from terrine.models.kinds import KINDS, PARTS, Choice
from terrine.settings import AtHome, Settings


class Deformed(Settings):
    """The largest amount of each deformation that a learned projection forgets."""

    rotation: float = Field(15.0, ge=0, le=180)
    """Degrees; 180 for cells and tissue, which have no upright."""
    scale: float = Field(0.12, ge=0, lt=1)
    shear: float = Field(0.2, ge=0)
    shift: float = Field(1 / 7, ge=0)
    """As a share of half the image's side."""


class Backbone(Settings):
    """The feature extractor that teachers and student share."""

    kind: Literal[
        "scattering",
        "resnet10",
        "resnet18",
        "vgg9",
        "densenet121",
        "tiny_vit",
        "timm",
        "concatenated",
        "columns",
    ] = "scattering"
    """`timm`: any architecture of timm. `concatenated`: several side by side. `columns`: of a table; its columns as
    they are."""
    architecture: str | None = Field(None, min_length=1)
    """`timm`: its name there, for example efficientnet_b0."""
    parts: tuple[str, ...] | None = Field(None, min_length=2)
    """`concatenated`: the kinds side by side, or names of timm; null is scattering and resnet18."""
    weights: Annotated[Path | None, AtHome(unless=(None, "timm"))] = None
    """Weights from elsewhere instead of pretraining: a file (safetensors, or a state dict of torch), or `timm` for the
    ones that timm publishes. The statement says so."""
    enlarge: int | None = Field(None, ge=8, le=1024)
    """`timm`, `tiny_vit`: side to which images are resized first; null is as little as the architecture needs."""
    projection: int = Field(1000, ge=1)
    """Number of features that the scattering coefficients are projected to."""
    invariance: bool = False
    """Scattering: learn the projection on deformed query images, in closed form, instead of drawing it at random."""
    deformations: Deformed | None = None
    """Scattering with invariance: what is done to an image that leaves it the same; null is what leaves a digit one."""
    fitted_to: Literal["queries", "pretraining"] = "queries"
    """Scattering: the images that its projection and its original statistics are fitted to. `pretraining` where the
    queries are real ones that it is not to know."""
    stem: Literal["standard", "small"] = "standard"
    """ResNet, DenseNet: the stock 7x7 stem, or a 3x3 stem that keeps the resolution of small images. DenseNet121 takes
    the small one wherever the stock one fails."""

    @model_validator(mode="after")
    def _parameters_of_the_kind(self) -> Backbone:
        for key, kinds in (
            ("architecture", ("timm",)),
            ("parts", ("concatenated",)),
            ("enlarge", ("timm", "tiny_vit", "concatenated")),
        ):
            if getattr(self, key) is not None and self.kind not in kinds:
                raise ValueError(
                    f"{key}={getattr(self, key)} has no meaning for kind={self.kind}. Set backbone.{key}=null"
                )
        if self.kind == "timm" and self.architecture is None:
            raise ValueError(
                "architecture is missing: kind=timm needs timm's name of it. Set backbone.architecture, for example "
                "to efficientnet_b0"
            )
        if self.weights is not None and (not self.has_weights or self.kind == "concatenated"):
            raise ValueError(
                f"weights={self.weights} has no meaning for kind={self.kind}. Set backbone.weights=null, or "
                "backbone.kind to what the weights were made for"
            )
        if self.deformations is not None and not self.invariance:
            raise ValueError(
                "deformations have no meaning without invariance. Set backbone.invariance=true, or "
                "backbone.deformations=null"
            )
        if self.fitted_to != "queries" and self.kind != "scattering":
            raise ValueError(
                f"fitted_to={self.fitted_to} has no meaning for kind={self.kind}: it is for kind=scattering. Set "
                "backbone.fitted_to=queries"
            )
        if self.kind == "concatenated" and self.invariance:
            raise ValueError(
                "invariance=true has no meaning for kind=concatenated: the projection is learned for kind=scattering "
                "alone. Set backbone.invariance=false"
            )
        names = [name for name in self.choice.parts if name not in KINDS]
        names += [self.architecture] if self.architecture is not None else []
        for nested in ("concatenated", "columns", "timm"):
            if nested in self.choice.parts:
                raise ValueError(
                    f"parts has '{nested}', which cannot be a part. Name kinds of images, or architectures of timm"
                )
        if names:
            from terrine import vision  # slow to import, and few runs need it

            unknown = [name for name in names if not vision.timm.is_model(name)]
            if unknown:
                key = "architecture" if self.kind == "timm" else "parts"
                known = "" if self.kind == "timm" else f" Kinds are: {', '.join(PARTS)}."
                raise ValueError(
                    f"{key} names '{unknown[0]}', which timm does not know.{known} `terrine.vision.timm.list_models()` "
                    "lists timm's"
                )
        return self

    @property
    def choice(self) -> Choice:
        """What the models are asked for."""
        parts = self.parts or (("scattering", "resnet18") if self.kind == "concatenated" else ())
        return Choice(self.kind, self.architecture, parts, self.projection, self.stem, self.enlarge)

    @property
    def has_weights(self) -> bool:
        """Whether the backbone is pretrained, and can be fine-tuned."""
        return self.choice.has_weights

    @property
    def pretrained_here(self) -> bool:
        """Whether the backbone is trained by this project, on synthetic images."""
        return self.has_weights and self.weights is None

    def identity(self) -> dict[str, Any]:
        """Return the parameters that the backbone depends on, as JSON values.

        Those that are not set are left out, and so is where weights from elsewhere lie: they go by their own digest.
        """
        unread = {"invariance", "deformations"} if self.has_weights else set()
        own = self.model_dump(mode="json", exclude={"weights", *unread})
        if self.fitted_to == "queries":
            del own["fitted_to"]
        return {key: value for key, value in own.items() if value is not None}
