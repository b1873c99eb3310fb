"""Where a student is taken from: a run of this project, a folder that somebody published, or MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.presets import project_root, runs
from tasks.runtime.run import chosen_run
from tasks.runtime.store import Folders
from terrine.data.images import MEDICAL, SUFFIXES, Files
from terrine.data.pictures.files import read_images
from terrine.deployment.model import reading
from terrine.errors import ArtefactError, InputError, SettingError


def student_folder(run: str | None = None, folder: Path | None = None, model: str | None = None) -> Path:
    """Return the folder of a student: of a run of this project (by default the one selected last), of a folder that
    holds it, such as `terrine export` writes, or of an MLflow model, for example models:/terrine-digits/1.

    Raises SettingError when more than one is given, and ArtefactError when there is no student.
    """
    if sum(source is not None for source in (run, folder, model)) > 1:
        raise SettingError("Give one of --run, --folder and --model: each names a student.")
    if model is not None:
        return _from_mlflow(model)
    if folder is not None:
        return folder / "student" if (folder / "student").is_dir() else folder
    try:
        found = chosen_run(run).folders.student
    except ArtefactError as error:
        raise ArtefactError(f"{error}{_last_made()}") from error
    if not found.is_dir():
        raise ArtefactError(f"There is no student in {found}. Make the run first: terrine run.{_last_made()}")
    return found


def _last_made() -> str:
    """Return which run made a student last, and how to ask that one; nothing where none did."""
    root = project_root()
    students = {name: student for name in runs(root) if (student := Folders(root, name).student).is_dir()}
    if not students:
        return ""
    last = max(students, key=lambda name: students[name].stat().st_mtime)
    return f" The last run that made a student is {last}: to take that one, --run {last}."


def use_project_tracking() -> None:
    """Point MLflow at the project's own tracking database, where there is a project."""
    import mlflow

    try:
        run = chosen_run()
    except (SettingError, ArtefactError):
        return
    mlflow.set_tracking_uri(run.database(run.params.tracking.uri))


def _from_mlflow(model: str) -> Path:
    import mlflow
    from mlflow.exceptions import MlflowException

    use_project_tracking()
    try:
        folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=model))
    except (MlflowException, OSError) as error:
        raise ArtefactError(f"MLflow has no model {model} ({error}). `make ui` shows those it has.") from error
    students = [path.parent for path in sorted(folder.glob("artifacts/*/manifest.json"))]
    if not students:
        raise ArtefactError(f"{model} is not a student that Terrine logged: it has no artifacts/student.")
    return students[0]


def image_files(paths: Sequence[Path], kind: Files = "images") -> list[Path]:
    """Return the image files among `paths`; of folders all images of this kind in them, at any depth, sorted.

    Raises InputError when a path does not exist or when there is no image.
    """
    files: list[Path] = []
    ends = SUFFIXES if kind == "images" else tuple(end for end, source in MEDICAL.items() if source == kind)
    for path in paths:
        if path.is_dir() and kind == "dicom":
            from terrine.data.sources.dicom import files_in

            files += sorted(files_in(path)[0])
        elif path.is_dir():
            inside = (file for file in path.rglob("*") if file.name.lower().endswith(ends) and file.is_file())
            files += sorted(file for file in inside if not file.name.startswith("."))  # as training passes over them
        elif path.is_file():
            files.append(path)
        else:
            raise InputError(f"There is no file or folder {path}.")
    if not files:
        raise InputError(f"No image was found ({', '.join(ends)}). Give image files, or folders that hold some.")
    return files


def read_reference(path: Path | None, manifest: dict[str, Any]) -> np.ndarray | None:
    """Return own reference images of the student with this manifest, uint8 [R, channels, size, size]: those of a folder
    or file; None for no path."""
    if path is None:
        return None
    how = reading(manifest)
    images = read_images(image_files([path], how["files"]), **how)
    if len(images) < 2:
        raise InputError(f"{path} holds one image. Reference images must be several; 64 or more work well.")
    return images
