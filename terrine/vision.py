"""Lazy imports of torchvision and timm, which also work with a CPU-only torch.

The compiled library of the usual torchvision wheel cannot be loaded with a CPU-only torch, so `import torchvision`
fails with "operator torchvision::nms does not exist": torchvision refers to two operators (`nms` and `qnms`) that only
this library declares. This module declares them if necessary. Transforms, models, datasets, timm and medmnist then
work, but not `torchvision.ops.nms` and torchvision's image codecs; use Pillow.

    >>> from terrine.vision import timm, torchvision  # instead of: import timm, torchvision
    >>> torchvision.models.resnet18(num_classes=10).fc.out_features
    10

Another package that imports torchvision only needs `import terrine.vision` before it.
"""

import importlib
import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from terrine.extras import from_extra

if TYPE_CHECKING:
    import timm
    import torchvision

__all__ = ["timm", "torchvision"]

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _declare_operators() -> torch.library.Library | None:
    """Load torchvision's compiled library, or declare its operators.

    The returned Library must stay referenced, because its schemas are removed with it.
    """
    specification = importlib.util.find_spec("torchvision")
    if specification is None or specification.origin is None:
        return None  # importing torchvision raises the error
    for compiled in sorted(Path(specification.origin).parent.glob("_C*")):
        try:
            torch.ops.load_library(str(compiled))
        except (OSError, RuntimeError):
            continue  # built against another version of torch
    missing = [schema for name, schema in _SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return None
    fragment = torch.library.Library("torchvision", "FRAGMENT")
    for schema in missing:
        fragment.define(schema)
    return fragment


_operators = _declare_operators()


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with warnings.catch_warnings():
        # torchvision warns that its image codecs cannot be loaded; Terrine reads images with Pillow.
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        with from_extra("pipeline", "Models and data of torchvision and timm"):
            return importlib.import_module(name)
