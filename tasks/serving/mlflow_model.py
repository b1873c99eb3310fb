"""The student in MLflow, registered with the privacy statement.

The model is a pyfunc made of code (student_pyfunc.py) and safetensors, from the release zone: nothing private is read.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import terrine
from tasks.reports.accuracy import served_accuracy
from tasks.runtime.run import Run
from terrine.deployment.model import StudentModel
from terrine.deployment.rows import TableStudent, takes_table
from terrine.files import file_digest
from terrine.logs import hushed
from terrine.privacy.facts import sentences
from terrine.privacy.statement import read_statement

if TYPE_CHECKING:
    import pandas as pd

CODE = Path(__file__).with_name("student_pyfunc.py")
PACKAGES = ("mlflow", "numpy", "torch", "torchvision", "timm", "safetensors")
"""Packages that a model needs in addition to its own copy of the package terrine."""


def log_student(run: Run, *, register: bool = True) -> None:
    """Log a finished run's student to the active MLflow run and, with `register`, register it.

    The tags and the description of the registered version state the guarantee, or NOT PRIVATE. The latest version has
    the alias `candidate`.
    """
    import mlflow

    student, statement = run.folders.student, read_statement(run.folders.statement)
    with quiet():
        name = run.name if register else None
        info = mlflow.pyfunc.log_model(name="student", registered_model_name=name, **pyfunc_arguments(student))
    if (version := info.registered_model_version) is None:
        return
    client = mlflow.MlflowClient()
    private = statement["private"]
    epsilon = statement["epsilon_guaranteed"] if private else statement["epsilon"]
    guarantee = (
        f"{'no ε' if epsilon is None else f'ε = {epsilon:.4f}'} at δ = {statement['delta']:g} per {statement['unit']}"
    )
    text = guarantee if private else f"{statement['warning']} (nominally {guarantee})"
    text = " ".join([f"{', '.join([text, *served_accuracy(run)])}.", *sentences(statement, "unprotected")])
    client.update_model_version(run.name, str(version), f"{text} The statement is in artifacts/statement.html.")
    tags = {
        "private": "yes" if private else "NOT PRIVATE",
        "epsilon": epsilon,
        "delta": statement["delta"],
        "unit": statement["unit"],
        "statement_sha256": file_digest(run.folders.statement),
        "student_sha256": file_digest(student / "manifest.json"),
    }
    for name, value in tags.items():
        client.set_model_version_tag(run.name, str(version), name, str(value))
    client.set_registered_model_alias(run.name, "candidate", str(version))


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress MLflow's advice to authors of models, and its progress bars."""
    with hushed("mlflow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def pyfunc_arguments(student: Path) -> dict[str, Any]:
    """Return the arguments of MLflow's `save_model` and `log_model` for the student in a folder."""
    statement = {name: student.parent / name for name in ("privacy.json", "statement.html")}
    artefacts = {"student": student, **{name: path for name, path in statement.items() if path.is_file()}}
    return {
        "python_model": str(CODE),
        "artifacts": {name: str(path) for name, path in artefacts.items()},
        "code_paths": [str(Path(terrine.__file__).parent)],
        "pip_requirements": requirements(),
        **(_of_table(student) if takes_table(student) else _of_images(student)),
    }


def _of_images(folder: Path) -> dict[str, Any]:
    """Return the arguments by which MLflow stores an image student.

    The signature has no inputs: MLflow would refuse or cast arrays of another type, while the student takes uint8 and
    all floating-point types. The model checks shape and range itself.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

    student = StudentModel.load(folder)
    assert student.reference is not None
    example = student.reference[:2].astype(np.float32) / np.float32(255)
    metadata: dict[str, Any] = {"class_names": student.class_names, "statistics": student.statistics}
    metadata |= {"input": {"shape": ["images", *student.shape], "types": "uint8 (0 to 255) or floats (0 to 1)"}}
    if student.scale is not None:
        metadata["scale"] = student.scale.describe()
    return {
        "signature": ModelSignature(outputs=Schema(_columns(student.answers(student.predict(example))))),
        "input_example": example,
        "model_config": {"statistics": None, "reference": None, "device": "cpu"},
        "metadata": metadata,
    }


def _of_table(folder: Path) -> dict[str, Any]:
    """Return the arguments by which MLflow stores a table's student.

    Every column has MLflow's type Any, and none is required: pandas reads a column as int64, float64 or objects,
    depending on its values, and MLflow refuses integers for a double and a missing word for a string.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    student = TableStudent.load(folder)
    example = student.encoding.example()
    inputs: list[Any] = [ColSpec(AnyType(), column.name, required=False) for column in student.encoding.columns]
    return {
        "signature": ModelSignature(Schema(inputs), Schema(_columns(student.answers(example)))),
        "input_example": example,
        "model_config": {"device": "cpu"},
        "metadata": {"class_names": student.class_names, "columns": student.about()},
    }


def _columns(answers: pd.DataFrame) -> list[Any]:
    from mlflow.types import ColSpec, DataType

    return [ColSpec(DataType.string if name == "class" else DataType.double, name) for name in answers]


def requirements() -> list[str]:
    """Return the packages that a model needs with their installed versions, without a local suffix such as +cpu."""
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in PACKAGES]
