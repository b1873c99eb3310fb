"""Loading and prediction of a student: a checked folder in, probabilities out.

    >>> model = StudentModel.load(Path("data/release/terrine-digits/student"))
    >>> model.predict(images)           # uint8 or float [B, C, H, W] -> float32 [B, classes]

Loading executes no code: weights and reference images are safetensors, the rest is JSON.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from terrine.data.images import Files, Fit, refuse_not_finite
from terrine.data.ordered import Scale
from terrine.data.sources.nifti import Nifti
from terrine.deployment.manifest import check_seal
from terrine.deployment.network import REFERENCE_WEIGHT, ServingStatistics, StudentNetwork
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.geometry import Size, as_size, is_size, sides
from terrine.heads import Head, head_from_arrays
from terrine.models.backbone import Backbone
from terrine.models.backbone_files import load_backbone
from terrine.models.released_statistics import set_statistics
from terrine.models.statistics import has_batch_norm

if TYPE_CHECKING:
    import pandas as pd

BACKBONE, HEAD, REFERENCE = "backbone.safetensors", "head.safetensors", "reference.safetensors"
MOMENTS = "moments.safetensors"
"""Noisy statistics of the private images (`terrine.models.released_statistics`), if the run released any."""
NO_MOMENTS = (
    "this student has no released moments, so images are normalised with the statistics of public ones. Remedies: "
    "release moments during training (privacy.moments=0.05; not with parties or transcriptions), pass 64 unlabelled "
    "images (--reference), or let predictions depend on the whole request (--statistics current)."
)

OF_VOLUMES = ("plane", "view", "percentiles")
"""Settings of `Nifti` that the manifest contains if the records are volumes."""

SMALL = 64
"""Smallest number of images in a request that uses no reference images under `current` statistics."""

FILLING = 16
"""Number of stored reference images used for statistics: the first ones, of which the student is most certain. More
images cost time and accuracy (docs/serving.md)."""

LARGEST_BATCH = 512
"""Largest batch under `current` statistics."""

BLOCK = 16
"""Images computed at a time if they are independent. Smaller blocks are padded with blank images: matrix products of
other sizes round differently, and predictions would depend on the size of the request."""

_ACCELERATOR_BLOCK = 512
_MOST_REFERENCE = 512


class StudentModel:
    """A student with one kind of statistics. Immutable and thread-safe.

    Under `current` statistics a prediction depends on the whole request. A request is split into batches of at most
    `LARGEST_BATCH` images of similar size, taken in turns so that sorted requests give mixed batches. A request of
    fewer than `SMALL` images is filled up with reference images. Under all other statistics a prediction depends only
    on its image, bit for bit on the CPU.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        description: dict[str, Any],
        reference: np.ndarray | None,
        statistics: ServingStatistics,
        device: torch.device | str = "cpu",
        *,
        own_reference: bool = False,
    ) -> None:
        self.channels, self.size = backbone.channels, backbone.size
        self.takes_rows = backbone.describe()["kind"] == "columns"
        self.shape: tuple[int, ...] = (self.channels,) if self.takes_rows else backbone.shape
        self.reading = reading(description | {"size": self.size, "channels": self.channels})
        self.class_names: list[str] = [str(name) for name in description["class_names"]]
        self.scale = scale_of(description)
        self.description = description
        self.statistics: ServingStatistics = statistics
        self.device = torch.device(device)
        self.reference = None if reference is None else self._check(reference)
        if len(self.class_names) != head.classes or head.features != backbone.feature_dim:
            raise ArtefactError(
                f"The student's parts do not fit together: {len(self.class_names)} class names, a head from "
                f"{head.features} features to {head.classes} classes, a backbone of {backbone.feature_dim} features."
            )
        # Reference images from the user count as much as those of a request; synthetic ones count less.
        filling = recorded = None
        weight = REFERENCE_WEIGHT
        if self.reference is not None:
            filling = _tensor(self.reference[: SMALL if own_reference else FILLING])
            recorded = filling
            if own_reference:
                most = min(len(self.reference), _MOST_REFERENCE)  # spread evenly over all of them
                chosen = np.linspace(0, len(self.reference) - 1, most).round().astype(int)
                recorded = _tensor(np.ascontiguousarray(self.reference[chosen]))
            weight = float(len(filling)) if own_reference else REFERENCE_WEIGHT
        self.network = StudentNetwork(backbone, head, statistics, recorded, weight).to(self.device)
        self._filling = None if filling is None else filling.to(self.device)
        self._block = BLOCK if self.device.type == "cpu" else _ACCELERATOR_BLOCK
        self._threads = torch.get_num_threads()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def note(self) -> str | None:
        """Note about unsuitable statistics, or None."""
        own = self.description["statistics"] == "original" or MOMENTS in self.description["digests"]
        lost = self.statistics == "original" and not own and has_batch_norm(self.network)
        return f"Note: {NO_MOMENTS}" if lost else None

    @classmethod
    def load(
        cls,
        folder: Path,
        statistics: ServingStatistics | None = None,
        *,
        reference: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> StudentModel:
        """Load the student in `folder` after checking every file against its manifest.

        Args:
            folder: The student's folder.
            statistics: Statistics; None selects statistics with which predictions are independent: `original` if the
                student was trained with them or has no batch normalisation, `frozen` with a `reference`, `released` if
                the folder holds released moments, otherwise `original`.
            reference: uint8 images [R, C, size, size] that replace the stored, synthetic ones. With 64 or more
                unlabelled images of the kind to be predicted, `frozen` statistics are about as good as `current` ones.
            device: Device to compute on.

        Raises:
            ArtefactError: A file is missing, damaged or was changed.
            InputError: The images in `reference` have another size or number of channels.
            SettingError: The statistics are unknown or not available.
        """
        folder = Path(folder)
        manifest = check_student(folder)
        try:
            stored = reference
            if stored is None and REFERENCE in manifest["digests"]:
                stored = _read(folder / REFERENCE)["images"]
            known = get_args(ServingStatistics)
            if statistics is not None and statistics not in known:
                raise SettingError(f"statistics: '{statistics}' is unknown. Use one of {', '.join(known)}.")
            backbone, head = load_backbone(folder / BACKBONE), head_from_arrays(_read(folder / HEAD))
            has_moments = MOMENTS in manifest["digests"]
            chosen: ServingStatistics = "original"
            if statistics is not None:
                chosen = statistics
            elif manifest["statistics"] != "original" and has_batch_norm(backbone.network):
                chosen = "frozen" if reference is not None else "released" if has_moments else "original"
            if chosen == "released":
                if manifest["statistics"] == "original":
                    raise SettingError(
                        "statistics: this student is only served with the statistics of its training, which include "
                        "released moments if there are any. Leave --statistics out."
                    )
                if not has_moments:
                    raise SettingError(f"statistics: {NO_MOMENTS}")
                set_statistics(backbone, _read(folder / MOMENTS))
            for name, weight in {**backbone.state_dict(), **head.module().state_dict()}.items():
                # Leaves of a forest have an infinite threshold.
                if torch.isnan(weight).any() or (name != "threshold" and torch.isinf(weight).any()):
                    raise ArtefactError(
                        f"The student in {folder} has NaN or infinite weights ({name}). Get it again, or run the stage "
                        "'student' again."
                    )
            return cls(backbone, head, manifest, stored, chosen, device, own_reference=reference is not None)
        except KeyError as error:
            raise ArtefactError(f"The student in {folder} lacks {error}. Run the stage 'student' again.") from error

    def with_head(self, head: Head) -> StudentModel:
        """Return this model with another head on the same features."""
        other = copy.copy(self)
        other.network = copy.deepcopy(self.network)
        other.network.head = head.module().to(self.device).requires_grad_(False).eval()
        return other

    def predict(self, images: np.ndarray | Tensor) -> np.ndarray:
        """Return class probabilities, float32 [B, classes].

        Args:
            images: [B, channels, size, size], uint8 or floating point in [0, 1], B >= 1; for a table's student,
                floating-point rows [B, columns].

        Raises:
            InputError: Type, shape or range are invalid.
        """
        array = images.detach().cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        checked = _tensor(self._check(array))
        parts = batches(len(checked)) if self.statistics == "current" else blocks(len(checked), self._block)
        result = np.empty((len(checked), len(self.class_names)), dtype=np.float32)

        def compute(indices: np.ndarray) -> None:
            result[indices] = self._answer(checked[indices])

        self._side_by_side(compute, parts)
        return result

    @property
    def findings(self) -> bool:
        """Whether the classes are findings with independent probabilities."""
        return self.network.findings

    def label(self, probabilities: np.ndarray) -> str:
        """Return the label for probabilities [classes].

        The label is the most probable class; for ordered classes the median (`terrine.data.ordered`); for several
        findings all those above a half.
        """
        if self.scale is not None:
            return self.class_names[int(self.scale.classes(probabilities[None])[0])]
        if not self.findings:
            return self.class_names[int(probabilities.argmax())]
        found = [name for name, each in zip(self.class_names, probabilities, strict=True) if each > 0.5]
        return "; ".join(found)

    def answers(self, probabilities: np.ndarray, index: pd.Index | None = None) -> pd.DataFrame:
        """Return predictions with class names: `class`, `probability`, and `probability of C` for each class C.

        For ordered classes the class is the median, and the column `number` is the expected number or grade. For
        several findings the class lists those above a half, and the probability is the largest.

        Args:
            probabilities: Class probabilities from `predict`, [B, classes].
            index: Index of the result.
        """
        import pandas as pd

        values = np.asarray(probabilities, np.float64)
        labels = [self.label(row) for row in values]
        chosen = (
            values.max(axis=1) if self.scale is None else values[np.arange(len(values)), self.scale.classes(values)]
        )
        columns: dict[str, Any] = {} if self.scale is None else {"number": self.scale.numbers(values)}
        columns |= {"class": np.array(labels, object), "probability": chosen}
        columns |= {f"probability of {name}": values[:, number] for number, name in enumerate(self.class_names)}
        return pd.DataFrame(columns, index=index)

    def _check(self, images: np.ndarray) -> np.ndarray:
        return check_rows(images, self.channels) if self.takes_rows else check_images(images, self.channels, self.size)

    @torch.no_grad()
    def _answer(self, images: Tensor) -> np.ndarray:
        count = len(images)
        images = images.to(self.device)
        if self.statistics != "current":
            blank = images.new_zeros((self._block - count if self.device.type == "cpu" else 0, *images.shape[1:]))
            answers = self.network(torch.cat([images, blank]))[:count]
        elif count < SMALL and self._filling is not None:
            answers = self.network.filled(images, self._filling)
        else:
            answers = self.network(images)
        return answers.cpu().numpy()

    def _side_by_side(self, compute: Callable[[np.ndarray], None], parts: Sequence[np.ndarray]) -> None:
        """Compute the parts, on the CPU with one single-threaded worker for each of torch's threads.

        Requests are computed one after the other, since two at once would share the cores.
        """
        with self._lock:
            if self.device.type != "cpu":
                for part in parts:
                    compute(part)
                return
            if self._pool is None:
                # The workers are reused: starting one takes as long as predicting an image.
                self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
            list(self._pool.map(compute, parts))
            torch.set_num_threads(self._threads)  # workers change the default of later threads


def check_images(images: np.ndarray, channels: int, size: Size) -> np.ndarray:
    """Return a batch of images as contiguous uint8 or float32 [B, channels, *size].

    Args:
        images: uint8, 0 to 255, or floating point in [0, 1].
        channels: Expected number of channels.
        size: Expected height and width.

    Raises:
        InputError: Dtype or shape is wrong, the batch is empty, or values are not finite or out of range.
    """
    height, width = sides(size)
    expected = f"[images, {channels}, {height}, {width}]"
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(
            f"The images have dtype {images.dtype}. Send uint8 values from 0 to 255, or floating point from 0 to 1."
        )
    if images.ndim != 4 or images.shape[1:] != (channels, height, width):
        raise InputError(
            f"The images have shape {list(images.shape)}, and this student takes {expected}: resize them, and give one "
            "image as a batch of one."
        )
    if len(images) == 0:
        raise InputError(f"There is no image in the batch. Send at least one, as {expected}.")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    refuse_not_finite(images, "The batch")
    lowest, highest = images.min(), images.max()
    if lowest < 0 or highest > 1:
        raise InputError(
            f"Floating-point images must lie in [0, 1], and these have values from {lowest:g} to {highest:g}. Divide "
            "values from 0 to 255 by 255, or send them as uint8."
        )
    return np.ascontiguousarray(images, dtype=np.float32)


def check_rows(rows: np.ndarray, columns: int) -> np.ndarray:
    """Return encoded rows of a table as contiguous float32 [B, columns].

    Args:
        rows: Floating point, encoded as in training.
        columns: Expected number of columns.

    Raises:
        InputError: The rows have another dtype or shape, the batch is empty, or values are not finite.
    """
    if rows.dtype.kind != "f":
        raise InputError(f"The rows have dtype {rows.dtype}. Send floating point, encoded as encoding.json describes.")
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise InputError(f"The rows have shape {list(rows.shape)}, and this student takes [rows, {columns}].")
    if len(rows) == 0:
        raise InputError(f"There is no row in the batch. Send at least one, as [rows, {columns}].")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise InputError(f"Row {int(finite.argmin())} holds NaN or an infinity. Every value must be a finite number.")
    return np.ascontiguousarray(rows, dtype=np.float32)


def check_student(folder: Path) -> dict[str, Any]:
    """Return the manifest of the student in `folder` after checking every file and the description.

    Raises:
        ArtefactError: A file was changed, or the manifest does not describe a student.
    """
    manifest = check_seal(folder)
    names = manifest.get("class_names")
    if (
        not (isinstance(names, list) and names and all(isinstance(name, str | int) for name in names))
        or not is_size(manifest.get("size"))
        or not (type(manifest.get("channels")) is int and manifest["channels"] > 0)
        or not isinstance(manifest.get("statistics"), str)
    ):
        raise ArtefactError(
            f"The manifest in {folder} is not that of a student: class_names, size, channels or statistics are missing "
            "or invalid. Get the folder again from where it was published."
        )
    return manifest


def scale_of(manifest: dict[str, Any]) -> Scale | None:
    """Return the scale of a student's ordered classes, or None.

    Raises:
        ArtefactError: The manifest's description of the scale is invalid.
    """
    scale = manifest.get("scale")
    if scale is None:
        return None
    names = manifest["class_names"]
    edges: Any = scale.get("edges") if isinstance(scale, dict) else None
    if (
        not isinstance(edges, list)
        or not all(type(edge) in (int, float) and abs(edge) < float("inf") for edge in edges)
        or (edges and (len(edges) != len(names) + 1 or sorted(set(edges)) != edges))
    ):
        raise ArtefactError("The student's manifest does not say what order its classes have. Get its folder again.")
    return Scale(tuple(map(str, names)), tuple(map(float, edges)))


def reading(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `read_images` with which the student's records were read.

    Raises:
        ArtefactError: The manifest's description of the reading is invalid.
    """
    given = manifest.get("reading", {})
    given = given if isinstance(given, dict) else {"fit": None}
    fit, window, files = given.get("fit", "stretch"), given.get("window"), given.get("files", "images")
    numbers = window is None or (
        isinstance(window, list) and len(window) == 2 and all(type(end) in (int, float) for end in window)
    )
    known = fit in get_args(Fit) and files in get_args(Files)
    volumes: Nifti | None = None
    try:
        if not known or not numbers or (window is not None and not window[0] < window[1]):
            raise ValueError
        if files == "nifti":
            volumes = Nifti(path=Path(), window=window, **{key: given["volumes"][key] for key in OF_VOLUMES})
    except (KeyError, TypeError, ValueError) as error:
        raise ArtefactError("The student's manifest does not say how images are read. Get its folder again.") from error
    sides = {"size": as_size(manifest["size"]), "channels": manifest["channels"]}
    how = {"fit": fit, "window": None if window is None else tuple(window), "files": files}
    return {**sides, **how, "volumes": volumes}


def batches(count: int) -> list[np.ndarray]:
    """Return the batches of a request under current statistics: index arrays that cover 0 .. count - 1."""
    number = -(-count // LARGEST_BATCH)
    return [np.arange(first, count, number) for first in range(number)]


def blocks(count: int, size: int = BLOCK) -> list[np.ndarray]:
    """Return consecutive index arrays of at most `size` images each."""
    return [np.arange(first, min(first + size, count)) for first in range(0, count, size)]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _read(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise ArtefactError(f"{path} cannot be read ({error}). Run the stage 'student' again.") from error
