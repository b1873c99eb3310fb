"""report and tracking of a transcription: one private page, one run in MLflow, one table in the terminal."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from rich.table import Table

from tasks.evaluate import read_evaluation
from tasks.pages import render
from tasks.params import flat
from tasks.pictures import png_data_uri
from tasks.presets import read_preset
from tasks.provenance import code_version
from tasks.report import evaluation
from tasks.run import Run
from tasks.statement_page import statement_texts
from tasks.step import step
from tasks.store import read_json, write_json, write_text
from tasks.timing import timings
from tasks.transcribe_clients import read_manifest
from tasks.versioning import TRANSCRIPTION, lock_digest

UNUSED = ("queries", "backbone", "pretraining", "teachers", "aggregation", "student")
"""Sections of the parameters that say nothing to a transcription."""


@step("report")
def write_report(run: Run) -> None:
    """Write the report, a self-contained HTML page, into the private zone, from artefacts on disk alone."""
    statement = read_json(run.folders.statement)
    with Image.open(run.folders.generator / "sheet.png") as sheet:
        picture = png_data_uri(np.asarray(sheet.convert("RGB")))
    values = {
        "run": run,
        "preset": read_preset(run.root, run.name),
        "statement": statement,
        "evaluation": evaluation(dict(read_evaluation(run))),
        "teachers": read_manifest(run),
        "sheet": picture,
        "parameters": parameters(run),
        **statement_texts(statement),
    }
    write_text(run.folders.report, render("transcription.html", values))


def parameters(run: Run) -> dict[str, Any]:
    """Return the parameters that a transcription has, as `section.key` pairs."""
    return flat(run.params.model_dump(mode="json", exclude=set(UNUSED)))


def figures(run: Run) -> dict[str, float | None]:
    """Return the figures of a finished run that tables compare: accuracy, an evaluation, and what is public."""
    statement = read_json(run.folders.statement)
    names = ("epsilon", "epsilon_claimed", "delta", "queries", "teachers")
    return {"accuracy": read_json(run.folders.evaluation)["accuracy"], **{name: statement[name] for name in names}}


@step("track")
def log_run(run: Run) -> str:
    """Log a finished transcription to MLflow and return the MLflow run's id."""
    import mlflow

    settings, statement = run.params.tracking, read_json(run.folders.statement)
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    mlflow.set_experiment(settings.experiment)
    with mlflow.start_run(run_name=run.name) as active:
        mlflow.log_params(parameters(run))
        mlflow.set_tags(
            {
                "git_commit": code_version(run.root).get("commit", "none"),
                "dvc_lock": lock_digest(run.root, run.name, TRANSCRIPTION),
                "noise": statement["noise"],
                "private": "yes" if statement["private"] else "NOT PRIVATE",
                "unit": statement["unit"],
            }
        )
        metrics = {name: value for name, value in figures(run).items() if value is not None}
        for stage, record in timings(run).items():
            metrics |= {f"seconds_{stage}": record["seconds"], f"memory_mb_{stage}": record["memory_mb"]}
        if settings.private_metrics:
            manifest = read_manifest(run)
            metrics |= {f"private_{name}": manifest[name] for name in ("accuracy", "plurality_accuracy")}
        mlflow.log_metrics(metrics)
        for path in (run.folders.statement, run.folders.statement.with_name("statement.html"), run.folders.evaluation):
            mlflow.log_artifact(str(path), "release")
        mlflow.log_artifacts(str(run.folders.student), "release/student")
        mlflow.log_artifacts(str(run.folders.generator), "release/generator")
        if settings.private_metrics:
            mlflow.log_artifact(str(run.folders.report), "report")
        if settings.register_student:
            from tasks.mlflow_model import log_student_models

            log_student_models(run)
        identity = active.info.run_id
    write_json(run.folders.private / "tracking.json", {"run_id": identity, "uri": settings.uri})
    return identity


def summary_table(run: Run) -> Table:
    """Return the result as a table for the terminal: what holds and what is claimed, side by side."""
    statement, teachers = read_json(run.folders.statement), read_manifest(run)
    table = Table("result", "", title=f"Run {run.name}", title_justify="left", show_header=False)
    accuracy = read_json(run.folders.evaluation)["accuracy"]
    table.add_row("accuracy of the student (private test split)", f"{100 * accuracy:.2f} %")
    table.add_row("accuracy of the teacher (private)", f"{100 * teachers['accuracy']:.2f} %")
    if teachers["clients"] > 1:
        table.add_row("accuracy of the clients' plurality (private)", f"{100 * teachers['plurality_accuracy']:.2f} %")
    epsilon = statement["epsilon"]
    sound = "none: NOT PRIVATE" if epsilon is None else f"{epsilon:.4f} at δ = {statement['delta']:g}"
    table.add_row(f"ε, per {statement['unit']}", sound)
    claimed = statement["epsilon_claimed"]
    table.add_row("ε as the paper claims it", "–" if claimed is None else f"{claimed:.4f}: does not hold")
    if statement["noise"] != "secure":
        table.add_row("noise", "[bold red]NOT PRIVATE: replayed from a seed[/bold red]")
    table.add_row("samples annotated", f"{statement['answered']:,} by {statement['teachers']:,} teacher(s)")
    table.add_row("report (private)", str(run.folders.report.relative_to(run.root)))
    table.add_row("may be published" if statement["private"] else "results", f"data/release/{run.name}")
    return table
