"""ResNets for small images (`terrine.models.resnet`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from terrine.models.architecture import Stemmed, Trained

if TYPE_CHECKING:
    from torch import nn


class ResNet(Stemmed, Trained):
    """A residual network of 10 or 18 layers: 512 features (He et al. 2016, section 3)."""

    kind: Literal["resnet10", "resnet18"] = "resnet18"

    def options(self, channels: int, size: int) -> dict[str, Any]:
        return {"stem": self.stem}

    @staticmethod
    def network(kind: str, channels: int, size: int, seed: int, *, stem: str = "standard") -> tuple[nn.Module, int]:
        from terrine.models.resnet import FEATURES, build_resnet

        return build_resnet(int(kind.removeprefix("resnet")), channels, stem), FEATURES
