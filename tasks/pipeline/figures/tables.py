"""Tables and metrics of a run for DVC. The tables contain released figures only.

ε is taken from the statement, and an accuracy is included only if it may be published (`tasks.reports.accuracy`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.released import sums_over_records
from tasks.artefacts.teachers import cost_before_votes
from tasks.reports.accuracy import known_accuracy
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, read_json, read_table, write_json, write_text
from terrine.aggregation.adaptive_queries import NEVER
from terrine.aggregation.mechanism import Mechanism, parse_mechanism
from terrine.aggregation.votes import answer_names
from terrine.deployment.manifest import MANIFEST
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.statement import epsilon_added

POINTS = 50
"""Number of points on the ε curve."""


@step("metrics")
def write_metrics(run: Run) -> None:
    """Write ε, the number of answers and the publishable accuracy of a run under their MLflow names."""
    statement = read_json(run.folders.statement)
    names = ("epsilon", "epsilon_guaranteed", *["answered"] * (not sums_over_records(run)))
    found = {name: statement.get(name) for name in names} | known_accuracy(run)
    found["epsilon_added"] = epsilon_added(statement)
    write_json(run.folders.metrics, {name: value for name, value in found.items() if value is not None})


@step("plots")
def write_plots(run: Run) -> None:
    """Write the tables that DVC plots: ε by answers, answers by class, and the student's training curve.

    A table is empty if the run has no such figures: sums, or a student without training steps.
    """
    manifest, statement = read_json(run.folders.answers / "manifest.json"), read_json(run.folders.statement)
    history = read_json(run.folders.student / MANIFEST)["training"].get("history", [])
    with atomic_folder(run.folders.plots) as folder:
        _write(folder / "spending.csv", ("answered", "epsilon"), spending(run, manifest))
        names = answer_names(manifest["class_names"], bool(run.params.data.several))
        counts = () if sums_over_records(run) else zip(names, statement["answered_per_class"], strict=False)
        _write(folder / "classes.csv", ("class", "answers"), counts)
        _write(
            folder / "training.csv",
            ("step", "held_out_loss"),
            ([each["step"], each["held_out_loss"]] for each in history),
        )


def spending(run: Run, manifest: dict[str, Any]) -> list[tuple[int, float]]:
    """Return (answered queries, ε spent) in the order of the queries; empty without a guarantee or votes."""
    if sums_over_records(run) or run.params.teachers.unprotected:
        return []
    table, mechanism = read_table(run.folders.answers / "answers.parquet"), parse_mechanism(manifest)
    assert isinstance(mechanism, Mechanism)
    table = table[table["round"] != NEVER].sort_values(["round", "query"], kind="stable")
    answered = table["answered"].to_numpy()
    # Confirming a student's own label costs no answer.
    paid = answered & ~table["reinforced"].to_numpy() if "reinforced" in table else answered
    before, delta = cost_before_votes(run), run.params.aggregation.delta
    return [
        (
            int(answered[:queried].sum()),
            round_up(price(compose(before, mechanism.cost(int(queried), int(paid[:queried].sum()))), delta)),
        )
        for queried in np.unique(np.linspace(0, len(answered), POINTS + 1).astype(int)[1:])
    ]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    write_text(path, text.getvalue())
