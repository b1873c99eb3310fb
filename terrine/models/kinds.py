"""The kinds of backbone a run may choose, and what may be said about one; reading a run's settings needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("scattering", "resnet10", "resnet18", "vgg9", "densenet121", "tiny_vit", "timm", "concatenated", "columns")

PARTS = tuple(kind for kind in KINDS if kind not in ("concatenated", "columns", "timm"))
"""Kinds that may stand side by side; architectures of timm may, too, by their own names."""

WITHOUT_WEIGHTS = ("scattering", "columns")


@dataclass(frozen=True)
class Choice:
    """What one may say about a backbone; what an architecture does not have is not looked at.

    kind: a name of `terrine.models.registry`. architecture: of kind `timm`, timm's name. parts: of kind `concatenated`,
    two kinds or more, names of timm among them. projection: features of the scattering transform. stem: `standard` or
    `small`, of ResNets and DenseNet121. enlarge: side to which images are resized for timm's architectures; None: as
    little as is needed.
    """

    kind: str
    architecture: str | None = None
    parts: Sequence[str] = ()
    projection: int = 1000
    stem: str = "standard"
    enlarge: int | None = None

    @property
    def has_weights(self) -> bool:
        """Whether there is anything to train."""
        if self.kind == "concatenated":
            return any(part not in WITHOUT_WEIGHTS for part in self.parts)
        return self.kind not in WITHOUT_WEIGHTS
