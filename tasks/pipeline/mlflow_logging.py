"""Log finished runs to MLflow: ε, accuracy, settings, report and student.

Figures that depend on private records are logged only with `tracking.private_metrics`, which is for public benchmarks.
For other data only released and public values are logged.

MLflow orders run charts by metric name, with those under `system/` last, and model columns by time of logging. Names
are chosen so that accuracy and ε come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasks.artefacts.released import sums_over_records
from tasks.config.presets import reproduce_command
from tasks.pipeline.graph import MAIN
from tasks.pipeline.mlflow_runs import attempt, open_experiment, started_record
from tasks.pipeline.synthesize import drawing_cost
from tasks.reports.accuracy import known_accuracy, released_accuracy, released_error, served_accuracy
from tasks.reports.comparison import effective_settings
from tasks.runtime.code_digest import git_commit
from tasks.runtime.progress import timings, total_seconds
from tasks.runtime.releases import is_candidate
from tasks.runtime.run import Run
from tasks.runtime.stage_graph import Pipeline
from tasks.runtime.staleness import check_records
from tasks.runtime.step import step
from tasks.runtime.store import read_json, write_json
from tasks.runtime.versioning import lock_digest
from terrine.privacy.facts import sentences
from terrine.privacy.statement import epsilon_added, read_statement

QUERIES = ("query images", "query rows")
"""Names of the public inputs in a statement that are datasets."""

PARAMETERS = 100
"""Largest number of parameters in a request to MLflow."""

_BEHIND = {
    "accuracy_in_batches": "in_batches_accuracy", "auc": "macro_auc", "balanced_accuracy": "macro_recall",
    "audit_epsilon": "epsilon_audit", "answered": "queries_answered",
}  # fmt: skip
"""New names of metrics that must sort after `accuracy` and `epsilon`."""


@step("track")
def log_run(run: Run) -> str | None:
    """Log a finished run to MLflow; see `log_finished` for the result."""
    return log_finished(run, MAIN, _metrics(run, read_statement(run.folders.statement)))


def log_finished(
    run: Run,
    pipeline: Pipeline,
    metrics: Mapping[str, float | None],
    tags: Mapping[str, str] | None = None,
    released: Sequence[Path] = (),
    unused: Sequence[str] = (),
) -> str | None:
    """Log a finished run of any kind.

    Args:
        run: The run.
        pipeline: Its pipeline.
        metrics: Metrics. Values of None, such as ε without a guarantee, are omitted.
        tags: Additional tags.
        released: Folders of the release besides the student.
        unused: Sections of the parameters that this pipeline does not use.

    Returns:
        The ID of the MLflow run. If MLflow fails, None after a warning; the run can be logged later.

    Raises:
        ArtefactError: If the run's settings are no longer those of its records.
    """
    check_records(run)
    record = run.folders.private / "tracking.json"
    log = partial(_log, run, pipeline, metrics, tags or {}, released, unused)
    logged = attempt(run, log, f"The run is complete without it; log it later: terrine run {run.name}")
    if logged is None:
        record.unlink(missing_ok=True)
        return None
    write_json(record, logged)
    return logged["run_id"]


def _log(
    run: Run,
    pipeline: Pipeline,
    metrics: Mapping[str, float | None],
    tags: Mapping[str, str],
    released: Sequence[Path],
    unused: Sequence[str],
) -> dict[str, str]:
    """Log a finished run, and return the content of tracking.json."""
    import mlflow

    settings, statement = run.params.tracking, read_json(run.folders.statement)
    _, experiment = open_experiment(run)
    started = read_json(started_record(run))["run_id"] if started_record(run).is_file() else None
    with mlflow.start_run(run_id=started, run_name=run.name) as active:
        identity = active.info.run_id
        used = {k: v for k, v in effective_settings(run.params).items() if k.partition(".")[0] not in unused}
        for first in range(0, len(used), PARAMETERS):
            mlflow.log_params(dict(list(used.items())[first : first + PARAMETERS]))
        described = ("noise", "delta") if sums_over_records(run) else ("noise", "delta", "teachers", "queries")
        mlflow.set_tags(
            {
                "git_commit": git_commit(run.root),
                **({"dvc_lock": lock_digest(run.root, run.name)} if settings.private_metrics else {}),
                **{name: statement[name] for name in described},
                "private": "yes" if statement["private"] else "NOT PRIVATE",
                "mlflow.note.content": _note(run, statement, f"#/experiments/{experiment}/runs/{identity}/artifacts"),
                **tags,
            }
        )
        known = {_BEHIND.get(name, name): value for name, value in {**metrics, **known_accuracy(run)}.items()}
        # Log these before the models, to which MLflow copies the run's metrics and parameters.
        mlflow.log_metrics({name: value for name, value in sorted(known.items()) if value is not None})
        mlflow.log_metrics(stage_costs(run, pipeline))
        if settings.register_student:
            from tasks.serving.mlflow_model import log_student  # imports the network of the student

            log_student(run, register=not is_candidate(run))  # `sweep` registers the selected candidate
        _log_queries(statement)
        mlflow.log_artifact(str(run.folders.public_parameters))
        evaluated = [run.folders.evaluation] if run.params.data.public_benchmark else []
        for path in (run.folders.statement, run.folders.statement.with_name("statement.html"), *evaluated):
            mlflow.log_artifact(str(path), "release")
        if (released_accuracy(run.folders) or released_error(run.folders)) is not None:
            mlflow.log_artifact(str(run.folders.accuracy), "release")
        for folder in (run.folders.student, *released):
            mlflow.log_artifacts(str(folder), f"release/{folder.name}")
        if settings.private_metrics:
            mlflow.log_artifact(str(run.folders.report), "report")
    started_record(run).unlink(missing_ok=True)
    return {"run_id": identity, "uri": settings.uri}


def stage_costs(run: Run, pipeline: Pipeline) -> dict[str, float]:
    """Return the stages' wall-clock seconds and memory in MB that may be logged.

    Duration and memory depend on the records that a stage reads. Without private metrics, only the seconds of stages
    that read no records are returned, and no memory, because a process may still hold memory of an earlier stage.
    """
    measured = timings(run)
    if run.params.tracking.private_metrics:
        names = ("seconds", "memory_mb")
        costs = {f"system/{name}_{stage}": record[name] for stage, record in measured.items() for name in names}
        return costs | {"system/seconds": total_seconds(run)}
    apart = pipeline.public_stages
    if run.params.data.has_public_records:
        apart -= {"synthesize"}  # it reads the whole source to find the public records
    return {f"system/seconds_{stage}": record["seconds"] for stage, record in measured.items() if stage in apart}


def _note(run: Run, statement: Mapping[str, Any], artefacts: str) -> str:
    """Return the description of a run in Markdown: its guarantee, the command that reproduces it, and links."""
    figures = [
        f"**ε = {statement['epsilon_guaranteed']:g}** at δ = {statement['delta']:g} per {statement['unit']}"
        if statement["private"]
        else "**NOT PRIVATE**",
        *served_accuracy(run),
    ]
    return (
        f"{' '.join([', '.join(figures) + '.', *sentences(statement, 'unprotected')])}\n\n"
        f"    {reproduce_command(run.root, run.name, local=False)}\n\n"
        f"[Privacy statement]({artefacts}/release/statement.html) · [all parameters]({artefacts}/parameters.yaml)"
        " · without names of the site's files and accounts"
    )


def _log_queries(statement: Mapping[str, Any]) -> None:
    """Log the public queries as MLflow datasets: digest and origin only."""
    import mlflow
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset

    for item in statement["public_inputs"]:
        if item["name"] in QUERIES:
            source = CodeDatasetSource({"origin": item["origin"], "sha256": item["digest"]})
            data = MetaDataset(source, name=item["name"], digest=item["digest"][:8])  # type: ignore[abstract]
            mlflow.log_input(data, context="asked about")


def _metrics(run: Run, statement: dict[str, Any]) -> dict[str, float | None]:
    names = ("epsilon", "epsilon_guaranteed", "audit_epsilon", *(() if sums_over_records(run) else ("answered",)))
    metrics: dict[str, float | None] = {name: statement.get(name) for name in names}
    metrics["epsilon_added"] = epsilon_added(statement)
    metrics |= {f"system/drawing_{name}": value for name, value in drawing_cost(run).items()}
    if run.params.tracking.private_metrics:
        figures = read_json(run.folders.accounting / "figures.json")
        metrics |= {f"private_{name}": value for name, value in figures.items() if isinstance(value, int | float)}
    return metrics
