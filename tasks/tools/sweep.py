"""Hyperparameter search: candidates, their joint worst-case cost, the cost of the search, and its MLflow run.

Candidates are ordinary runs, and the ledger charges each distinct release when it is made. Candidates that differ only
in their student share one release (docs/settings.md).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from tasks.config.params import Params
from tasks.config.presets import derive, redact_override, resolve
from tasks.config.values import digest
from tasks.pipeline.mlflow_logging import log_run
from tasks.pipeline.mlflow_runs import SWEEP, attempt, open_experiment
from tasks.reports.accuracy import released_accuracy, shown_accuracy
from tasks.runtime.accounts import noise_source, open_account
from tasks.runtime.parameters import preview_auto, resolve_auto, resolve_without_data, survey_data, task_from_survey
from tasks.runtime.release_identity import release_digest
from tasks.runtime.releases import Release, describe_releases, list_releases, unpaid
from tasks.runtime.run import Run, check_not_transcription, open_run
from tasks.runtime.store import Folders, read_json
from tasks.tools.check import inspect_settings
from terrine.data.source import Survey
from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import Event
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import composed_epsilon
from terrine.privacy.ledger.account import check_together
from terrine.privacy.ledger.task import Task

Selection = Literal["none", "evaluation", "released"]


FIXED = ("data", "privacy", "ledger", "tracking", "runner", "aggregation.delta", "aggregation.noise")
"""Settings that a sweep cannot vary, because its prices are for one dataset, account and δ."""
LABELS = {"aggregation.epsilon": "ε", "aggregation.delta": "δ", "aggregation.sigma": "σ"}
"""Short names of settings; other settings are shown by the last part of their names."""
REACHED = 0.95
"""Smallest share of aggregation.epsilon that counts as reached."""

NOTES = {
    "epsilon_tuning_composed": "all distinct releases together, as charged by the ledger. It covers any choice among "
    "the candidates by released results, and publishing all of them.",
    "evaluation": "Accuracy is computed on the private test split. Neither price covers the test records: a choice by "
    "accuracy leaks about them without bound. Accuracies released with noise are part of the prices.",
}


@dataclass(frozen=True)
class Candidate:
    """A combination of varied values (`settings`, as text), its run, and the task of the shared dataset."""

    run: str
    settings: Mapping[str, str]
    params: Params
    task: Task

    @property
    def release(self) -> str:
        """Digest of the parameters that affect the release."""
        return release_digest(self.params)

    @property
    def text(self) -> str:
        """The varied values, such as "ε = 4, teachers = 200"."""
        return ", ".join(f"{label(key)} = {value}" for key, value in self.settings.items())


def label(key: str) -> str:
    """Return a short name of a setting."""
    return LABELS.get(key, key.rpartition(".")[2])


def parse_vary(text: str) -> tuple[str, list[str]]:
    """Parse `section.key=value,value` with YAML values into the key and its values as text.

        >>> parse_vary("aggregation.sigma=20, 40")
        ('aggregation.sigma', ['20', '40'])

    Raises:
        SettingError: If key or values are missing or invalid.
    """
    key, _, listed = text.partition("=")
    try:
        values = yaml.safe_load(f"[{listed}]")
    except yaml.YAMLError as error:
        raise SettingError(f"--vary {text}: the values are not valid YAML. Separate them by commas.") from error
    if not key.strip() or not values:
        raise SettingError(f"--vary {text}: write section.key=value,value, for example --vary aggregation.sigma=20,40.")
    return key.strip(), [_as_text(value) for value in values]


def _as_text(value: Any) -> str:
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def make_candidates(
    root: Path, preset: str, assignments: list[str], varied: list[str], selection: Selection = "none"
) -> list[Candidate]:
    """Return a derived run for every distinct combination of the varied values.

    If `auto` requires counting units, the count is charged after candidates, selection and budget were checked.

    Args:
        root: The project.
        preset: The preset or run to start from.
        assignments: Settings of all candidates.
        varied: Values to try, `section.key=value,value`.
        selection: How the best candidate will be chosen.

    Raises:
        SettingError: If a key cannot be varied or is repeated, or a combination is invalid.
        BudgetError: If the account does not cover all candidates.
    """
    axes = [parse_vary(text) for text in varied]
    if not axes:
        raise SettingError("A sweep varies at least one parameter: add --vary section.key=value,value.")
    _check_keys([key for key, _ in axes], assignments)
    found: dict[str, tuple[dict[str, str], Params]] = {}
    survey: Survey | None = None
    automatic = False
    for values in itertools.product(*(values for _, values in axes)):
        settings = dict(zip((key for key, _ in axes), values, strict=True))
        chosen = [f"{key}={value}" for key, value in settings.items()]
        try:
            run = derive(root, preset, [*assignments, *chosen])
        except SettingError as error:
            raise SettingError(f"The candidate {', '.join(chosen)} is impossible:\n{error}") from error
        params = resolve_without_data(root, run)
        if params is None:
            automatic, survey = True, survey or survey_data(Run(root, run, resolve(root, run)))
            params = preview_auto(root, run, survey)
        check_not_transcription(run, params)
        found.setdefault(run, (settings, params))
    one, (_, params) = next(iter(found.items()))
    survey = survey or survey_data(Run(root, one, params))
    task = task_from_survey(Run(root, one, params), survey)
    ahead = [Candidate(run, settings, params, task) for run, (settings, params) in found.items()]
    check_selection(ahead, selection)
    for each in ahead:
        if stops := inspect_settings(root, each.run, survey).stops:
            raise SettingError("\n".join([f"The candidate {each.text} is impossible. Nothing was made.", *stops]))
    if automatic:
        check_budget(root, ahead)
    return [replace(each, params=resolve_auto(root, each.run, survey)) for each in ahead]


def note_on_noise(candidates: list[Candidate]) -> str | None:
    """Return a note if the candidates differ in ε but not in the noise on votes."""
    budgets = [each.params.aggregation for each in candidates]
    sigmas = {getattr(budget, "sigma", None) for budget in budgets}
    if len({budget.epsilon for budget in budgets}) == 1 or len(sigmas) > 1 or sigmas == {None}:
        return None
    return (
        f"Note: all candidates have aggregation.sigma={sigmas.pop():g}, so ε only limits the number of answers. To fit "
        "the noise to each ε: --set aggregation.sigma=auto."
    )


def _check_keys(keys: list[str], assignments: list[str]) -> None:
    for key in keys:
        for fixed in FIXED:
            if _overlap(key, fixed):
                raise SettingError(
                    f"--vary {key}: a sweep has one dataset, one account, one δ and one kind of noise, so {fixed} "
                    "stays the same in all candidates. Use --set, or make several runs."
                )
    named = [*keys, *(assignment.partition("=")[0].strip() for assignment in assignments)]
    for key, other in itertools.combinations(named, 2):
        if key in keys and _overlap(key, other):
            raise SettingError(f"--vary {key}: {other} is given as well. Name every parameter once.")


def _overlap(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def check_selection(candidates: list[Candidate], selection: Selection) -> None:
    """Raise SettingError if the selection needs missing figures, or figures of private data that no ε covers."""
    if selection == "evaluation" and not candidates[0].params.data.public_benchmark:
        raise SettingError(
            "--select evaluation chooses by accuracy on the private test split, which is not covered by any ε of the "
            "sweep. It is for public benchmarks. Use --select none and choose by public figures (docs/settings.md), or "
            "release accuracies with noise: --set evaluation.epsilon=0.5 --select released."
        )
    numbers = any(scale is not None and scale.edges for scale in (each.params.data.scale for each in candidates))
    if selection == "released" and numbers:
        raise SettingError(
            "--select released compares accuracies, but runs with data.bins release errors. Use --select none and "
            "compare their accuracy.json."
        )
    if selection == "released" and any(candidate.params.evaluation.epsilon is None for candidate in candidates):
        raise SettingError(
            "--select released needs accuracies released with noise. Add --set evaluation.epsilon=0.5; each "
            "candidate's is charged."
        )


def check_budget(root: Path, candidates: list[Candidate]) -> int:
    """Check that the account covers all candidates, and return the largest possible number of new releases.

    No budget is reserved here, because each run reserves its releases.

    Raises:
        BudgetError: If the account does not cover all candidates; the message names the remaining budget.
        LedgerError: See `open_account`.
    """
    run = Run(root, candidates[0].run, candidates[0].params)
    ledger, dataset = open_account(run)
    new = unpaid(ledger, _releases(root, candidates))
    if new:
        try:
            costs = [release.worst_case for release in new]
            check_together(ledger.together(dataset), costs, noise_source(run).kind, describe_releases(new))
        except BudgetError as error:
            raise BudgetError(
                f"The sweep has {len(candidates)} candidates and needs {len(new)} new releases. {error} Vary fewer "
                "values or lower queries.count or aggregation.epsilon."
            ) from error
    return len(new)


def outcome(
    root: Path, candidates: list[Candidate], failures: Mapping[str, str], selection: Selection
) -> dict[str, Any]:
    """Return the result of a sweep as JSON values: a row per candidate, the prices of the search and the choice.

    A candidate that failed after its release counts in the prices.

    Raises:
        SettingError: If no candidate made its release.
    """
    check_selection(candidates, selection)
    public = candidates[0].params.data.public_benchmark
    rows = [_row(root, candidate, failures.get(candidate.run), public) for candidate in candidates]
    delta = candidates[0].params.aggregation.delta
    answers = {row["release_id"] for row in rows} - {None}
    if not answers:
        raise SettingError(f"No candidate made its release: {next(iter(failures.values()), 'nothing was run')}")
    finished = [row for row in rows if row["failed"] is None]
    score = {"evaluation": lambda row: row["accuracy"], "released": lambda row: row["released"]["accuracy"]}
    best = max(finished, key=score[selection]) if selection in score and finished else None
    return {
        "candidates": rows,
        "releases": len(answers),
        "delta": delta,
        "noise": candidates[0].params.aggregation.noise,
        "epsilon_tuning_composed": round_up(composed_epsilon(_charged(root, candidates), delta)),
        "epsilon_tuning_composed_worst_case": worst_case_price(root, candidates),
        "select": selection,
        "selected": None if best is None else best["run"],
        "notes": NOTES,
    }


def worst_case_price(root: Path, candidates: list[Candidate]) -> float:
    """Return the worst-case ε of all distinct releases together, from parameters only."""
    costs = {one.identity: one.worst_case for one in _releases(root, candidates)}
    return round_up(composed_epsilon(costs, candidates[0].params.aggregation.delta))


def _releases(root: Path, candidates: list[Candidate]) -> list[Release]:
    """Return the releases of candidates with their worst-case costs."""
    return [one for each in candidates for one in list_releases(Run(root, each.run, each.params), task=each.task)]


def _charged(root: Path, candidates: list[Candidate]) -> dict[str, Event]:
    """Return the ledger's charges for a search's distinct releases."""
    ledger, dataset = open_account(open_run(root, candidates[0].run))
    costs = ledger.costs(dataset)
    # The averages are one release with several rows.
    return {
        one.identity: one.worst_case if one.kind == "averages" else costs.get(one.identity, one.worst_case)
        for one in _releases(root, candidates)
        if one.identity in costs or ledger.committed(one.identity)
    }


def _row(root: Path, candidate: Candidate, failed: str | None, public_benchmark: bool) -> dict[str, Any]:
    folders = Folders(root, candidate.run)
    statement = read_json(folders.statement) if folders.statement.is_file() else {}
    row = {name: statement.get(name) for name in ("release_id", "epsilon", "answered", "queried", "queries")}
    row |= {"run": candidate.run, "settings": dict(candidate.settings), "failed": failed}
    row["requested"] = candidate.params.aggregation.epsilon
    row["released"] = released_accuracy(folders)
    # On private data, a column of accuracies would invite a choice that no ε covers.
    if public_benchmark and failed is None:
        row["accuracy"] = read_json(folders.evaluation)["accuracy"]
    return row


def log_sweep(root: Path, preset: str, result: dict[str, Any]) -> str | None:
    """Log the result of a sweep to MLflow: a parent run with the table, and the prices on all runs.

    The selected candidate's student is registered.

    Returns:
        The ID of the parent run, which is the same for the same sweep; None after a warning if MLflow failed.
    """
    finished = [open_run(root, row["run"]) for row in result["candidates"] if row["failed"] is None]
    first = open_run(root, result["candidates"][0]["run"])
    identities = [identity for run in finished if (identity := _tracked(run)) is not None]
    log = partial(_log, first, finished, identities, preset, result)
    return attempt(first, log, "The candidates are complete; the same command logs the sweep again.")


def _log(first: Run, finished: list[Run], identities: list[str], preset: str, result: dict[str, Any]) -> str:
    client, experiment = open_experiment(first)
    name = f"{preset}-sweep-{digest([row['run'] for row in result['candidates']], 8)}"
    known = client.search_runs([experiment], f"tags.`{SWEEP}` = '{name}'", max_results=1)
    found = known[0] if known else client.create_run(experiment, run_name=name, tags={SWEEP: name})
    parent = str(found.info.run_id)
    for run_id in identities:
        client.log_metric(run_id, "epsilon_tuning_composed", result["epsilon_tuning_composed"])
        client.set_tag(run_id, "mlflow.parentRunId", parent)
    named = ("epsilon_tuning_composed", "epsilon_tuning_composed_worst_case", "releases")
    figures = {name: result[name] for name in named}
    logged = _for_the_log(result, private_figures=bool(first.params.tracking.private_metrics))
    for name, value in (figures | {"candidates": len(logged["candidates"])}).items():
        client.log_metric(parent, name, value)
    client.log_param(parent, "delta", result["delta"])
    client.set_tag(parent, "private", "yes" if result["noise"] == "secure" else "NOT PRIVATE")
    if result["selected"] is not None:
        client.set_tag(parent, f"selected_by_{result['select']}", result["selected"])
        if first.params.tracking.register_student:
            runs = {run.name: (run, identity) for run, identity in zip(finished, identities, strict=False)}
            register(*runs[result["selected"]])
    client.log_dict(parent, logged, "sweep.json")
    if logged["candidates"]:
        headings, *cells = table_cells(logged)
        rows = [headings, ["---"] * len(headings), *cells]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        client.set_tag(parent, "mlflow.note.content", "\n\n".join([table, *summary(logged)]))
    client.set_terminated(parent)
    return parent


def register(run: Run, identity: str) -> None:
    """Register a candidate's student under its MLflow run, unless it is registered."""
    import mlflow

    from tasks.serving.mlflow_model import log_student

    if not mlflow.MlflowClient().search_model_versions(f"name = '{run.name}'"):
        with mlflow.start_run(run_id=identity):
            log_student(run)


