"""MLflow: ε and accuracy of every run in view, with its settings, its report and its student.

Figures that are functions of private records are logged only where `tracking.private_metrics` allows it, for public
benchmarks alone. Of other data MLflow sees what is released and what is public.

An experiment opens in a view whose columns are ε and accuracy, and holds one run more, with a figure of all others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.pipeline.distance import distance_metrics
from tasks.pipeline.graph import MAIN
from tasks.pipeline.report import reproduce_command
from tasks.pipeline.synthesize import drawing_cost
from tasks.reports.accuracy import known_accuracy, released_accuracy, released_error, served_accuracy
from tasks.reports.comparison import Compared, along_the_front, comparison_page, own_settings, series
from tasks.reports.statement_page import read_statement
from tasks.runtime.databases import lay_out
from tasks.runtime.graph import Pipeline
from tasks.runtime.locks import locked, of_project
from tasks.runtime.origin import check_records
from tasks.runtime.provenance import code_version
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_json, write_json
from tasks.runtime.timing import timings
from tasks.runtime.versioning import lock_digest
from terrine.privacy.facts import told

if TYPE_CHECKING:
    from mlflow import MlflowClient

Logged = TypeVar("Logged")

_logger = logging.getLogger(__name__)

QUERIES = ("query images", "query rows")
"""What statements call public inputs that are data sets."""

FIGURE = "epsilon-against-accuracy.html"
DATA, COMPARISON = "terrine.data", "terrine.comparison"
"""Tags: of a run, what it can be compared with; of the run that holds an experiment's figure."""

VIEW = "terrine"
"""The key of the experiment's view: MLflow keeps it in a tag of the experiment, and an address names it."""


@step("track")
def log_run(run: Run) -> str | None:
    """Log a finished run to MLflow; return what `log_finished` does."""
    return log_finished(run, MAIN, _metrics(run, read_statement(run.folders.statement)))


def log_finished(
    run: Run,
    pipeline: Pipeline,
    metrics: Mapping[str, float | None],
    tags: Mapping[str, str] | None = None,
    released: Sequence[Path] = (),
    unused: Sequence[str] = (),
) -> str | None:
    """Log what every finished run has, and what one kind of run has of its own; return the MLflow run's id.

    MLflow that fails is warned of, and None returned: the run is complete all the same, and may be logged later.
    Raises ArtefactError for a run whose settings are no longer those of its records.

    metrics: those that are None are left out, as an ε that nothing guarantees. released: folders of the release beside
    the student. unused: sections of the parameters that say nothing to this pipeline.
    """
    check_records(run)
    record = run.folders.private / "tracking.json"
    log = partial(_log, run, pipeline, metrics, tags or {}, released, unused)
    logged = attempt(run, log, f"The run is complete without it; log it later: terrine run --preset {run.name}")
    if logged is None:
        record.unlink(missing_ok=True)
        return None
    write_json(record, logged)
    return logged["run_id"]


def attempt(run: Run, log: Callable[[], Logged], later: str) -> Logged | None:
    """Log to MLflow, one process at a time; warn and return None where MLflow fails: what was made is made.

    later: what the warning says of it.
    """
    try:
        lay_out_database(run)
        with locked(of_project(run.root, "tracking")):
            return log()
    except Exception as error:  # of whatever library MLflow stands on
        first = str(error).strip().partition("\n")[0]
        uri = run.params.tracking.uri
        _logger.warning("MLflow at %s could not log (%s: %s). %s", uri, type(error).__name__, first, later)
        return None


def lay_out_database(run: Run) -> None:
    """Make MLflow's database where it is a file and not there yet, whole or not at all: it takes many seconds."""
    path = run.database(run.params.tracking.uri).removeprefix("sqlite:///").partition("?")[0]
    if "://" not in path and path != run.params.tracking.uri:
        lay_out(Path(path), _migrate, of_project(run.root, "tracking"))


