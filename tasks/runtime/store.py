"""Artefacts on disk: where they lie, and how they are written so that half a file never counts.

Every write goes to a temporary file in the same folder, is flushed to the device and renamed: a reader sees the old
file or the new one. A folder artefact is written into a sibling and renamed as a whole. Nothing is pickled.
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


class _Place:
    """Where one artefact of a run lies: a path within the run's folder in a zone."""

    def __init__(self, zone: str, name: str = "") -> None:
        self._zone, self._name = zone, name

    def __get__(self, folders: Folders, _: object) -> Path:
        return folders.zone(self._zone) / self._name


@dataclass(frozen=True)
class Folders:
    """The folders of one run, one in each zone, and what runs share."""

    root: Path
    run: str

    def zone(self, zone: str) -> Path:
        """Return data/<zone>/<run>."""
        return self.root / "data" / zone / self.run

    def shared(self, kind: str, name: str) -> Path:
        """Public results that several runs use, named by the digest of all that made them."""
        return self.root / "data" / "public" / "shared" / f"{kind}-{name}"

    def dataset_manifest(self) -> dict[str, Any]:
        """Return what is said about the run's dataset: its name, classes, fingerprint. Raises as `read_json` does."""
        manifest: dict[str, Any] = read_json(self.dataset / "manifest.json")
        return manifest

    @property
    def finished(self) -> bool:
        """Whether the figures of the run are on disk."""
        return self.evaluation.is_file() and self.statement.is_file()

    private, public, release = _Place("private"), _Place("public"), _Place("release")

    work = _Place("private", "work")
    """Private intermediate results that let an interrupted stage go on; DVC does not track them."""
    parameters = _Place("private", "parameters.yaml")
    """What every stage reads, with all that names the site's files, machines and data."""
    public_parameters = _Place("public", "parameters.yaml")
    """The same for anybody to read, without what stays at home."""
    dataset = _Place("private", "dataset")
    partition = _Place("private", "partition")
    images = _Place("public", "images")
    backbone = _Place("public", "backbone")
    average = _Place("private", "average")
    """What teachers learned from one another before their last round."""
    teachers = _Place("private", "teachers")
    votes = _Place("private", "votes")
    accounting = _Place("private", "accounting")
    """Private figures of the aggregation: consensus, data-dependent ε."""
    distance = _Place("private", "distance")
    """Private figures: how far the queries are from the private images."""
    answers = _Place("release", "answers")
    statement = _Place("release", "privacy.json")
    student = _Place("release", "student")
    evaluation = _Place("private", "evaluation.json")
    """Private figures: how well the student does on the private test split."""
    accuracy = _Place("release", "accuracy.json")
    """The accuracy that was released with noise, or that none was."""
    metrics = _Place("release", "metrics.json")
    """ε and accuracy as DVC shows them, as far as anybody may know them."""
    plots = _Place("release", "plots")
    """Tables that DVC plots."""
    start = _Place("public", "start")
    """Of a transcription: the public beginnings, a generator and what its student is built on."""
    labels = _Place("private", "labels")
    """Of a transcription: the labels that its teachers learn from."""
    annotations = _Place("release", "annotations")
    """Of a transcription: everything that was heard of its teachers."""
    generator = _Place("release", "generator")
    """Of a transcription: the generator, trained, and a sheet of its images."""
    party_accuracy = _Place("private", "party_accuracy.json")
    """Private figures: how well the student does on each party's records."""
    report = _Place("private", "report.html")
    timings = _Place("private", "timings")
    """Seconds and memory per stage; kept out of DVC because they differ from machine to machine."""


def close_private_zone(root: Path) -> None:
    """Make data/private for its owner alone, or close it, and DVC's cache, which has the same in clear."""
    files.private_folder(root / "data" / "private")
    for folder in (root / "data" / "private", root / ".dvc" / "cache"):
        files.restrict_to_owner(folder)


def _make_folder(folder: Path) -> bool:
    """Make a folder, and close the private zone if it is in there; return whether it is."""
    zone = next((parent for parent in (folder, *folder.parents) if parent.parts[-2:] == ("data", "private")), None)
    if zone is not None:
        close_private_zone(zone.parents[1])
    folder.mkdir(parents=True, exist_ok=True)
    return zone is not None


@contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """See `terrine.files.atomic_file`; its folder is made, and what goes wrong is said in a sentence.

    In the private zone nobody but its owner may read it.
    """
    private = _make_folder(path.parent)
    with files.write_errors(path), files.atomic_file(path, mode, owner_only=private) as stream:
        yield stream


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """See `terrine.files.atomic_folder`; its parent is made, and in the private zone only the owner may enter it."""
    with files.atomic_folder(path, owner_only=_make_folder(path.parent)) as folder:
        yield folder


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path, "w") as stream:
        stream.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys sorted, so that equal values give equal bytes."""
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
    import pandas as pd  # here, since most stages read no table

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
    """Return the names of the arrays in a safetensors file, which are not read. Raises as `read_tensors` does."""
    from safetensors import safe_open

    def names() -> list[str]:
        with safe_open(path, framework="np") as file:
            return list(file.keys())

    return _read(path, names)


def _read(path: Path, reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing. Run the stage that makes it, or the whole pipeline.") from error
    except Exception as error:
        raise ArtefactError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Delete it and run again: the stage that makes "
            "it will write it anew."
        ) from error


def link(source: Path, target: Path) -> None:
    """Make `target` the same file or folder as `source` without copying bytes where the file system allows."""
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
    temporary.unlink(missing_ok=True)  # renaming one name of a file to another of the same file does nothing


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


TEMPORARY = re.compile(r"\..+\.([0-9a-f]{12}|[0-9a-f]{32}|[a-z0-9_]{8})\.(tmp|old)")
"""How files and folders are called until they are whole, and folders while they give way to others."""
_DVC_NAME = re.compile(r"\.[\w-]{22}\.tmp$")
"""How DVC calls what it writes, into its cache and beside artefacts."""
_EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()
"""The name of an empty file in DVC's cache."""


def run_leftovers(folders: Folders) -> list[Path]:
    """Return the leftovers of a run, which no other process may be making."""
    zones = (folders.private, folders.public, folders.release)
    return _leftovers(path for zone in zones for path in zone.rglob("*"))


def project_leftovers(root: Path) -> list[Path]:
    """Return the leftovers of what runs share, while no process makes any run of the project."""
    from tasks.config.presets import PRESETS  # here, for Ctrl-C has no time for its imports

    flat = _leftovers(path for folder in (root, root / PRESETS) for path in folder.glob(".*"))
    shared = (Folders(root, "").shared("", "").parent, root / "data" / "private" / "shared", root / "runs")
    return flat + _leftovers(path for folder in shared for path in folder.rglob("*")) + _of_dvc(root)


def _of_dvc(root: Path) -> list[Path]:
    """Return what a kill or a power cut left in DVC's cache: temporary files, and files without content, which DVC
    would put in place of what a stage makes."""
    files = (path for path in (root / ".dvc" / "cache" / "files").rglob("*") if path.is_file())
    return [
        path
        for path in files
        if _DVC_NAME.search(path.name) or (not path.stat().st_size and path.parent.name + path.name != _EMPTY)
    ]


def _leftovers(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if TEMPORARY.fullmatch(path.name) or _DVC_NAME.search(path.name)]


def remove_leftovers(leftovers: list[Path]) -> None:
    """Remove files and folders, as far as that is possible."""
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