def _for_the_log(result: dict[str, Any], *, private_figures: bool) -> dict[str, Any]:
    """Return a sweep's result without site-local settings and, unless private figures may be logged, without failures.

    The reason for a failure may contain a count of private records.
    """
    rows = []
    for row in result["candidates"]:
        settings = {
            key: value if "=" in redact_override(f"{key}={value}") else "not logged"
            for key, value in row["settings"].items()
        }
        if private_figures or row["failed"] is None:
            rows.append(row | {"settings": settings})
    return result | {"candidates": rows}


def _tracked(run: Run) -> str | None:
    """Return the ID of a finished run's MLflow run, which is logged first if it does not exist."""
    from mlflow import MlflowClient

    record = run.folders.private / "tracking.json"
    if record.is_file():
        run_id = str(read_json(record)["run_id"])
        with suppress(Exception):  # any library that MLflow uses may raise; logging reports it
            client = MlflowClient(run.database(run.params.tracking.uri))
            if client.get_run(run_id).info.lifecycle_stage == "active":
                return run_id
    identity: str | None = log_run.fn(run)
    return identity


def table_cells(result: dict[str, Any]) -> list[list[str]]:
    """Return the sweep's table as text: a row of headings and a row per candidate."""
    rows = result["candidates"]
    keys = list(rows[0]["settings"])
    accuracies, noised = (any(row.get(name) for row in rows) for name in ("accuracy", "released"))
    cells = [[*map(label, keys), "run", "release", "exact ε", "answered"]]
    cells[0] += ["accuracy as served %"] if accuracies else []
    cells[0] += ["accuracy released"] if noised else []
    for row in rows:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
        answers = "failed" if row["failed"] else f"{row['answered']:,}/{row['queries']:,}" if row["queries"] else "–"
        accuracy = [f"{100 * row['accuracy']:.2f}" if "accuracy" in row else ""] if accuracies else []
        release = (row["release_id"] or "none")[:8]
        cells.append([*(row["settings"][key] for key in keys), row["run"], release, epsilon, answers, *accuracy])
        noisy = row["released"]
        cells[-1] += [shown_accuracy(noisy["accuracy"], noisy["plus_minus"]) if noisy else ""] if noised else []
    return cells


