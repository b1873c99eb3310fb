"""Every format that data come in: how a world is written down, and the parameters that read it."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.neighbours.worlds import Record, World

OFFICIAL_SIDE = 28
_VALIDATION = 30
"""The first record of the validation split, which joins the training split."""


@dataclass(frozen=True)
class Format:
    """A format of data.

    write: (folder of the project, world).
    data: The section `data` of the parameters.
    positional: Records are named by their position.
    people: It knows groups and parties.
    given: It says who is in the test split.
    records: Number of records in the world.
    """

    write: Callable[[Path, World], None]
    data: dict[str, Any]
    positional: bool = False
    people: bool = False
    given: bool = False
    classes: int = 3
    records: int = 83
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def units(self) -> tuple[str, ...]:
        """Units that can be protected. A table with people protects only groups, since the person of a row decides
        whether it is public."""
        return ("record",) if not self.people else ("group",) if self.data["name"] == "table" else ("record", "group")


def _save(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(record.image).save(path)


def _folders(root: Path, world: World) -> None:
    for name, record in world.items():
        _save(root / "photos" / f"class {record.label}" / f"{name}.png", record)


def _split_folders(root: Path, world: World) -> None:
    for name, record in world.items():
        _save(root / "photos" / record.split / f"class {record.label}" / f"{name}.png", record)


def _listed(given: bool) -> Callable[[Path, World], None]:
    def write(root: Path, world: World) -> None:
        rows = [["path", "label", "group", "party", *(["split"] if given else [])]]
        for name, record in world.items():
            _save(root / "photos" / f"{name}.png", record)
            split = [record.split] if given else []
            rows.append([f"photos/{name}.png", f"class {record.label}", record.group, record.party, *split])
        _write_csv(root / "photos.csv", rows)

    return write


def _write_csv(path: Path, rows: list[list[Any]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def _arrays(world: World, prefix: str = "", ids: bool = False) -> dict[str, np.ndarray]:
    records = list(world.values())
    arrays = {
        "images": np.stack([record.image for record in records]),
        "labels": np.array([record.label for record in records]),
        "groups": np.array([record.group for record in records]),
        "parties": np.array([record.party for record in records]),
    }
    if ids:
        arrays["ids"] = np.array(list(world))
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def _of(world: World, split: str) -> World:
    return {name: record for name, record in world.items() if record.split == split}


def _npz(root: Path, world: World) -> None:
    np.savez(root / "set.npz", **_arrays(world))


def _npz_ids(root: Path, world: World) -> None:
    np.savez(root / "set.npz", **_arrays(world, ids=True))


def _npz_split(root: Path, world: World) -> None:
    np.savez(root / "set.npz", **_arrays(_of(world, "train"), "train_"), **_arrays(_of(world, "test"), "test_"))


def _dicom(root: Path, world: World) -> None:
    dicoms = pytest.importorskip("tests.terrine.data.dicoms")
    (root / "scans").mkdir(exist_ok=True)
    rows = [["sop", "label", "party"]]
    for place, (name, record) in enumerate(world.items()):
        uid = f"1.2.{int.from_bytes(name.encode(), 'big')}"
        dicoms.made(record.image, record.group, uid).save_as(root / "scans" / f"IM{place}")
        rows.append([uid, f"class {record.label}", record.party])
    _write_csv(root / "scans.csv", rows)


def _nifti(root: Path, world: World) -> None:
    nibabel = pytest.importorskip("nibabel")
    rows = [["path", "label", "group", "party"]]
    for name, record in world.items():
        voxels = record.image.T[::-1, ::-1, None]  # as it is seen, the right and the front come first
        (root / f"{name}.nii").write_bytes(nibabel.Nifti1Image(voxels, np.eye(4)).to_bytes())
        rows.append([f"{name}.nii", f"class {record.label}", record.group, record.party])
    _write_csv(root / "volumes.csv", rows)


def _rows(*columns: str) -> Callable[[Path, World], None]:
    """Write a table of five numbers, a class and those of the columns id, group and party that are asked for."""

    def write(root: Path, world: World) -> None:
        rows: list[list[Any]] = [[*(f"x{n}" for n in range(5)), "kind", *columns]]
        for name, record in world.items():
            roles = {"id": name, "group": record.group, "party": record.party}
            values = record.image.reshape(-1)[:5].tolist()
            rows.append([*values, f"class {record.label}", *(roles[column] for column in columns)])
        _write_csv(root / "rows.csv", rows)

    return write


def _official(record: Record) -> np.ndarray:
    return np.asarray(Image.fromarray(record.image).resize((OFFICIAL_SIDE, OFFICIAL_SIDE)))


def _mnist(root: Path, world: World) -> None:
    folder = root / "source" / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        records = _of(world, split).values()
        write_idx(folder / f"{prefix}-images-idx3-ubyte", np.stack([_official(record) for record in records]))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.array([record.label for record in records], np.uint8))


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write the format of yann.lecun.com/exdb/mnist."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    path.write_bytes(header + array.tobytes())


def _medmnist(root: Path, world: World) -> None:
    train = list(_of(world, "train").values())
    splits = {"train": train[:_VALIDATION], "val": train[_VALIDATION:], "test": list(_of(world, "test").values())}
    arrays = {}
    for split, records in splits.items():
        arrays[f"{split}_images"] = np.stack([_official(record) for record in records])
        arrays[f"{split}_labels"] = np.array([[record.label] for record in records], np.uint8)
    (root / "source").mkdir(parents=True, exist_ok=True)
    np.savez(root / "source" / "pneumoniamnist.npz", **arrays)


_TABLE = {"name": "table", "path": "rows.csv", "target": "kind", "public_fraction": 0.2}
_DECLARED = {
    **{name: value for name, value in _TABLE.items() if name != "public_fraction"},
    "columns": {f"x{number}": [0, 255] for number in range(5)},
}
_ROWS = {"backbone": {"kind": "columns"}, "teachers": {"statistics": "original"}}
_OFFICIAL = {"root": "source", "download": False, "public_benchmark": False}

FORMATS = {
    "class folders": Format(_folders, {"name": "folder", "path": "photos"}),
    "train and test folders": Format(_split_folders, {"name": "folder", "path": "photos"}, given=True),
    "csv": Format(_listed(given=False), {"name": "folder", "path": "photos.csv"}, people=True),
    "csv with a split": Format(_listed(given=True), {"name": "folder", "path": "photos.csv"}, people=True, given=True),
    "npz": Format(_npz, {"name": "npz", "path": "set.npz"}, positional=True, people=True),
    "npz with ids": Format(_npz_ids, {"name": "npz", "path": "set.npz"}, people=True),
    "npz split already": Format(
        _npz_split, {"name": "npz", "path": "set.npz"}, positional=True, people=True, given=True
    ),
    "dicom": Format(
        _dicom, {"name": "dicom", "path": "scans", "labels": "scans.csv", "window": [0, 255]}, people=True, records=47
    ),
    "nifti": Format(_nifti, {"name": "nifti", "path": "volumes.csv", "window": [0, 255]}, people=True, records=47),
    "table": Format(_rows(), _TABLE, positional=True, overrides=_ROWS),
    "table with ids": Format(_rows("id"), {**_TABLE, "id": "id"}, overrides=_ROWS),
    "table with declared columns": Format(_rows("id"), {**_DECLARED, "id": "id"}, overrides=_ROWS),
    "table of people": Format(
        _rows("group", "party"),
        {**_TABLE, "group": "group", "party": "party"},
        positional=True,
        people=True,
        overrides=_ROWS,
    ),
    "mnist": Format(_mnist, {"name": "mnist", **_OFFICIAL}, positional=True, given=True, classes=10),
    "medmnist": Format(_medmnist, {"name": "pneumoniamnist", **_OFFICIAL}, positional=True, given=True, classes=2),
}
