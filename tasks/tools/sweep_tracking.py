"""A sweep in MLflow: a parent run with the table, and both prices of the search on it and on every candidate's run."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config.presets import shown_assignment
from tasks.config.values import digest
from tasks.pipeline.tracking import FIGURE, attempt, log_run
from tasks.reports.accuracy import shown_accuracy
from tasks.reports.comparison import compared, comparison_page
from tasks.runtime.run import Run, open_run
from tasks.runtime.store import read_json

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "terrine.sweep"
PRICES = ("epsilon_tuning_composed", "epsilon_tuning_repeat_and_select")


def log_sweep(root: Path, preset: str, result: dict[str, Any]) -> str | None:
    """Log the outcome of a sweep (`tasks.tools.sweep.outcome`); return the id of its parent run, which the same sweep
    finds again. Where MLflow fails, that is warned of, and None returned.
    """
    finished = [open_run(root, row["run"]) for row in result["candidates"] if row["failed"] is None]
    first = open_run(root, result["candidates"][0]["run"])
    identities = [identity for run in finished if (identity := _tracked(run)) is not None]
    log = partial(_log, first, finished, identities, preset, result)
    return attempt(first, log, "The candidates are complete without it; the same command again logs the sweep.")


def _log(first: Run, finished: list[Run], identities: list[str], preset: str, result: dict[str, Any]) -> str:
    import mlflow

    settings = first.params.tracking
    client = mlflow.MlflowClient(first.database(settings.uri))
    parent = _parent(client, first, f"{preset}-sweep-{digest([row['run'] for row in result['candidates']], 8)}")
    prices = {name: result[name] for name in PRICES}
    for run_id in identities:
        for name, value in prices.items():
            client.log_metric(run_id, name, value)
        client.set_tag(run_id, "mlflow.parentRunId", parent)
    figures = prices | {name: result[name] for name in ("epsilon_tuning_composed_worst_case", "delta", "releases")}
    logged = _for_the_log(result, private_figures=bool(settings.private_metrics))
    for name, value in (figures | {"candidates": len(logged["candidates"])}).items():
        client.log_metric(parent, name, value)
    client.set_tag(parent, "private", "yes" if result["noise"] == "secure" else "NOT PRIVATE")
    if result["selected"] is not None:
        client.set_tag(parent, f"selected_by_{result['select']}", result["selected"])
    client.log_dict(parent, logged, "sweep.json")
    client.log_text(parent, markdown_table(logged), "sweep.md")
    rows = compared(first.root, [run.name for run in finished])
    client.log_text(parent, comparison_page(rows, f"Sweep of {preset}: ε against accuracy"), FIGURE)
    client.set_terminated(parent)
    return parent


def _for_the_log(result: dict[str, Any], *, private_figures: bool) -> dict[str, Any]:
    """Return a sweep's outcome without paths; where private figures stay at home, without candidates that failed: what
    refused them may be a count of private records."""
    rows = []
    for row in result["candidates"]:
        settings = {
            key: value if "=" in shown_assignment(f"{key}={value}") else "not logged"
            for key, value in row["settings"].items()
        }
        if private_figures or row["failed"] is None:
            rows.append(row | {"settings": settings})
    return result | {"candidates": rows}


def _tracked(run: Run) -> str | None:
    """The MLflow run of a finished run; one that this MLflow does not know is logged again, as far as that goes."""
    from mlflow import MlflowClient

    record = run.folders.private / "tracking.json"
    if record.is_file():
        run_id = str(read_json(record)["run_id"])
        with suppress(Exception):  # of whatever library MLflow stands on; logging says what is wrong
            client = MlflowClient(run.database(run.params.tracking.uri))
            if client.get_run(run_id).info.lifecycle_stage == "active":
                return run_id
    return log_run.fn(run)


def _parent(client: MlflowClient, run: Run, name: str) -> str:
    settings = run.params.tracking
    experiment = client.get_experiment_by_name(settings.experiment)
    if experiment is None:
        folder = (run.root / "mlartifacts").as_uri()
        identity = client.create_experiment(settings.experiment, artifact_location=folder)
    else:
        identity = experiment.experiment_id
    known = client.search_runs([identity], f"tags.`{TAG}` = '{name}'", max_results=1)
    parent = known[0] if known else client.create_run(identity, run_name=name, tags={TAG: name})
    return str(parent.info.run_id)


def markdown_table(result: dict[str, Any]) -> str:
    """Return the sweep as a Markdown table, with the prices and what they cover below it."""
    header, *rows = ["| " + " | ".join(cells) + " |" for cells in cells_of(result)]
    rule = "|---" * (header.count(" | ") + 1) + "|"
    return "\n".join([header, rule, *rows, "", *(f"- {line}" for line in summary(result)), ""])


def cells_of(result: dict[str, Any]) -> list[list[str]]:
    """Return the sweep's table as text: a row of headings, then a row per candidate."""
    rows = result["candidates"]
    keys = list(rows[0]["settings"])
    accuracies, noised = (any(row.get(name) for row in rows) for name in ("accuracy", "released"))
    cells = [[*keys, "run", "release", "own exact ε", "answered / asked"]]
    cells[0] += ["accuracy as served %"] if accuracies else []
    cells[0] += ["accuracy released"] if noised else []
    for row in rows:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
        answers = "failed" if row["failed"] else f"{row['answered']} / {row['asked']}"
        accuracy = [f"{100 * row['accuracy']:.2f}" if "accuracy" in row else ""] if accuracies else []
        release = (row["release_id"] or "none")[:8]
        cells.append([*(row["settings"][key] for key in keys), row["run"], release, epsilon, answers, *accuracy])
        own = row["released"]
        cells[-1] += [shown_accuracy(own["accuracy"], own["plus_minus"]) if own else ""] if noised else []
    return cells


def summary(result: dict[str, Any]) -> list[str]:
    """Return the prices of a sweep and what each of them covers, as sentences."""
    releases = result["releases"]
    lines = [
        f"{len(result['candidates'])} candidates, {releases} distinct release{'s' if releases != 1 else ''}, "
        f"δ = {result['delta']:g}; at most ε = {result['epsilon_tuning_composed_worst_case']:g} in all was allowed for."
    ]
    if result["noise"] != "secure":
        lines.append("NOT PRIVATE: the noise was replayed from a seed, and no ε below is a guarantee.")
    lines += [f"{name} = {result[name]:g}: {result['notes'][name]}" for name in PRICES]
    lines.append(result["notes"]["evaluation"])
    if result["selected"] is not None:
        which = "that was released with noise" if result["select"] == "released" else "on the test split"
        lines.append(f"Best by accuracy {which}: {result['selected']}.")
    lines += [f"{row['run']} failed: {row['failed']}" for row in result["candidates"] if row["failed"]]
    return lines