def _ties(result: dict[str, Any]) -> str:
    """Return half a sentence about candidates whose released accuracies do not differ by more than their noise."""
    noisy = {row["run"]: row["released"] for row in result["candidates"] if row["released"]}
    if (best := noisy.pop(result["selected"], None)) is None or result["select"] != "released":
        return ""
    tied = [
        run
        for run, one in noisy.items()
        if best["accuracy"] - one["accuracy"] <= math.hypot(best["plus_minus"], one["plus_minus"])
    ]
    return f", which differs by no more than the noise from {', '.join(tied)}" if tied else ""


def summary(result: dict[str, Any]) -> list[str]:
    """Return the prices of a sweep with explanations."""
    releases = result["releases"]
    lines = [
        f"{len(result['candidates'])} candidates, {releases} distinct release{'s' if releases != 1 else ''}, "
        f"δ = {result['delta']:g}; the worst case was ε = {result['epsilon_tuning_composed_worst_case']:g} in total."
    ]
    if result["noise"] != "secure":
        lines.append("NOT PRIVATE: the noise was replayed from a seed, so no ε below is a guarantee.")
    lines.append(f"epsilon_tuning_composed = {result['epsilon_tuning_composed']:g}: {NOTES['epsilon_tuning_composed']}")
    lines.append(NOTES["evaluation"])
    if result["selected"] is not None:
        which = "that was released with noise" if result["select"] == "released" else "on the test split"
        lines.append(f"Best by accuracy {which}: {result['selected']}{_ties(result)}.")
    lines += [f"{row['run']} failed: {row['failed']}" for row in result["candidates"] if row["failed"]]
    queried = [row for row in result["candidates"] if row["queries"] and row["queried"] == row["queries"]]
    if below := [row for row in queried if row["epsilon"] is not None and row["epsilon"] < REACHED * row["requested"]]:
        lines.append(
            f"ε stays below aggregation.epsilon in {len(below)} candidates: all {below[0]['queries']:,} queries "
            "were asked before the budget was spent. Less noise (aggregation.sigma) or more queries (queries.count) "
            "use the rest."
        )
    return lines
