"""Results of a finished run for the terminal and for Prefect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tasks.reports.accuracy import (
    gap_warning,
    known_accuracy,
    released_accuracy,
    released_error,
    shown_accuracy,
    shown_measure,
)
from tasks.runtime.progress import timings
from tasks.runtime.release_identity import data_changes
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.files import file_digest, json_object
from terrine.privacy.facts import sentences
from terrine.privacy.statement import OUTCOME_DEPENDENT, read_statement

_SUMS = "noisy sums released"


def result_lines(run: Run, *own: tuple[str, str]) -> Text:
    """Return the result of a finished run as lines: accuracy, ε, notes, and paths of the outputs.

    Print them with `soft_wrap`: a table would cut off paths.

    Args:
        run: The run.
        own: Additional lines from the run's pipeline, as (name, value).
    """
    statement = read_statement(run.folders.statement)
    evaluation = read_json(run.folders.evaluation)
    lines: list[tuple[str | Text, str | Text]] = []
    lines.append(("accuracy as served (private test split)", f"{100 * evaluation['accuracy']:.2f} %"))
    if (batches := evaluation.get("in_batches")) is not None:
        lines.append((f"accuracy in batches, {batches['statistics']} statistics", f"{100 * batches['accuracy']:.2f} %"))
    if evaluation.get("auc") is not None:
        lines.append(("area under the ROC curve, mean over findings", f"{evaluation['auc']:.4f}"))
    if "measures" in evaluation:
        rare = [shown_measure(evaluation["measures"][name]) for name in ("balanced_accuracy", "auc")]
        lines.append(("balanced accuracy, AUC (private)", ", ".join(rare)))
    if (order := evaluation.get("order")) is not None:
        shown = ", ".join(shown_measure(order[name]) for name in ("mean_absolute_error", "quadratic_kappa"))
        lines.append((f"mean absolute error of {order['of']}, weighted kappa (private)", shown))
        lines.append(("the same if every prediction is the median (private)", f"{order['error_of_the_median']:.3f}"))
    if (error := released_error(run.folders)) is not None:
        price = "NOT PRIVATE" if error["epsilon"] is None else f"for ε = {error['epsilon']:g}"
        shown = f"{error['mean_absolute_error']:.4g} ± {error['plus_minus']:.2g}, {price}"
        lines.append(("mean absolute error released", shown))
    released = released_accuracy(run.folders)
    if released is not None:
        shown = shown_accuracy(released["accuracy"], released["plus_minus"])
        price = "NOT PRIVATE" if released["epsilon"] is None else f"for ε = {released['epsilon']:g}"
        lines.append(("accuracy released", f"{shown}, {price}"))
    if "accuracy" in evaluation.get("answers", {}):
        lines.append(("correct answers (public pool)", f"{100 * evaluation['answers']['accuracy']:.2f} %"))
    epsilon = statement["epsilon"]
    if epsilon is not None and statement["mechanism"].get("mechanism") in OUTCOME_DEPENDENT:
        guaranteed = f"{statement['epsilon_budget']:.4f} at δ = {statement['delta']:g}; used: {epsilon:.4f}"
        lines.append((f"ε guaranteed, per {statement['unit']}", guaranteed))
    else:
        exact = _alarm("none: NOT PRIVATE") if epsilon is None else f"{epsilon:.4f} at δ = {statement['delta']:g}"
        lines.append((f"ε exact, per {statement['unit']}", exact))
    if statement["private"] and "epsilon_added" in statement:
        lines.append((f"ε if a {statement['unit']} is only added or removed", f"{statement['epsilon_added']:.4f}"))
    claimed = statement["epsilon_claimed"]
    if claimed is not None:
        holds = epsilon is not None and claimed >= epsilon
        lines.append(("ε claimed by the paper", f"{claimed:.4f}{'' if holds else ': does not hold'}"))
    if statement["noise"] != "secure":
        lines.append(("noise", _alarm("NOT PRIVATE: replayed from a seed")))
    lines.extend(own)
    tracking = run.folders.private / "tracking.json"
    if tracking.is_file():
        lines.append(("MLflow run", f"{read_json(tracking)['run_id']} (terrine compare --ui)"))
    else:
        lines.append(("MLflow run", f"none: terrine run {run.name}"))
    lines.append(("report (private)", str(run.folders.report.relative_to(run.root))))
    notes = [*data_changes(run), *filter(None, [gap_warning(evaluation)])]
    lines.extend((Text("note (private)", style="bold yellow"), note) for note in notes)
    lines.extend((_alarm("not protected"), sentence) for sentence in sentences(statement, "unprotected"))
    signed = json_object(run.folders.signature)
    if signed is not None and signed["files"]["privacy.json"] != file_digest(run.folders.statement):
        lines.append((_alarm("signature"), f"of an earlier statement: sign again, terrine statement {run.name} --sign"))
    may_leave = "may be published" if statement["private"] else "results"
    lines.append((may_leave, str(run.folders.release.relative_to(run.root))))
    widest = max(len(name) for name, _ in lines)
    return Text("\n").join(
        [Text(f"Run {run.name}", style="bold")]
        + [Text.assemble("  ", name, " " * (widest - len(name) + 2), value) for name, value in lines]
    )


def for_anybody(run: Run) -> dict[str, str]:
    """Return the public figures of a finished run and the paths of its files, by name."""
    statement, accuracy = read_statement(run.folders.statement), known_accuracy(run)
    rows = {"run": run.name, "ε": "none: NOT PRIVATE"}
    if statement["private"]:
        rows["ε"] = f"{statement['epsilon_guaranteed']:g} at δ = {statement['delta']:g}, per {statement['unit']}"
        if "epsilon_added" in statement:
            rows["ε if only added or removed"] = f"{statement['epsilon_added']:g}"
        rows |= {"not protected": " ".join(public)} if (public := sentences(statement, "unprotected")) else {}
    if "accuracy" in accuracy:
        rows["accuracy as served (test split)"] = f"{100 * accuracy['accuracy']:.2f} %"
    if "accuracy_in_batches" in accuracy:
        rows["accuracy in batches"] = f"{100 * accuracy['accuracy_in_batches']:.2f} %"
    if "accuracy_released" in accuracy:
        shown = shown_accuracy(accuracy["accuracy_released"], accuracy["accuracy_released_plus_minus"])
        rows["accuracy released"] = shown
    if "error_released" in accuracy:
        shown = f"{accuracy['error_released']:.4g} ± {accuracy['error_released_plus_minus']:.2g}"
        rows["mean absolute error released"] = shown
    if numbers := statement["mechanism"].get("numbers"):
        rows[_SUMS] = f"{numbers:,}"
    else:
        rows |= {"answered": _answered(statement)}
        rows |= {"teachers": f"{statement['teachers']:,}"}
    for name, path in (
        ("privacy statement", run.folders.release / "statement.html"),
        ("report (private)", run.folders.report),
    ):
        rows[name] = str(path.relative_to(run.root))
    return rows


def _answered(statement: Mapping[str, Any]) -> str:
    voted = "" if statement["queried"] == statement["answered"] else f", {statement['queried']:,} put to the vote"
    return f"{statement['answered']:,} of {statement['queries']:,} queries{voted}"


def _alarm(text: str) -> Text:
    return Text(text, style="bold red")


def result(run: Run) -> Text:
    """Return the result of a run of the main pipeline as lines for the terminal."""
    statement = read_statement(run.folders.statement)
    if numbers := statement["mechanism"].get("numbers"):
        return result_lines(run, (_SUMS, f"{numbers:,}"))
    return result_lines(run, ("answered", _answered(statement)), ("teachers", str(statement["teachers"])))


def costs(run: Run, stages: Sequence[str]) -> Table:
    """Return a table of the time and memory of each stage."""
    table = Table("stage", "seconds", "memory MB", box=None, pad_edge=False)
    measured = timings(run)
    for stage in stages:
        if stage in measured:
            table.add_row(stage, f"{measured[stage]['seconds']:.1f}", str(measured[stage]["memory_mb"]))
    table.add_row("sum", f"{sum(record['seconds'] for record in measured.values()):.1f}", "")
    return table
