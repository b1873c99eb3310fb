"""serve: put a student behind a port."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tasks.runtime.store import read_json
from tasks.serving.guarantee import guarantee
from tasks.serving.mlflow_model import quiet, save_student_model
from tasks.serving.rows import refuse_image_options
from tasks.serving.scoring import Application, scoring_app
from tasks.serving.student_source import read_reference
from terrine.deployment.manifest import MANIFEST, check_seal
from terrine.deployment.model import StudentModel
from terrine.deployment.network import ServingStatistics
from terrine.deployment.rows import TableStudent, takes_table

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CONCURRENCY = 64


def build_app(
    student: Path,
    statistics: ServingStatistics | None = None,
    *,
    reference: Path | None = None,
    device: str = "auto",
    most_bytes: int = 16_000_000,
) -> tuple[Application, StudentModel | TableStudent]:
    """Return the web application of the student in folder `student`, and the model that answers.

    The student becomes an MLflow model in a temporary folder and is loaded from there as any server would load it.
    reference: own reference images, a folder or file. Raises what `StudentModel.load` raises.
    """
    import mlflow

    manifest, table = check_seal(student), takes_table(student)
    if table:
        refuse_image_options(statistics, reference)
    own = read_reference(reference, size=manifest["size"], channels=manifest["channels"])
    with tempfile.TemporaryDirectory(prefix="terrine-serve-") as name:
        folder = Path(name)
        settings: dict[str, Any] = {"device": device}
        if not table:
            settings |= {"statistics": statistics, "reference": None}
        if own is not None:
            settings["reference"] = str(folder / "reference.npy")
            np.save(folder / "reference.npy", own, allow_pickle=False)
        save_student_model(student, folder / "model", check_example=False)
        with quiet():
            loaded = mlflow.pyfunc.load_model(str(folder / "model"), model_config=settings)
        model: StudentModel | TableStudent = loaded.unwrap_python_model().student
        app = scoring_app(loaded, model, most_bytes=most_bytes, about=about(student, model))
    return app, model


def about(student: Path, model: StudentModel | TableStudent) -> dict[str, Any]:
    """Return what the service tells about itself: the student, and the guarantee where its statement is at hand."""
    table = isinstance(model, TableStudent)
    takes = {"columns": model.about()} if table else {"shape": list(model.shape), "statistics": model.statistics}
    return {
        "class_names": model.class_names,
        **takes,
        "digests": read_json(student / MANIFEST)["digests"],
        "privacy": guarantee(student),
    }


def serve(app: Application, host: str, port: int) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(app, host=host, port=port, log_level="warning", limit_concurrency=_CONCURRENCY, timeout_keep_alive=30)
