"""Settings of several backbones side by side, whose features are concatenated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from terrine.geometry import Size
from terrine.models.architecture import (
    ARCHITECTURES,
    Architecture,
    Built,
    Enlarged,
    Projected,
    Stemmed,
    build_backbone,
    known_to_timm,
)
from terrine.models.timm import Timm

_PARTS = ("scattering", "resnet18")
_NO_PARTS = ("concatenated", "columns", "timm")


class Concatenated(Stemmed, Enlarged, Projected):
    """Several architectures side by side; each gets the settings that it supports."""

    reference: ClassVar[Literal["queries", "pretraining"] | None] = "queries"

    kind: Literal["concatenated"] = "concatenated"
    parts: tuple[str, ...] | None = Field(None, min_length=2)
    """Backbone types or timm names to concatenate. null: scattering and resnet18."""

    @model_validator(mode="after")
    def _check_parts(self) -> Concatenated:
        known = [name for name in ARCHITECTURES.names() if name not in _NO_PARTS]
        for part in self.parts or ():
            if part not in known and not known_to_timm(part):
                raise ValueError(
                    f"parts names '{part}', which is no part: timm does not know it. Kinds of parts are: "
                    f"{', '.join(known)}. `terrine.vision.timm.list_models()` lists timm's"
                )
        return self

    @property
    def architectures(self) -> list[Architecture]:
        """Backbones of the concatenation, each with its own settings."""
        built: list[Architecture] = []
        for part in self.parts or _PARTS:
            known = part in ARCHITECTURES.names()
            kind = ARCHITECTURES.of(part) if known else Timm
            shared = {key: getattr(self, key) for key in ("projection", "stem", "enlarge") if key in kind.model_fields}
            built.append(kind(**{"kind" if known else "architecture": part}, **shared))
        return built

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return any(part.has_weights for part in self.architectures)

    def side(self, size: Size) -> Size | None:
        return self.enlarge or size

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"parts": [{"kind": part.kind, **part.options(channels, size)} for part in self.architectures]}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, parts: Sequence[Mapping[str, Any]] = ()) -> Built:
        """Return the network of `parts`, each {"kind": name, option: value, ...}."""
        from terrine.models.networks import ConcatenatedNetwork

        chosen = parts or [{"kind": part} for part in _PARTS]
        built = [build_backbone(**part, channels=channels, size=size, seed=seed) for part in chosen]
        widths = [backbone.feature_dim for backbone in built]
        return ConcatenatedNetwork([backbone.network for backbone in built], widths), sum(widths)
