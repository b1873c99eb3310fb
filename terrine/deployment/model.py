"""The student as it is used: a sealed folder in, probabilities out.

    >>> model = StudentModel.load(Path("data/release/terrine-digits/student"))
    >>> model.predict(images)           # uint8 or float [B, C, H, W] -> float32 [B, classes]

Nothing that is loaded can hold code: weights and reference images are safetensors, the rest is JSON.
"""

from __future__ import annotations

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
    "this student was made without released moments, so that images are normalised with the statistics of public ones. "
    "Better: release moments when a student is made (privacy.moments=0.05; parties and transcriptions have none), give "
    "64 images of your own (--reference), or let answers depend on their company, knowingly (--statistics current)."
)

OF_VOLUMES = ("plane", "view", "percentiles")
"""Settings of `Nifti` that a manifest tells of a run that learnt from volumes."""

SMALL = 64
"""Under `current` statistics a request of fewer images is filled up with reference images."""

FILLING = 16
"""Stored reference images that lend their statistics: the first ones, of which the student is most certain. More cost
time and lose accuracy (docs/serving.md)."""

LARGEST_BATCH = 512
"""Under `current` statistics a request of more images is cut into batches of at most so many."""

BLOCK = 16
"""Images computed at a time where they do not depend on each other. Every block has this very size, filled up with
blank images: a matrix product of another size rounds differently, and so an answer has the same bits in any request."""

_ACCELERATOR_BLOCK = 512
_MOST_REFERENCE = 512


class StudentModel:
    """A student and one kind of statistics. Safe to call from several threads; nothing in it ever changes.

    Under `current` statistics the answers of a request depend on all of its images and on no other request: it is cut
    into batches of at most `LARGEST_BATCH` images, as equal as can be, taken in turns so that a request that is sorted
    by class still has mixed batches; and one of fewer than `SMALL` images is filled up with reference images. Under
    `released`, `single`, `frozen` and `original` every answer depends on its image alone, on the CPU to the bit.
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
        # Images of the user's own kind are worth as much as those of a request; synthetic ones are not.
        filling = recorded = None
        weight = REFERENCE_WEIGHT
        if self.reference is not None:
            filling = _tensor(self.reference[: SMALL if own_reference else FILLING])
            recorded = filling
            if own_reference:
                most = min(len(self.reference), _MOST_REFERENCE)  # evenly spread over all
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
        """What whoever asks should know about its statistics, one sentence or two; None: nothing."""
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
        """Return the student in `folder`, every file checked against the digest in its manifest.

        statistics: None takes one under which no answer depends on company: `original` of a student that was trained so
        or has no batch normalisation, `frozen` with a `reference`, `released` where the folder holds released moments,
        or else `original`. reference: uint8 images [R, C, size, size] that take the place of the stored, synthetic
        ones: unlabelled images of the kind the student will meet, 64 or more, make `frozen` statistics about as good
        as `current` ones.

        Raises ArtefactError when a file is missing, damaged or was edited, InputError when `reference` does not fit,
        and SettingError for other statistics.
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
                if not has_moments:
                    raise SettingError(f"statistics: {NO_MOMENTS}")
                set_statistics(backbone, _read(folder / MOMENTS))
            for name, weight in {**backbone.state_dict(), **head.module().state_dict()}.items():
                # A forest's leaves have a threshold that everything is below.
                if torch.isnan(weight).any() or (name != "threshold" and torch.isinf(weight).any()):
                    raise ArtefactError(
                        f"The student in {folder} has NaN or an infinity in its weights ({name}), and would answer "
                        "nothing but NaN. Get it again, or train it again: run the stage 'student'."
                    )
            return cls(backbone, head, manifest, stored, chosen, device, own_reference=reference is not None)
        except KeyError as error:
            raise ArtefactError(f"The student in {folder} lacks {error}. Run the stage 'student' again.") from error

    def predict(self, images: np.ndarray | Tensor) -> np.ndarray:
        """Return class probabilities, float32 [B, classes].

        images: [B, channels, size, size], uint8 or floating point in [0, 1], B >= 1; for a student of a table floating
        point rows [B, columns]. Raises InputError that says what is wrong with any other.
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
        """Whether each probability is of a finding that may be there or not, whatever the others are."""
        return self.network.findings

    def label(self, probabilities: np.ndarray) -> str:
        """Return what an image's probabilities [classes] say: its class; or its findings above a half, if any.

        Of classes that have an order it is the median (`terrine.data.ordered`).
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
            probabilities: Of `predict`, [B, classes].
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
        """Compute the parts, on the CPU by as many single-threaded workers as torch had threads when this was made.

        One request at a time: two at once would only take each other's cores.
        """
        with self._lock:
            if self.device.type != "cpu":
                for part in parts:
                    compute(part)
                return
            if self._pool is None:
                # The workers live as long as the model: starting one takes as long as answering for an image.
                self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
            list(self._pool.map(compute, parts))
            torch.set_num_threads(self._threads)  # a worker's setting reaches threads that are started later


def check_images(images: np.ndarray, channels: int, size: Size) -> np.ndarray:
    """Return a batch of images as uint8 or float32 [B, channels, *size], contiguous, after checking it.

    images: uint8, 0 to 255, or floating point in [0, 1]. Raises InputError that says what is wrong: another dtype or
    shape, no image at all, NaN or an infinity, values outside the range.
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
    """Return rows of a table as float32 [B, columns], contiguous, after checking them.

    rows: floating point, encoded as the public rows of the student's training were. Raises InputError for another
    dtype or shape, for no row at all, and for NaN or an infinity.
    """
    if rows.dtype.kind != "f":
        raise InputError(
            f"The rows have dtype {rows.dtype}. Send floating point, encoded as the table's public rows were."
        )
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise InputError(f"The rows have shape {list(rows.shape)}, and this student takes [rows, {columns}].")
    if len(rows) == 0:
        raise InputError(f"There is no row in the batch. Send at least one, as [rows, {columns}].")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise InputError(f"Row {int(finite.argmin())} holds NaN or an infinity. Every value must be a finite number.")
    return np.ascontiguousarray(rows, dtype=np.float32)


def check_student(folder: Path) -> dict[str, Any]:
    """Return the manifest of the student in `folder`, every file checked, and what is said of it, too.

    Raises ArtefactError where the seal is broken, or the manifest is not that of a student.
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
            "or no such thing. Get the folder again from where it was published."
        )
    return manifest


def scale_of(manifest: dict[str, Any]) -> Scale | None:
    """Return the order of a student's classes; None where they have none.

    Raises ArtefactError where the manifest says what is no such thing.
    """
    told = manifest.get("scale")
    if told is None:
        return None
    names = manifest["class_names"]
    edges: Any = told.get("edges") if isinstance(told, dict) else None
    numbers = isinstance(edges, list) and all(type(edge) in (int, float) and abs(edge) < float("inf") for edge in edges)
    if (
        not isinstance(edges, list)
        or not numbers
        or (edges and (len(edges) != len(names) + 1 or sorted(set(edges)) != edges))
    ):
        raise ArtefactError("The student's manifest does not say what order its classes have. Get its folder again.")
    return Scale(tuple(map(str, names)), tuple(map(float, edges)))


def reading(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return how image files become what a student takes, as its records did: arguments of `read_images`.

    Raises ArtefactError where the manifest says what is no such thing.
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
