"""Load a student from a run, a folder or MLflow, and predict image files or CSV files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config.presets import project_root, runs, selected_run
from tasks.runtime.run import chosen_run
from tasks.runtime.store import Folders
from terrine.data.csv_file import read_csv
from terrine.data.image_files import read_images
from terrine.data.images import MEDICAL, SUFFIXES, Files
from terrine.deployment.model import StudentModel, check_student, reading
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import ENCODING, TableStudent, takes_table
from terrine.device import resolve_device
from terrine.errors import ArtefactError, InputError, SettingError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

OWN_STATISTICS = (
    "NOT COVERED BY ANY ε: your own images were given as a reference. Their means and variances, without noise, "
    "are in exported files and affect every prediction. Keep both where those images may be."
)
"""Text that replaces the statement if a student normalises with the user's images."""


@dataclass(frozen=True)
class RowPredictions:
    """The predictions for the rows of one CSV file.

    Attributes:
        file: The file.
        answers: Data frame indexed by the line in which a row starts: the row's id if the table has ids, a number if
            classes are ordered, class and probabilities.
        notes: Sentences about ignored columns and unknown words.
    """

    file: Path
    answers: pd.DataFrame
    notes: list[str]


def student_folder(run: str | None = None, folder: Path | None = None, model: str | None = None) -> Path:
    """Return the folder of a student.

    Args:
        run: A run of this project. Default: the one selected last or, if it is not finished, the last finished one.
        folder: A folder that holds a student, such as one that `terrine export` wrote.
        model: The URI of an MLflow model, for example models:/terrine-digits/1.

    Raises:
        SettingError: More than one source was given.
        ArtefactError: No student was found.
    """
    if sum(source is not None for source in (run, folder, model)) > 1:
        raise SettingError("Give one of --run, --folder and --model: each names a student.")
    if model is not None:
        return _from_mlflow(model)
    if folder is not None:
        return folder / "student" if (folder / "student").is_dir() else folder
    found = chosen_run(run or _default_run()).folders.student
    if not found.is_dir():
        raise ArtefactError(f"There is no student in {found}. Make the run first: terrine run {found.parent.name}")
    return found


def _default_run() -> str:
    """Return the run selected last or, if it is not finished, the one that was finished last."""
    root = project_root()
    selected = selected_run(root)
    finished = {name: made for name in runs(root) if (made := Folders(root, name)).finished and made.student.is_dir()}
    if selected in finished or not finished:
        return selected
    last = max(finished, key=lambda name: finished[name].evaluation.stat().st_mtime)
    logging.getLogger(__name__).warning(
        "Run %s is not finished. Using run %s, which was finished last.", selected, last
    )
    return last


def _from_mlflow(model: str) -> Path:
    import mlflow
    from mlflow.exceptions import MlflowException

    try:  # the project's own tracking database, if there is a project
        run = chosen_run()
        mlflow.set_tracking_uri(run.database(run.params.tracking.uri))
    except (SettingError, ArtefactError):
        pass
    try:
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=model))
    except (MlflowException, OSError) as error:
        raise ArtefactError(
            f"MLflow has no model {model} ({error}). `terrine compare --ui` shows those it has."
        ) from error
    students = [path.parent for path in sorted(folder.glob("artifacts/*/manifest.json"))]
    if not students:
        raise ArtefactError(f"{model} is not a student that Terrine logged: it has no artifacts/student.")
    return students[0]


def open_student(
    folder: Path, statistics: ServingStatistics | None = None, reference: Path | None = None, device: str = "auto"
) -> StudentModel | TableStudent:
    """Return the student in a folder.

    Args:
        folder: The student's folder.
        statistics: Statistics that images are normalised with; None: the student's default.
        reference: Own reference images, a folder or file.
        device: Device to predict on.

    Raises:
        ArtefactError: The folder holds no student, or a damaged one.
        InputError: The reference images cannot be read.
        SettingError: Options for images were given for the student of a table.
    """
    manifest = check_student(folder)
    if takes_table(folder):
        refuse_image_options(statistics, reference)
        return TableStudent.load(folder, device=resolve_device(device))
    student = StudentModel.load(
        folder, statistics, reference=read_reference(reference, manifest), device=resolve_device(device)
    )
    if student.takes_rows:
        raise ArtefactError(f"This student takes rows of a table, and carries no {ENCODING}. Run the stage 'student'.")
    return student


