"""MedMNIST's two-dimensional sets, read from their official .npz files (medmnist.com, Yang et al. 2023)."""

import contextlib
from pathlib import Path
from typing import Any

from terrine.data.dataset import Dataset
from terrine.data.npz import from_arrays, read_arrays
from terrine.errors import InputError

# Written down, because importing medmnist to list them takes a second and makes a folder in the user's home.
NAMES = (
    "bloodmnist",
    "breastmnist",
    "chestmnist",
    "dermamnist",
    "octmnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
    "pathmnist",
    "pneumoniamnist",
    "retinamnist",
    "tissuemnist",
)

# Sides in pixels that MedMNIST publishes.
SIZES = (28, 64, 128, 224)

_ARRAYS = {f"{split}_{array}" for split in ("train", "val", "test") for array in ("images", "labels")}


def load(
    name: str, *, root: Path, size: int | None = None, download: bool = True, validation_apart: bool = False
) -> Dataset:
    """Return the MedMNIST set `name`; its training and validation splits together are the training data.

    validation_apart: the validation split is the public pool instead.

    Reads root/medmnist/NAME.npz or root/NAME.npz; for `size` 64, 128 or 224 NAME_64.npz and so on, and for any other
    size the largest published one that is not larger, to be resized by the caller. A missing file is downloaded into
    root/medmnist by medmnist when `download` is true. Raises InputError when a file is damaged or cannot be had, and
    for chestmnist, whose images have several labels each.
    """
    import medmnist  # a second; only who asks for one of these sets pays it

    info = medmnist.INFO[name]
    if "multi-label" in info["task"]:
        raise InputError(
            f"{name} gives several labels to an image ({len(info['label'])} findings), and Terrine learns one class "
            "per image. Make an npz file with one finding as the label (data.name: npz)."
        )
    native = max((side for side in SIZES if size is not None and side <= size), default=SIZES[0])
    file = f"{name}.npz" if native == SIZES[0] else f"{name}_{native}.npz"
    places = [root / "medmnist" / file, root / file]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        if not download:
            raise InputError(
                f"{file} is neither in {places[0].parent} nor in {root}, and data.download is off. Copy the file there "
                f"(from {info[_key('url', native)]}), point data.root at it, or set data.download to true."
            )
        found = _download(info, places[0], native)
    return from_arrays(
        read_arrays(found, _ARRAYS),
        name,
        str(found),
        class_names=[info["label"][str(index)] for index in range(len(info["label"]))],
        public_benchmark=True,
        validation_apart=validation_apart,
    )


def _download(info: dict[str, Any], place: Path, native: int) -> Path:
    """Let medmnist download its file to `place`; it checks the published MD5."""
    import medmnist

    import terrine.vision  # noqa: F401  medmnist's download imports torchvision, which needs this door

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        getattr(medmnist, info["python_class"])(split="test", root=str(place.parent), size=native, download=True)
    except Exception as error:  # no network, no space, a read-only folder: all have the same remedy
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)  # half a file would be taken for the whole next time
        raise InputError(
            f"{place.name} is neither in {place.parent} nor in {place.parent.parent}, and could not be downloaded. "
            f"Copy the file there (from {info[_key('url', native)]}), point data.root at it, or connect to the network."
        ) from error
    return place


def _key(what: str, native: int) -> str:
    return what if native == SIZES[0] else f"{what}_{native}"
