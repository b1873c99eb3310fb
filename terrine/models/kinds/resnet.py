"""ResNets for small images (`terrine.models.resnet`)."""

from typing import Any, Literal

from terrine.geometry import Size
from terrine.models.architecture import Built, Stemmed, Trained


class ResNet(Stemmed, Trained):
    """A residual network of 10, 18 or 34 layers: 512 features (He et al. 2016, section 3)."""

    kind: Literal["resnet10", "resnet18", "resnet34"] = "resnet18"

    def options(self, channels: int, size: Size) -> dict[str, Any]:
        return {"stem": self.stem}

    @staticmethod
    def network(kind: str, channels: int, size: Size, seed: int, *, stem: str = "standard") -> Built:
        from terrine.models.resnet import FEATURES, build_resnet

        return build_resnet(int(kind.removeprefix("resnet")), channels, stem), FEATURES
