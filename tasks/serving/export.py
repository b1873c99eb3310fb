"""export: the student in the formats people deploy, in one sealed folder with its privacy statement."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.runtime.store import atomic_folder, write_json
from tasks.serving.guarantee import OWN_STATISTICS, guarantee
from tasks.serving.pages import FIGURES, SIGNATURE, pages_in
from tasks.serving.rows import export_table, refuse_image_options
from tasks.serving.student_source import read_reference
from terrine.deployment.export import Format, export_student
from terrine.deployment.manifest import MANIFEST, check_seal, seal
from terrine.deployment.model import REFERENCE, StudentModel, check_student
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import takes_table
from terrine.errors import InputError


@dataclass(frozen=True)
class Exported:
    """One file of an export, and by how much its probabilities differ from the student's at most (rounding)."""

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
    """Write `target`: the student's folder, its exports, its privacy statement, and a manifest with their digests.

    Every export is compared with the student before the folder appears. reference: own images for the statistics, which
    the files then hold as they are: no ε covers them, and no statement goes along. No statistics: those that are served
    by default. Raises InputError when `target` exists and is no earlier export.
    """
    if target.exists() and not (target / MANIFEST).is_file():
        raise InputError(f"{target} exists and is no earlier export. Give a new folder, or remove it.")
    told = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (guarantee(student) or {}).items()
    }
    if takes_table(student):
        refuse_image_options(None, reference)
        with atomic_folder(target) as folder:
            _copy_student(student, folder)
            files, described = export_table(student, folder, formats, told)
            exported = [Exported(*file) for file in files]
            write_json(folder / MANIFEST, seal(folder, described | _description(check_seal(student), exported)))
        return exported
    manifest = check_student(student)
    own = read_reference(reference, manifest)
    if own is not None:
        told = {"reference": OWN_STATISTICS}
    exported = []
    with atomic_folder(target) as folder:
        _copy_student(student, folder, with_statement=own is None)
        for wanted in dict.fromkeys(statistics) or (None,):
            model = StudentModel.load(student, wanted, reference=own)
            kind = model.statistics
            assert model.reference is not None, f"a student's folder holds {REFERENCE}"
            images = np.resize(model.reference, (max(16, len(model.reference)), *model.reference.shape[1:]))
            if progress is not None:
                progress(f"{kind} statistics")
            chosen = list(dict.fromkeys(formats))
            paths = [folder / f"student-{kind}.{suffix}" for suffix in chosen]
            differences = export_student(model, paths, images, metadata=told)
            exported += [
                Exported(path.name, kind, suffix, difference)
                for path, suffix, difference in zip(paths, chosen, differences, strict=True)
            ]
        shape = ["batch", *model.shape]
        description = {
            "input": {"name": "images", "dtype": "uint8", "shape": shape},
            "reference": manifest["reference"] if own is None else OWN_STATISTICS,
            **_description(manifest, exported),
        }
        write_json(folder / MANIFEST, seal(folder, description))
    return exported


def _description(manifest: dict[str, Any], exported: list[Exported]) -> dict[str, Any]:
    return {
        "output": {"name": "probabilities", "dtype": "float32", "shape": ["batch", len(manifest["class_names"])]},
        "class_names": manifest["class_names"],
        **({"scale": manifest["scale"]} if "scale" in manifest else {}),
        "exports": [asdict(item) for item in exported],
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnx") if _installed(name)},
    }


def _copy_student(student: Path, folder: Path, *, with_statement: bool = True) -> None:
    # Copies, not links: what leaves the project must not share its bytes with DVC's cache.
    shutil.copytree(student, folder / "student", copy_function=shutil.copyfile)
    if not with_statement:
        return
    for name in (FIGURES, SIGNATURE, *pages_in(student.parent)):
        if (student.parent / name).is_file():
            shutil.copyfile(student.parent / name, folder / name)


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
