"""Paths of artefacts, and atomic reading and writing of them.

A file is first written to a temporary file in the same folder, then synced and renamed, and folders likewise: readers
see the old or the new artefact. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from terrine import files, npy
from terrine.errors import ArtefactError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class _Place:
    """Path of an artefact in the run's folder in a zone."""

    zone: str
    name: str = ""

    def __get__(self, folders: Folders, _: object) -> Path:
        return folders.root / "data" / self.zone / folders.run / self.name


@dataclass(frozen=True)
class Folders:
    """Folders and artefacts of one run, and folders that runs share."""

    root: Path
    run: str

    def shared(self, kind: str, name: str) -> Path:
        """Return the folder of a public result that runs share; `name` is the digest of its inputs."""
        return self.root / "data" / "public" / "shared" / f"{kind}-{name}"

    def dataset_manifest(self) -> dict[str, Any]:
        """Return the manifest of the run's dataset; see `read_json` for errors."""
        manifest: dict[str, Any] = read_json(self.dataset / "manifest.json")
        return manifest

    @property
    def finished(self) -> bool:
        """True if the run's statement and evaluation exist."""
        return self.evaluation.is_file() and self.statement.is_file()

    @property
    def imported(self) -> bool:
        """True if another library trained the model. Imports write no public parameters."""
        return self.statement.is_file() and not self.public_parameters.is_file()

    private, public, release = _Place("private"), _Place("public"), _Place("release")

    work = _Place("private", "work")
    """Private intermediate results from which an interrupted stage resumes; not tracked by DVC."""
    parameters = _Place("private", "parameters.yaml")
    """All settings, including those that name the site's files, hosts and data."""
    public_parameters = _Place("public", "parameters.yaml")
    """Settings without those that are local to the site."""
    dataset = _Place("private", "dataset")
    partition = _Place("private", "partition")
    images = _Place("public", "images")
    backbone = _Place("public", "backbone")
    average = _Place("private", "average")
    """Averages from which teachers start their last round."""
    teachers = _Place("private", "teachers")
    votes = _Place("private", "votes")
    accounting = _Place("private", "accounting")
    """Private figures of the aggregation: consensus, data-dependent ε."""
    answers = _Place("release", "answers")
    statement = _Place("release", "privacy.json")
    signature = _Place("release", "signature.json")
    student = _Place("release", "student")
    evaluation = _Place("private", "evaluation.json")
    """Private figures: the student's accuracy on the private test split."""
    accuracy = _Place("release", "accuracy.json")
    """The accuracy released with noise, or a note without it."""
    metrics = _Place("release", "metrics.json")
    """Publishable ε and accuracy for DVC."""
    plots = _Place("release", "plots")
    """Tables that DVC plots."""
    start = _Place("public", "start")
    """Transcription: public initial generator and backbone of the student."""
    labels = _Place("private", "labels")
    """Transcription: labels that its teachers learn from."""
    annotations = _Place("release", "annotations")
    """Transcription: all released annotations."""
    generator = _Place("release", "generator")
    """Transcription: trained generator and a contact sheet of its images."""
    party_accuracy = _Place("private", "party_accuracy.json")
    """Private figures: the student's accuracy on each party's records."""
    report = _Place("private", "report.html")
    timings = _Place("private", "timings")
    """Seconds and memory per stage; not tracked by DVC because they depend on the machine."""


def close_private_zone(root: Path) -> None:
    """Create data/private, and restrict it and DVC's cache, which contains copies, to their owner."""
    files.private_folder(root / "data" / "private")
    for folder in (root / "data" / "private", root / ".dvc" / "cache"):
        files.restrict_to_owner(folder)


def _make_folder(folder: Path) -> bool:
    """Create a folder and return whether it is in the private zone; if so, the zone is restricted to its owner."""
    zone = next((parent for parent in (folder, *folder.parents) if parent.parts[-2:] == ("data", "private")), None)
    if zone is not None:
        close_private_zone(zone.parents[1])
    folder.mkdir(parents=True, exist_ok=True)
    return zone is not None


@contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file atomically; see `terrine.files.atomic_file`.

    Creates the file's folder. In the private zone only the owner may read the file. Errors while writing are raised
    as InputError.
    """
    private = _make_folder(path.parent)
    with files.write_errors(path), files.atomic_file(path, mode, owner_only=private) as stream:
        yield stream


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Write a folder atomically; see `terrine.files.atomic_folder`. In the private zone only the owner may enter it."""
    with files.atomic_folder(path, owner_only=_make_folder(path.parent)) as folder:
        yield folder


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path, "w") as stream:
        stream.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically with sorted keys, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def read_json(path: Path) -> Any:
    """Read JSON. Raises ArtefactError if it is missing or damaged."""
    return _read(path, lambda: json.loads(path.read_text(encoding="utf-8")))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a .npy file atomically."""
    with atomic_file(path) as stream:
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)


def read_array(path: Path, *, memory_map: bool = False) -> np.ndarray:
    """Read a .npy file, or map it. Raises ArtefactError if it is missing or damaged."""
    return _read(path, lambda: npy.load(path, memory_map=memory_map))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a Parquet file atomically."""
    with atomic_file(path) as stream:
        table.to_parquet(stream, index=False)


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file. Raises ArtefactError if it is missing or damaged."""
    import pandas as pd  # slow, and most stages read no table

    return _read(path, lambda: pd.read_parquet(path))


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file atomically."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    with atomic_file(path) as stream:
        stream.write(save(arrays))


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file. Raises ArtefactError if it is missing or damaged."""
    from safetensors.numpy import load_file

    return _read(path, lambda: load_file(path))


def tensor_names(path: Path) -> list[str]:
    """Return the names of the arrays in a safetensors file without reading them. Raises as `read_tensors` does."""
    from safetensors import safe_open

    def names() -> list[str]:
        with safe_open(path, framework="np") as file:
            return list(file.keys())

    return _read(path, names)


def _read(path: Path, reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing. Run the stage that makes it, or all stages.") from error
    except Exception as error:
        raise ArtefactError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Delete it and run again: its stage writes it "
            "again."
        ) from error


def link(source: Path, target: Path) -> None:
    """Link a file or the files in a folder; they are copied if the file system has no hard links."""
    if source.is_dir():
        with atomic_folder(target) as folder:
            for file in sorted(path for path in source.rglob("*") if path.is_file()):
                place = folder / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                _link_file(file, place)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    _link_file(source, temporary)
    os.replace(temporary, target)
    temporary.unlink(missing_ok=True)  # renaming a hard link to another link of the same file does nothing


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


TEMPORARY = re.compile(r"\..+\.([0-9a-f]{12}|[0-9a-f]{32}|[a-z0-9_]{8})\.(tmp|old)")
"""Names of temporary files and folders, and of folders that are being replaced."""
_DVC_NAME = re.compile(r"\.[\w-]{22}\.tmp$")
"""Names of DVC's temporary files, in its cache and beside artefacts."""
_EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()
"""Name of an empty file in DVC's cache."""


def run_leftovers(folders: Folders) -> list[Path]:
    """Return temporary files and folders in a run's zones. No process may be executing the run."""
    zones = (folders.private, folders.public, folders.release)
    return _leftovers(path for zone in zones for path in zone.rglob("*"))


def project_leftovers(root: Path) -> list[Path]:
    """Return temporary files and folders outside of runs. No process may be working in the project."""
    from tasks.config.presets import PRESETS  # slow imports would delay Ctrl-C

    flat = _leftovers(path for folder in (root, root / PRESETS) for path in folder.glob(".*"))
    shared = (Folders(root, "").shared("", "").parent, root / "data" / "private" / "shared", root / "runs")
    return flat + _leftovers(path for folder in shared for path in folder.rglob("*")) + _of_dvc(root)


def _of_dvc(root: Path) -> list[Path]:
    """Return temporary files in DVC's cache, and files left empty by a power cut, which would replace outputs."""
    files = (path for path in (root / ".dvc" / "cache" / "files").rglob("*") if path.is_file())
    return [
        path
        for path in files
        if _DVC_NAME.search(path.name) or (not path.stat().st_size and path.parent.name + path.name != _EMPTY)
    ]


def _leftovers(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if TEMPORARY.fullmatch(path.name) or _DVC_NAME.search(path.name)]


def remove_leftovers(leftovers: list[Path]) -> None:
    """Remove files and folders, ignoring errors."""
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
