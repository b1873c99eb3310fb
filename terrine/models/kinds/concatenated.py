"""Several backbones side by side: their features one after the other (`terrine.models.concatenated`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from terrine.models.architecture import ARCHITECTURES, Architecture, Enlarged, Projected, Stemmed
from terrine.models.kinds.timm import Timm, known_to_timm

if TYPE_CHECKING:
    from torch import nn

_NO_PARTS = ("concatenated", "columns", "timm")


class Concatenated(Projected, Stemmed, Enlarged, Architecture):
    """Several architectures side by side; each gets those of the settings that it has."""

    kind: Literal["concatenated"] = "concatenated"
    parts: tuple[str, ...] | None = Field(None, min_length=2)
    """The kinds side by side, or names of timm; null is scattering and resnet18."""

    @model_validator(mode="after")
    def _every_part_is_known(self) -> Concatenated:
        known = [name for name in ARCHITECTURES.names() if name not in _NO_PARTS]
        for part in self.parts or ():
            if part in _NO_PARTS:
                raise ValueError(
                    f"parts has '{part}', which cannot be a part. Name kinds of images, or architectures of timm"
                )
            if part not in known and not known_to_timm(part):
                raise ValueError(
                    f"parts names '{part}', which timm does not know. Kinds are: {', '.join(known)}. "
                    "`terrine.vision.timm.list_models()` lists timm's"
                )
        return self

    @property
    def architectures(self) -> list[Architecture]:
        """The parts, each with its own settings."""
        built = []
        for part in self.parts or ("scattering", "resnet18"):
            kind, name = (ARCHITECTURES.of(part), {"kind": part}) if part in ARCHITECTURES.names() else (Timm, {})
            shared = {key: getattr(self, key) for key in ("projection", "stem", "enlarge") if key in kind.model_fields}
            built.append(kind(**(name or {"architecture": part}), **shared))
        return built

    @property
    def has_weights(self) -> bool:
        return any(part.has_weights for part in self.architectures)

    @property
    def reference(self) -> Literal["queries"]:
        return "queries"

    def side(self, size: int) -> int | None:
        return self.enlarge or size

    def options(self, channels: int, size: int) -> dict[str, Any]:
        return {"parts": [{"kind": part.kind, **part.options(channels, size)} for part in self.architectures]}

    @staticmethod
    def network(
        kind: str,
        channels: int,
        size: int,
        seed: int,
        *,
        parts: Sequence[Mapping[str, Any]] = ({"kind": "scattering"}, {"kind": "resnet18"}),
    ) -> tuple[nn.Module, int]:
        """Return the network of parts, {"kind": a name, option: value, ...} each."""
        from terrine.models.concatenated import ConcatenatedNetwork
        from terrine.models.registry import build_backbone

        built = [build_backbone(**part, channels=channels, size=size, seed=seed) for part in parts]
        widths = [backbone.feature_dim for backbone in built]
        return ConcatenatedNetwork([backbone.network for backbone in built], widths), sum(widths)
