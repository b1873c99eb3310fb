"""MLflow: parameters, ε and accuracy of every run, with its report and its student.

Figures that are functions of private votes are logged only where `tracking.private_metrics` allows it, which
params.yaml permits for public benchmark data alone.
"""

from __future__ import annotations

from typing import Any

from tasks.distance import distance_metrics
from tasks.params import flat
from tasks.provenance import code_version
from tasks.run import Run
from tasks.step import step
from tasks.store import read_json, write_json
from tasks.synthesize import drawing_cost
from tasks.timing import timings
from tasks.versioning import lock_digest


@step("track")
def log_run(run: Run) -> str:
    """Log a finished run to MLflow and return the MLflow run's id."""
    import mlflow

    settings = run.params.tracking
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    mlflow.set_experiment(settings.experiment)
    statement = read_json(run.folders.statement)
    with mlflow.start_run(run_name=run.name) as active:
        mlflow.log_params(flat(run.params.model_dump(mode="json")))
        mlflow.set_tags(
            {
                "git_commit": code_version(run.root).get("commit", "none"),
                "dvc_lock": lock_digest(run.root, run.name),
                "noise": statement["noise"],
                "private": "yes" if statement["noise"] == "secure" else "NOT PRIVATE",
            }
        )
        mlflow.log_metrics(_metrics(run, statement))
        mlflow.log_artifact(str(run.folders.statement), "release")
        mlflow.log_artifact(str(run.folders.statement.with_name("statement.html")), "release")
        mlflow.log_artifact(str(run.folders.evaluation), "release")
        mlflow.log_artifacts(str(run.folders.student), "release/student")
        if settings.private_metrics:
            mlflow.log_artifact(str(run.folders.report), "report")
        if settings.register_student:
            from tasks.mlflow_model import log_student_models  # and with it the network of the student

            log_student_models(run)
        identity = active.info.run_id
    write_json(run.folders.private / "tracking.json", {"run_id": identity, "uri": settings.uri})
    return identity


def _metrics(run: Run, statement: dict[str, Any]) -> dict[str, float]:
    answers = read_json(run.folders.answers / "manifest.json")
    evaluation = read_json(run.folders.evaluation)
    metrics: dict[str, float] = {
        "epsilon": statement["epsilon"],
        "delta": statement["delta"],
        "accuracy": evaluation["accuracy"],
        "queries": answers["queries"],
        "answered": answers["answered"],
    }
    for stage, record in timings(run).items():
        metrics[f"seconds_{stage}"] = record["seconds"]
        metrics[f"memory_mb_{stage}"] = record["memory_mb"]
    metrics |= {f"drawing_{name}": value for name, value in drawing_cost(run).items()}
    if run.params.tracking.private_metrics:
        figures = read_json(run.folders.accounting / "figures.json")
        metrics |= {f"private_{name}": value for name, value in figures.items() if isinstance(value, int | float)}
        metrics |= {f"private_{name}": value for name, value in distance_metrics(run.folders).items()}
    return metrics
