"""MedMNIST's two-dimensional sets, read from their official .npz files (medmnist.com, Yang et al. 2023)."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any, Literal

from terrine.data.dataset import Dataset
from terrine.data.ordered import OrderedLabels
from terrine.data.public import refuse_other_bytes
from terrine.data.source import Downloaded, Progress, ThreeSplits
from terrine.data.sources.npz import from_arrays, read_arrays
from terrine.errors import InputError
from terrine.extras import from_extra
from terrine.geometry import sides

SIZES = (28, 64, 128, 224)
"""Sides in pixels that MedMNIST publishes."""

_ARRAYS = {f"{split}_{array}" for split in ("train", "val", "test") for array in ("images", "labels")}


class MedMNIST(OrderedLabels, Downloaded, ThreeSplits):
    """One dataset of MedMNIST. Its validation split joins the training records unless `validation` or `pool` is set.

    The file is root/medmnist/NAME.npz or root/NAME.npz, or NAME_64.npz and so on for the largest published size up to
    `size`. chestmnist has several findings and needs `findings`; retinamnist's classes are `grades`.
    """

    # Listed here because importing medmnist takes a second and creates a folder in the user's home.
    name: Literal[
        "bloodmnist", "breastmnist", "chestmnist", "dermamnist", "octmnist", "organamnist", "organcmnist",
        "organsmnist", "pathmnist", "pneumoniamnist", "retinamnist", "tissuemnist",
    ]  # fmt: skip

    def read(self, at: Path = Path(), seed: int = 0, progress: Progress | None = None) -> Dataset:
        with from_extra("pipeline", "MedMNIST's sets"):
            import medmnist  # takes a second

        info, root = medmnist.INFO[self.name], at / self.root
        if ("multi-label" in info["task"]) != bool(self.findings):
            known = ", ".join(info["label"].values())
            raise InputError(
                f"Images of {self.name} have one class ({known}). Remove data.findings."
                if self.findings
                else f"Images of {self.name} have several findings. Set data.findings to two or more of {known}."
            )
        native = max((side for side in SIZES if side <= max(sides(self.size))), default=SIZES[0])
        file = f"{self.name}.npz" if native == SIZES[0] else f"{self.name}_{native}.npz"
        places = [root / "medmnist" / file, root / file]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            if not self.download:
                raise InputError(
                    f"There is no {file} in {places[0].parent} or {root}, and data.download is false. Copy the file "
                    f"there (from {info[_key('url', native)]}), set data.root, or set data.download to true."
                )
            found = _download(info, places[0], native)
        with found.open("rb") as stream:
            official = hashlib.file_digest(stream, "md5").hexdigest() == info[_key("MD5", native)]
        refuse_other_bytes(self.name, str(found), official=official, public=self.public_benchmark)
        return from_arrays(
            read_arrays(found, _ARRAYS)[0],
            str(found),
            name=self.name,
            class_names=[info["label"][str(index)] for index in range(len(info["label"]))],
            public_benchmark=official,
            validation=self.validation_split,
            kind=self,
        )


def _download(info: dict[str, Any], place: Path, native: int) -> Path:
    """Download a file to `place`; medmnist checks the published MD5."""
    import medmnist

    import terrine.vision  # noqa: F401  prepares torchvision, which medmnist imports

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        getattr(medmnist, info["python_class"])(split="test", root=str(place.parent), size=native, download=True)
    except Exception as error:  # no network, no space, a read-only folder: all have the same remedy
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)  # it may be incomplete
        raise InputError(
            f"There is no {place.name} in {place.parent} or {place.parent.parent}, and it could not be downloaded. "
            f"Copy the file there (from {info[_key('url', native)]}), set data.root, or connect to the network."
        ) from error
    return place


def _key(what: str, native: int) -> str:
    return what if native == SIZES[0] else f"{what}_{native}"
