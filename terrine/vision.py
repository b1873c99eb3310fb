"""The one door through which torchvision and timm are imported.

The ordinary torchvision wheel is built against a CUDA torch. Beside a CPU-only torch its compiled library cannot be
loaded, and `import torchvision` fails with "operator torchvision::nms does not exist", because torchvision describes
the shapes of two operators (`nms` and `qnms`) that only the library would have declared. timm imports torchvision and
fails with it. This module loads the library where it loads, and declares the two schemas where it does not; then
transforms, models, datasets, timm and medmnist work. `torchvision.ops.nms` and torchvision's own JPEG and PNG codecs
stay without an implementation on such a machine: use Pillow.

    >>> from terrine.vision import timm, torchvision  # instead of: import timm, torchvision
    >>> torchvision.models.resnet18(num_classes=10).fc.out_features
    10

Importing this module costs nothing much; timm and torchvision are imported when they are first asked for (seconds).
A third package that imports torchvision by itself needs only `import terrine.vision` before it.
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
    """Load torchvision's compiled library, or declare what it would have declared.

    The returned Library must stay alive: it takes its schemas with it when it is collected.
    """
    specification = importlib.util.find_spec("torchvision")
    if specification is None or specification.origin is None:
        return None  # whoever asks for it is told
    for compiled in sorted(Path(specification.origin).parent.glob("_C*")):
        try:
            torch.ops.load_library(str(compiled))
        except (OSError, RuntimeError):
            continue  # built against another torch
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