def refuse_image_options(statistics: ServingStatistics | None, reference: Path | None) -> None:
    """Raise SettingError if a table's student gets options that only image students have."""
    for name, value in (("--statistics", statistics), ("--reference", reference)):
        if value is not None:
            raise SettingError(f"{name} is about images, and this student takes rows of a table. Leave it out.")


def read_reference(path: Path | None, manifest: dict[str, Any]) -> np.ndarray | None:
    """Return own reference images for the student with this manifest, uint8 [R, channels, *size]; None for no path.

    Raises:
        InputError: There are fewer than two images, or they cannot be read.
    """
    if path is None:
        return None
    how = reading(manifest)
    images: np.ndarray = read_images(image_files([path], how["files"]), **how)
    if len(images) < 2:
        raise InputError(f"{path} holds one image. Reference images must be several; 64 or more work well.")
    return images


def image_files(paths: Sequence[Path], kind: Files = "images") -> list[Path]:
    """Return the image files among `paths`; for folders, all images of this kind inside, at any depth, sorted.

    Raises:
        InputError: A path does not exist, or there is no image.
    """
    files: list[Path] = []
    ends = SUFFIXES if kind == "images" else tuple(end for end, source in MEDICAL.items() if source == kind)
    for path in paths:
        if path.is_dir() and kind == "dicom":
            from terrine.data.sources.dicom import files_in

            files += sorted(files_in(path)[0])
        elif path.is_dir():
            inside = (file for file in path.rglob("*") if file.name.lower().endswith(ends) and file.is_file())
            files += sorted(file for file in inside if not file.name.startswith("."))  # as in training
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"There is no file or folder {path}.")
    if not files:
        raise InputError(f"No image was found ({', '.join(ends)}). Give image files, or folders that hold some.")
    return files


def predict_files(model: StudentModel, paths: Sequence[Path], failed: dict[Path, str] | None = None) -> pd.DataFrame:
    """Return predictions for image files and for all images in folders, in order, answered as one request.

    Files are read as the pipeline reads records: images turned by EXIF, or DICOM files, resized, grey or colour.

    Args:
        model: The student.
        paths: Files and folders.
        failed: If given, receives the reason for each unreadable file, which is left out as long as others remain.

    Returns:
        The columns of `StudentModel.answers`, after the column `image`, the path of the file.

    Raises:
        InputError: Files cannot be read; the message names them.
    """
    files = image_files(paths, model.reading["files"])
    probabilities = model.predict(read_images(files, **model.reading, failed=failed))
    found = model.answers(probabilities)
    found.insert(0, "image", [str(file) for file in files if file not in (failed or {})])
    return found


def predict_tables(
    student: TableStudent, paths: Sequence[Path], failed: dict[Path, str] | None = None
) -> list[RowPredictions]:
    """Return predictions for the rows of CSV files; the column of the target is not needed.

    Args:
        student: The student.
        paths: The files.
        failed: If given, receives the reason for each unusable file, which is left out as long as others remain.

    Raises:
        InputError: A file, a column or a cell cannot be used; the message names it.
    """
    found: list[RowPredictions] = []
    errors: dict[Path, InputError] = {}
    for path in paths:
        try:
            found.append(_predict_table(student, path))
        except InputError as error:
            errors[path] = error
    if errors and (failed is None or not found):
        raise next(iter(errors.values()))
    if failed is not None:
        failed |= {path: str(error) for path, error in errors.items()}
    return found


def _predict_table(student: TableStudent, path: Path) -> RowPredictions:
    if path.suffix.lower() != ".csv":
        raise InputError(f"{path} is not a CSV file, and this student takes rows of a table. Give .csv files.")
    rows = read_csv(path)
    answers = student.answers(rows, str(path), "line")
    if student.id is not None and student.id in rows:
        name = student.id if student.id not in answers else f"id: {student.id}"
        answers.insert(0, name, rows[student.id])
    return RowPredictions(path, answers, student.notes(rows))