def _migrate(database: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{database}").search_experiments()


def _log(
    run: Run,
    pipeline: Pipeline,
    metrics: Mapping[str, float | None],
    tags: Mapping[str, str],
    released: Sequence[Path],
    unused: Sequence[str],
) -> dict[str, str]:
    """Log a finished run; return what there is to find it again."""
    import mlflow

    settings, statement = run.params.tracking, read_json(run.folders.statement)
    mlflow.set_tracking_uri(run.database(settings.uri))
    if mlflow.get_experiment_by_name(settings.experiment) is None:
        mlflow.create_experiment(settings.experiment, artifact_location=(run.root / "mlartifacts").as_uri())
    experiment = mlflow.set_experiment(settings.experiment).experiment_id
    client = mlflow.MlflowClient()
    if settings.uri.startswith("sqlite:"):  # the project's own, to which one logs at a time
        for left in client.search_runs([experiment], f"run_name = '{run.name}' and attributes.status != 'FINISHED'"):
            client.delete_run(left.info.run_id)  # of a process that was killed over it, or failed
    with mlflow.start_run(run_name=run.name) as active:
        identity = active.info.run_id
        own = own_settings(run.params)
        mlflow.log_params({key: value for key, value in own.items() if key.partition(".")[0] not in unused})
        mlflow.set_tags(
            {
                "git_commit": code_version(run.root).get("commit", "none"),
                **({"dvc_lock": lock_digest(run.root, run.name)} if settings.private_metrics else {}),
                "noise": statement["noise"],
                "private": "yes" if statement["private"] else "NOT PRIVATE",
                DATA: series(run.params, statement["dataset"]),
                "mlflow.note.content": _note(run, statement, f"#/experiments/{experiment}/runs/{identity}/artifacts"),
                **tags,
            }
        )
        known = {name: value for name, value in (metrics | known_accuracy(run)).items() if value is not None}
        mlflow.log_metrics(known | stage_costs(run, pipeline))
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
        if settings.register_student:
            from tasks.serving.mlflow_model import log_student_models  # and with it the network of the student

            log_student_models(run)
    view = show_experiment(client, experiment)
    return {"run_id": identity, "uri": settings.uri, "view": view}


def stage_costs(run: Run, pipeline: Pipeline) -> dict[str, float]:
    """Return what the stages cost, as far as it may be logged: seconds of wall clock and MB of memory.

    How long a stage takes, and how much it holds, hangs on the records that it reads. Where private figures stay at
    home, seconds are left of stages that read none, and no memory: a process holds on to some of an earlier stage's.
    """
    measured = timings(run)
    if run.params.tracking.private_metrics:
        names = ("seconds", "memory_mb")
        costs = {f"cost/{name}_{stage}": record[name] for stage, record in measured.items() for name in names}
        return costs | {"cost/seconds": sum(record["seconds"] for record in measured.values())}
    apart = pipeline.public_stages
    if run.params.data.has_public_records:
        apart -= {"synthesize"}  # it reads all of the source to get at the public part
    return {f"cost/seconds_{stage}": record["seconds"] for stage, record in measured.items() if stage in apart}


def show_experiment(client: MlflowClient, experiment: str) -> str:
    """Let an experiment open with ε and accuracy in view, and draw its figure anew; return its address in the UI.

    MLflow shows a fixed choice of columns, none of them a metric, unless an address names a view that is kept in a tag
    of the experiment.
    """
    runs = [run for run in client.search_runs([experiment], max_results=5000) if DATA in run.data.tags]
    latest = {run.info.run_name: run for run in reversed(runs)}  # they come with the youngest first
    rows = along_the_front([_compared(run) for run in latest.values()])
    # Few, so that ε is in view on a narrow screen: MLflow sorts them by name.
    shown = {"accuracy" if "accuracy" in run.data.metrics else "accuracy_released" for run in runs}
    columns = [f"metrics.`{name}`" for name in (*sorted(shown), "epsilon")]
    client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{VIEW}", json.dumps({"selectedColumns": columns}))
    view = f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
    note = f"[All runs: ε and accuracy]({view})"
    if any(row.accuracy is not None and row.epsilon is not None for row in rows):
        page = _log_figure(client, experiment, rows, {name: run.info.run_id for name, run in latest.items()})
        note += f" · [figure: ε against accuracy]({page})"
    client.set_experiment_tag(experiment, "mlflow.note.content", note)
    return view


def _log_figure(client: MlflowClient, experiment: str, rows: Sequence[Compared], identities: Mapping[str, str]) -> str:
    """Write the figure of an experiment into the one run that is there for it, and return its address in the UI."""
    known = client.search_runs([experiment], f"tags.`{COMPARISON}` = 'yes'", max_results=1)
    identity = (
        known[0].info.run_id
        if known
        else client.create_run(experiment, run_name="ε against accuracy", tags={COMPARISON: "yes"}).info.run_id
    )
    name = client.get_experiment(experiment).name

    def link(run: str) -> str:
        return f"/#/experiments/{experiment}/runs/{identities[run]}"

    client.log_text(identity, comparison_page(rows, f"Experiment {name}: ε against accuracy", link), FIGURE)
    page = f"#/experiments/{experiment}/runs/{identity}/artifacts/{FIGURE}"
    client.set_tag(identity, "mlflow.note.content", f"No run by itself: [all of them in one figure]({page}).")
    client.set_terminated(identity)
    return page


def _compared(run: Any) -> Compared:
    """Return a run of MLflow as it is compared."""
    metrics, tags = run.data.metrics, run.data.tags
    noised = "accuracy" not in metrics
    return Compared(
        run=run.info.run_name,
        data=tags[DATA],
        epsilon=metrics.get("epsilon_guaranteed"),
        delta=metrics["delta"],
        accuracy=metrics.get("accuracy_released" if noised else "accuracy"),
        plus_minus=metrics.get("accuracy_released_plus_minus", 0.0) if noised else 0.0,
        teachers=int(metrics["teachers"]),
        answered=int(metrics.get("answered", metrics["queries"])),
        queries=int(metrics["queries"]),
        seconds=metrics.get("cost/seconds"),
        settings=run.data.params,
    )


def _note(run: Run, statement: Mapping[str, Any], artefacts: str) -> str:
    """Return, in Markdown, what a run guarantees, the command that makes it again, and where to read on."""
    figures = [
        f"**ε = {statement['epsilon_guaranteed']:g}** at δ = {statement['delta']:g} per {statement['unit']}"
        if statement["private"]
        else "**NOT PRIVATE**",
        *served_accuracy(run),
    ]
    return (
        f"{' '.join([', '.join(figures) + '.', *told(statement, 'unprotected')])}\n\n"
        f"    {reproduce_command(run, at_home=False)}\n\n"
        f"[Privacy statement]({artefacts}/release/statement.html) · [all parameters]({artefacts}/parameters.yaml)"
        " · what names files or accounts of the site is left out"
    )


def _log_queries(statement: Mapping[str, Any]) -> None:
    """Log the public queries as MLflow's data sets, by their digest and where they come from; no private data."""
    import mlflow
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset

    for item in statement["public_inputs"]:
        if item["name"] in QUERIES:
            source = CodeDatasetSource({"origin": item["origin"], "sha256": item["digest"]})
            data = MetaDataset(source, name=item["name"], digest=item["digest"][:8])
            mlflow.log_input(data, context="asked about")


def _metrics(run: Run, statement: dict[str, Any]) -> dict[str, float | None]:
    names = ("epsilon", "epsilon_guaranteed", "audit_epsilon", "delta", "teachers", "queries", "answered")
    metrics: dict[str, float | None] = {name: statement[name] for name in names}
    metrics |= {f"cost/drawing_{name}": value for name, value in drawing_cost(run).items()}
    if run.params.tracking.private_metrics:
        figures = read_json(run.folders.accounting / "figures.json")
        metrics |= {f"private_{name}": value for name, value in figures.items() if isinstance(value, int | float)}
        metrics |= {f"private_{name}": value for name, value in distance_metrics(run.folders).items()}
    return metrics
