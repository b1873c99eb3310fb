"""The student in MLflow, registered with the privacy statement: `student`, pyfunc from code and safetensors
(student_pyfunc.py beside this), which is served, and `student-torch`, PyTorch's exported program (.pt2).

What they are made of lies in the release zone: nothing private is read.
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
from tasks.runtime.store import read_json, read_tensors
from terrine.deployment.model import REFERENCE, StudentModel
from terrine.deployment.rows import TableStudent, takes_table
from terrine.files import file_digest
from terrine.logs import hushed
from terrine.privacy.facts import sentences
from terrine.privacy.statement import read_statement

if TYPE_CHECKING:
    from mlflow.models.model import ModelInfo

CODE = Path(__file__).with_name("student_pyfunc.py")
PACKAGES = ("mlflow", "numpy", "torch", "torchvision", "timm", "safetensors")
"""What a model needs beside its own copy of the package terrine."""

CANDIDATE = "candidate"
"""The alias of the version that was registered last."""


def save_student_model(student: Path, target: Path, *, check_example: bool = True) -> None:
    """Write the student in folder `student` as an MLflow pyfunc model to the new folder `target`.

    check_example: store an input example and let MLflow try the model on it, which takes a second or two.
    """
    import mlflow

    arguments = _pyfunc(student)
    if not check_example:
        arguments["input_example"] = None
    with quiet():
        mlflow.pyfunc.save_model(path=str(target), **arguments)


def log_student_models(run: Run) -> ModelInfo:
    """Log a finished run's student to the active MLflow run and register it.

    The tags and the description of the registered version state the guarantee, and NOT PRIVATE if there is none.

    Returns:
        MLflow's information about the model `student`; its `registered_model_version` may be None.
    """
    import mlflow

    student, statement = run.folders.student, read_statement(run.folders.statement)
    with quiet():
        info = mlflow.pyfunc.log_model(name="student", registered_model_name=run.name, **_pyfunc(student))
        if run.params.data.of_images:  # a network takes numbers: the columns of a table are encoded before
            _log_torch(student)
    if (version := info.registered_model_version) is None:
        return info
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
    client.set_registered_model_alias(run.name, CANDIDATE, str(version))
    return info


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress MLflow's advice to authors of models, and its progress bars."""
    with hushed("mlflow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pyfunc(student: Path) -> dict[str, Any]:
    """Return the arguments of MLflow's save_model and log_model for a student."""
    statement = {name: student.parent / name for name in ("privacy.json", "statement.html")}
    artefacts = {"student": student, **{name: path for name, path in statement.items() if path.is_file()}}
    return {
        "python_model": str(CODE),
        "artifacts": {name: str(path) for name, path in artefacts.items()},
        "code_paths": [str(Path(terrine.__file__).parent)],
        "pip_requirements": requirements(),
        **(_of_table(student) if takes_table(student) else _of_images(student)),
    }


def _of_images(student: Path) -> dict[str, Any]:
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    manifest, images = read_json(student / "manifest.json"), read_tensors(student / REFERENCE)["images"]
    numbers: Any = ParamSchema([ParamSpec("numbers", DataType.boolean, False)]) if "scale" in manifest else None
    signature = ModelSignature(
        Schema([TensorSpec(np.dtype("float32"), (-1, *images.shape[1:]))]),
        Schema([TensorSpec(np.dtype("float32"), (-1, len(manifest["class_names"])))]),
        numbers,
    )
    return {
        "signature": signature,
        "input_example": images[:2].astype(np.float32) / np.float32(255),
        "model_config": {"statistics": None, "reference": None, "device": "cpu"},
        "metadata": {
            **{name: manifest[name] for name in ("class_names", "scale") if name in manifest},
            "statistics": StudentModel.load(student).statistics,
        },
    }


def _of_table(folder: Path) -> dict[str, Any]:
    """Return what MLflow has to know about a table's student.

    Every column has MLflow's type Any, and none is required: pandas reads one column as int64, float64 or objects,
    depending on its values, and MLflow refuses integers for a double, and a missing word for a string.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    student = TableStudent.load(folder)
    example = student.encoding.example()
    answers = student.answers(example)
    outputs: list[Any] = [ColSpec(DataType.string if name == "class" else DataType.double, name) for name in answers]
    inputs: list[Any] = [ColSpec(AnyType(), column.name, required=False) for column in student.encoding.columns]
    return {
        "signature": ModelSignature(Schema(inputs), Schema(outputs)),
        "input_example": example,
        "model_config": {"device": "cpu"},
        "metadata": {"class_names": student.class_names, "columns": student.about()},
    }


def _log_torch(student: Path) -> None:
    import mlflow.pytorch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    model = StudentModel.load(student)
    assert model.reference is not None
    signature = ModelSignature(
        Schema([TensorSpec(model.reference.dtype, (-1, *model.shape))]),
        Schema([TensorSpec(np.dtype("float32"), (-1, len(model.class_names)))]),
    )
    mlflow.pytorch.log_model(
        model.network,
        name="student-torch",
        signature=signature,
        input_example=model.reference[:3],
        serialization_format="pt2",
        pip_requirements=requirements(),
        metadata={"class_names": model.class_names, "statistics": model.statistics},
    )


def requirements() -> list[str]:
    """Return the packages a model needs, in the versions at hand (without a local build's suffix, such as +cpu)."""
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in PACKAGES]
