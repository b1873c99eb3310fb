"""MLflow: parameters, ε and accuracy of every run, with its report and its student.

Figures that are functions of private records are logged only where `tracking.private_metrics` allows it, which it does
for public benchmarks alone. Of other data MLflow sees what is released, what is public, and the evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.config.params import public_parameters
from tasks.config.values import flat
from tasks.pipeline.distance import distance_metrics
from tasks.pipeline.graph import MAIN
from tasks.pipeline.synthesize import drawing_cost
from tasks.reports.statement_page import read_statement
from tasks.runtime.graph import Pipeline
from tasks.runtime.provenance import code_version
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_json, write_json
from tasks.runtime.timing import timings
from tasks.runtime.versioning import lock_digest


@step("track")
def log_run(run: Run) -> str:
    """Log a finished run to MLflow and return the MLflow run's id."""
    statement = read_statement(run.folders.statement)
    return log_finished(run, MAIN, flat(public_parameters(run.params)), _metrics(run, statement))


def log_finished(
    run: Run,
    pipeline: Pipeline,
    parameters: dict[str, Any],
    metrics: Mapping[str, float | None],
    tags: Mapping[str, str] | None = None,
    released: Sequence[Path] = (),
) -> str:
    """Log what every finished run has, and what one kind of run has of its own; return the MLflow run's id.

    parameters: those that anybody may read.
    metrics: those that are None are left out: what was published without a guarantee has no ε, and MLflow takes no such
    metric. What the stages cost is added. released: folders of the release beside the student.
    """
    import mlflow

    settings, statement = run.params.tracking, read_json(run.folders.statement)
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    mlflow.set_experiment(settings.experiment)
    with mlflow.start_run(run_name=run.name) as active:
        mlflow.log_params(parameters)
        mlflow.set_tags(
            {
                "git_commit": code_version(run.root).get("commit", "none"),
                **({"dvc_lock": lock_digest(run.root, run.name)} if settings.private_metrics else {}),
                "noise": statement["noise"],
                "private": "yes" if statement["private"] else "NOT PRIVATE",
                **(tags or {}),
            }
        )
        known = {name: value for name, value in metrics.items() if value is not None}
        mlflow.log_metrics(known | stage_costs(run, pipeline))
        for path in (run.folders.statement, run.folders.statement.with_name("statement.html"), run.folders.evaluation):
            mlflow.log_artifact(str(path), "release")
        for folder in (run.folders.student, *released):
            mlflow.log_artifacts(str(folder), f"release/{folder.name}")
        if settings.private_metrics:
            mlflow.log_artifact(str(run.folders.report), "report")
        if settings.register_student:
            from tasks.serving.mlflow_model import log_student_models  # and with it the network of the student

            log_student_models(run)
        identity = active.info.run_id
    write_json(run.folders.private / "tracking.json", {"run_id": identity, "uri": settings.uri})
    return identity


def stage_costs(run: Run, pipeline: Pipeline) -> dict[str, float]:
    """Return what the stages cost, as far as it may be logged: seconds of wall clock and MB of memory.

    How long a stage takes, and how much it holds, hangs on the records that it reads. Where private figures stay at
    home, seconds are left of stages that read none, and no memory: a process holds on to some of an earlier stage's.
    """
    measured = timings(run)
    if run.params.tracking.private_metrics:
        names = ("seconds", "memory_mb")
        return {f"{name}_{stage}": record[name] for stage, record in measured.items() for name in names}
    apart = pipeline.apart_from_private
    if run.params.data.has_public_records:
        apart -= {"synthesize"}  # it reads all of the source to get at the public part
    return {f"seconds_{stage}": record["seconds"] for stage, record in measured.items() if stage in apart}


def _metrics(run: Run, statement: dict[str, Any]) -> dict[str, float | None]:
    answers = read_json(run.folders.answers / "manifest.json")
    evaluation = read_json(run.folders.evaluation)
    metrics: dict[str, float | None] = {
        "epsilon": statement["epsilon"],
        "epsilon_guaranteed": statement["epsilon_guaranteed"],
        "delta": statement["delta"],
        "accuracy": evaluation["accuracy"],
        "queries": answers["queries"],
        "answered": answers["answered"],
    }
    metrics |= {f"drawing_{name}": value for name, value in drawing_cost(run).items()}
    if run.params.tracking.private_metrics:
        figures = read_json(run.folders.accounting / "figures.json")
        metrics |= {f"private_{name}": value for name, value in figures.items() if isinstance(value, int | float)}
        metrics |= {f"private_{name}": value for name, value in distance_metrics(run.folders).items()}
    return metrics
