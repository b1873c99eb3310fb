"""Export a student as ONNX and .pt2, in one sealed folder with its privacy statement."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tasks.runtime.store import atomic_folder, write_json
from tasks.serving.pages import FIGURES, SIGNATURES, guarantee, pages_in
from tasks.serving.predict import OWN_STATISTICS, read_reference, refuse_image_options
from terrine.data.encoding import Encoding
from terrine.deployment.export import Format, check_against_student, export_student, write_raw_columns
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.model import REFERENCE, StudentModel, check_student
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import TableStudent, takes_table
from terrine.errors import InputError

SHAPES = "shapes.csv"
_COMPARED = 16


@dataclass(frozen=True)
class Exported:
    """One file of an export, and the largest difference of its probabilities from the student's (rounding)."""

    file: str
    statistics: ServingStatistics
    format: Format
    difference: float


def export_folder(
    student: Path,
    target: Path,
    statistics: Sequence[ServingStatistics],
    formats: Sequence[Format],
    *,
    reference: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Exported]:
    """Write a student's folder, its exports, its privacy statement, and a manifest with their digests.

    Every export is compared with the student before the folder appears.

    Args:
        student: Folder of the student.
        target: Folder to write; an earlier export is replaced.
        statistics: Statistics of the exported networks; none: those that are served by default.
        formats: Formats of the exported networks.
        reference: Own images for the statistics, a folder or file. The files then contain their exact statistics, which
            no ε covers, and no statement is exported.
        progress: Called with a text before the networks of each kind of statistics are written.

    Raises:
        InputError: `target` exists and is not an earlier export.
        SettingError: Reference images were given for the student of a table.
    """
    if target.exists() and not (target / MANIFEST).is_file():
        raise InputError(f"{target} exists and is no earlier export. Give a new folder, or remove it.")
    metadata = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (guarantee(student) or {}).items()
    }
    manifest = check_student(student)
    table = takes_table(student)
    if table:
        refuse_image_options(None, reference)
    own = read_reference(reference, manifest)
    if own is not None:
        metadata = {"reference": OWN_STATISTICS}
    with atomic_folder(target) as folder:
        # Copies, not links: what leaves the project must not share its bytes with DVC's cache.
        shutil.copytree(student, folder / "student", copy_function=shutil.copyfile)
        for name in (FIGURES, *SIGNATURES, *pages_in(student.parent)) if own is None else ():
            if (student.parent / name).is_file():
                shutil.copyfile(student.parent / name, folder / name)
        if table:
            exported, description = _export_table(student, folder, formats, metadata)
        else:
            exported, shape = [], []
            for wanted in dict.fromkeys(statistics) or (None,):
                model = StudentModel.load(student, wanted, reference=own)
                if progress is not None:
                    progress(f"{model.statistics} statistics")
                exported += _export_images(model, folder, formats, metadata)
                shape = ["batch", *model.shape]
            description = {
                "input": {"name": "images", "dtype": "uint8", "shape": shape},
                "reference": manifest["reference"] if own is None else OWN_STATISTICS,
            }
        description |= {
            "output": {"name": "probabilities", "dtype": "float32", "shape": ["batch", len(manifest["class_names"])]},
            "class_names": manifest["class_names"],
            **({"scale": manifest["scale"]} if "scale" in manifest else {}),
            "exports": [asdict(item) for item in exported],
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnx") if find_spec(name)},
        }
        write_json(folder / MANIFEST, seal(folder, description))
    return exported


def _export_images(
    model: StudentModel, folder: Path, formats: Sequence[Format], metadata: Mapping[str, str]
) -> list[Exported]:
    kind, chosen = model.statistics, list(dict.fromkeys(formats))
    assert model.reference is not None, f"a student's folder holds {REFERENCE}"
    images = np.resize(model.reference, (max(16, len(model.reference)), *model.reference.shape[1:]))
    paths = [folder / f"student-{kind}.{suffix}" for suffix in chosen]
    differences = export_student(model, paths, images, metadata=dict(metadata))
    return [
        Exported(path.name, kind, suffix, difference)
        for path, suffix, difference in zip(paths, chosen, differences, strict=True)
    ]


def _export_table(
    student_folder: Path, target: Path, formats: Sequence[Format], metadata: Mapping[str, str]
) -> tuple[list[Exported], dict[str, Any]]:
    """Write the student of a table to `target`; return its files, and the description of their inputs.

    `student.onnx` takes the table's columns; `student.pt2` takes encoded rows, float32 [batch, features], because a
    torch program takes no text. `shapes.csv` lists the contributions of columns to the scores of a linear student.
    metadata: Entries of the ONNX file about the guarantee.
    """
    student = TableStudent.load(student_folder)
    if (shapes := student.shapes()) is not None:
        shapes.to_csv(target / SHAPES, index=False)
    rows = _compared_rows(student.encoding)
    encoded = student.encoding.apply(rows, "The compared rows", "row")
    names = json.dumps(student.class_names, ensure_ascii=False)
    scale = {} if student.student.scale is None else {"scale": json.dumps(student.student.scale.describe())}
    texts = {"class_names": names, "target": json.dumps(student.target, ensure_ascii=False), **scale, **metadata}
    exported: list[Exported] = []
    for suffix in dict.fromkeys(formats):
        path = target / f"student.{suffix}"
        (difference,) = export_student(student.student, [path], encoded)
        if suffix == "onnx":
            write_raw_columns(path, student.encoding, texts)
            difference = check_against_student(path, student, rows)
        exported.append(Exported(path.name, "original", suffix, difference))
    columns = [
        {"name": column.name, "dtype": "float64" if column.values is None else "string", "shape": ["batch", 1]}
        for column in student.encoding.columns
    ]
    rows_of = {"name": "images", "dtype": "float32", "shape": ["batch", student.student.channels]}
    return exported, {"input": {"onnx": columns, "pt2": {**rows_of, "encoded as": "student/encoding.json says"}}}


def _compared_rows(encoding: Encoding) -> pd.DataFrame:
    """Return rows with every known word, an unknown word, missing values, and numbers of all magnitudes."""
    words = [len(column.values) for column in encoding.columns if column.values is not None]
    count = max(_COMPARED, *(number + 2 for number in words)) if words else _COMPARED
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for column in encoding.columns:
        if column.values is None:
            middle, width = np.mean(column.knots), np.ptp(column.knots) or 1.0
            numbers = middle + width * generator.normal(size=count)
            numbers[:: count // 4] = np.nan
            columns[column.name] = numbers
        else:
            held = [*column.values, "an unknown word", ""]
            columns[column.name] = [held[row % len(held)] for row in range(count)]
    return pd.DataFrame(columns)
