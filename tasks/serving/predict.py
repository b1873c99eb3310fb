"""predict: what a student says about image files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.serving.student_source import image_files, read_reference
from terrine.data.pictures.files import read_images
from terrine.deployment.model import StudentModel, check_student
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import ENCODING
from terrine.device import resolve_device
from terrine.errors import ArtefactError


@dataclass(frozen=True)
class Prediction:
    """The answer for one file: the likeliest class, its probability, and the probabilities of all classes by name.

    Of several findings the label is those likelier than not; of classes in an order the median, and what they say
    together is the number (`terrine.data.ordered`).
    """

    file: Path
    label: str
    probability: float
    probabilities: dict[str, float]
    number: float | None = None


def open_student(
    folder: Path, statistics: ServingStatistics | None = None, reference: Path | None = None, device: str = "auto"
) -> StudentModel:
    """Return the student in `folder`, with own reference images where `reference` (a folder or file) names some.

    Raises what `StudentModel.load` and `read_images` raise.
    """
    manifest = check_student(folder)
    own = read_reference(reference, manifest)
    return StudentModel.load(folder, statistics, reference=own, device=resolve_device(device))


def predict_files(
    model: StudentModel, paths: Sequence[Path], failed: dict[Path, str] | None = None
) -> list[Prediction]:
    """Return predictions for image files and for all images in folders, in order, answered as one request.

    Files are read as the pipeline read the records: images turned by EXIF, or DICOM files, resized as a whole, grey or
    colour as the student takes them. Raises InputError naming files that cannot be read. With `failed`, these are left
    out instead, if others remain, and it is given why.
    """
    if model.takes_rows:
        raise ArtefactError(
            f"This student takes rows of a table, and carries no {ENCODING} that says how they are encoded: it was "
            "written by an older version. Train it again: run the stage 'student'."
        )
    files = image_files(paths, model.reading["files"])
    probabilities = model.predict(read_images(files, **model.reading, failed=failed))
    files = [file for file in files if file not in (failed or {})]
    numbers = [None] * len(files) if model.scale is None else model.scale.numbers(probabilities).tolist()
    found = []
    for file, row, number in zip(files, probabilities, numbers, strict=True):
        label, each = model.label(row), {name: float(p) for name, p in zip(model.class_names, row, strict=True)}
        found.append(Prediction(file, label, float(row.max()) if number is None else each[label], each, number))
    return found
