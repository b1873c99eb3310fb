"""A backbone that suits the images: the stem and the size that an architecture needs are found, not asked for.

Small images do not survive every stock architecture: a DenseNet's stem halves them away, a transformer's windows do
not divide them. `build_chosen` takes the stem that works, and enlarges images for architectures of timm by as little as
they need. What was chosen stands in the backbone's description, so a stored backbone is built again without a search.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from terrine import vision
from terrine.errors import SettingError
from terrine.models.backbone import Backbone
from terrine.models.densenet import SMALLEST_STANDARD
from terrine.models.kinds import KINDS, Choice
from terrine.models.registry import build_backbone

SIDES = (32, 64, 128, 224)
"""Sides to which images are enlarged for an architecture that does not take them as they are, the first that works."""

_logger = logging.getLogger(__name__)


def build_chosen(choice: Choice, *, channels: int, size: int, seed: int) -> Backbone:
    """Return the backbone of a choice with its initial weights, on the CPU.

    Raises SettingError for a name that nobody knows, and for an architecture that takes the images at no side tried.
    """
    options = _options(choice, channels, size)
    return build_backbone(choice.kind, channels=channels, size=size, seed=seed, **options)


def _options(choice: Choice, channels: int, size: int) -> dict[str, Any]:
    match choice.kind:
        case "scattering":
            return {"projection": choice.projection}
        case "resnet10" | "resnet18":
            return {"stem": choice.stem}
        case "densenet121":
            return {"stem": choice.stem if size >= SMALLEST_STANDARD else "small"}
        case "timm":
            if choice.architecture is None or not vision.timm.is_model(choice.architecture):
                raise SettingError(
                    f"backbone.architecture={choice.architecture}: timm has no such model. "
                    "`python -c 'import timm; print(timm.list_models())'` lists them."
                )
            enlarge = {"enlarge": choice.enlarge or _needed_side("timm", choice.architecture, channels, size)}
            return {"architecture": choice.architecture, **_known(enlarge)}
        case "tiny_vit":
            return _known({"enlarge": choice.enlarge or _needed_side("tiny_vit", None, channels, size)})
        case "concatenated":
            return {"parts": [_part(choice, part, channels, size) for part in choice.parts]}
    return {}


def _part(choice: Choice, part: str, channels: int, size: int) -> dict[str, Any]:
    """Return a part of a concatenated backbone as its builder takes it."""
    own = replace(choice, kind=part, parts=())
    if part not in KINDS:
        own = replace(own, kind="timm", architecture=part)
    return {"kind": own.kind, **_options(own, channels, size)}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _needed_side(kind: str, architecture: str | None, channels: int, size: int) -> int | None:
    """Return the smallest side an architecture of timm takes, None where it takes the images as they are."""
    options = {} if architecture is None else {"architecture": architecture}
    name = architecture or kind
    error: SettingError | None = None
    for side in (None, *(side for side in SIDES if side > size)):
        try:
            build_backbone(kind, channels=channels, size=size, seed=0, **options, **_known({"enlarge": side}))
        except SettingError as refused:
            error = refused
            continue
        if side is not None:
            _logger.info("%s does not take images of side %d: they are enlarged to %d.", name, size, side)
        return side
    raise SettingError(
        f"backbone: {name} takes images of side {size} neither as they are nor enlarged to {', '.join(map(str, SIDES))}"
        f" ({error}). Set backbone.enlarge to the side it was made for."
    )
