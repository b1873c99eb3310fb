"""Stage `report`: write a transcription's private page, log the run to MLflow, and print its result."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from rich.text import Text

from tasks.config.presets import read_preset
from tasks.config.values import flat
from tasks.pipeline.mlflow_logging import log_finished
from tasks.pipeline.report import evaluation, shown_parameters
from tasks.reports.charts import png_data_uri
from tasks.reports.pages import render
from tasks.reports.statement_page import mechanism_texts
from tasks.reports.summary import result_lines
from tasks.runtime.release_identity import data_changes
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_json, write_text
from tasks.transcription.clients import read_manifest
from tasks.transcription.graph import TRANSCRIPTION
from terrine.privacy.statement import read_statement

UNUSED = ("queries", "backbone", "pretraining", "teachers", "aggregation", "student")
"""Sections of the parameters that a transcription ignores."""


@step("report")
def write_report(run: Run) -> None:
    """Write the report, a self-contained HTML page in the private zone, from the artefacts on disk."""
    statement = read_statement(run.folders.statement)
    with Image.open(run.folders.generator / "sheet.png") as sheet:
        picture = png_data_uri(np.asarray(sheet.convert("RGB")))
    values = {
        "run": run,
        "preset": read_preset(run.root, run.name),
        "statement": statement,
        "evaluation": evaluation(read_json(run.folders.evaluation)),
        "teachers": read_manifest(run),
        "sheet": picture,
        "parameters": flat(used(shown_parameters(run))),
        "changes": data_changes(run),
        **mechanism_texts(statement),
    }
    write_text(run.folders.report, render("transcription.html", values))


def used(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of a run's parameters that a transcription uses."""
    return {name: section for name, section in parameters.items() if name not in UNUSED}


@step("track")
def log_run(run: Run) -> str | None:
    """Log a finished transcription to MLflow and return the result of `log_finished`."""
    statement = read_statement(run.folders.statement)
    metrics = {name: statement[name] for name in ("epsilon", "epsilon_guaranteed", "epsilon_claimed")}
    if run.params.tracking.private_metrics:
        manifest = read_manifest(run)
        metrics |= {f"private_{name}": manifest[name] for name in ("accuracy", "plurality_accuracy")}
    return log_finished(
        run, TRANSCRIPTION, metrics, tags={"unit": statement["unit"]}, released=[run.folders.generator], unused=UNUSED
    )


def result(run: Run) -> Text:
    """Return the result of a run as lines for the terminal: the guaranteed and the claimed ε."""
    statement = read_statement(run.folders.statement)
    samples = f"{statement['answered']:,} by {statement['teachers']:,} teacher(s)"
    return result_lines(run, ("samples annotated", samples))
