"""report: the operator's page about a run.

The report shows the teachers' votes, so it is private. The page to publish is the statement that `aggregate` writes
(`tasks/reports/statement_page.py`).
"""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import numpy as np

from tasks.artefacts.images import read_queries
from tasks.config.params import public_parameters
from tasks.config.presets import read_preset, reproduce_command
from tasks.config.values import flat
from tasks.pipeline.figures.errors import FILE as ERRORS
from tasks.reports.accuracy import OF_ORDER, gap_warning, released_accuracy, released_error, shown_measure
from tasks.reports.charts import confusion_colours, png_data_uri, stacked_histogram, white_reads_better
from tasks.reports.pages import bar_rows, percent, plain, render
from tasks.reports.partition_figures import partition_figures
from tasks.reports.statement_page import mechanism_texts
from tasks.runtime.code_digest import code_version
from tasks.runtime.release_identity import data_changes
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import read_array, read_json, read_table, write_text
from tasks.runtime.versioning import lock_digest
from terrine.aggregation.votes import answer_names
from terrine.data.label_mix import row_shares
from terrine.device import resolve_device
from terrine.privacy.statement import read_statement
from terrine.queries import Queries

WIDEST_TABLE = 25
"""Largest number of classes for a confusion matrix with numbers; larger ones are pictures."""

WORST_CONFUSIONS = 15
PER_SOURCE = 24
LONGEST = 160
"""Largest width and height of a picture on a contact sheet, in pixels."""

PRIVATE_FIGURES = {
    "consensus_mean": "share of the teachers that voted for the winning class, mean over queries",
    "consensus_deviation": "standard deviation of that share",
    "released_agrees_with_votes": "share of released labels that are the votes' own winner",
    "epsilon_data_dependent": "ε, data-dependent",
    "order": "RDP order at which it was found",
}
"""Texts of private figures, in display order; other figures follow under their own names."""


@step("report")
def write_report(run: Run) -> None:
    """Write the run's report, a self-contained HTML page made from artefacts on disk, to the private zone."""
    statement = read_statement(run.folders.statement)
    manifest = read_json(run.folders.answers / "manifest.json")
    values = {
        "run": run,
        "preset": read_preset(run.root, run.name),
        "statement": statement,
        "answers": manifest,
        "votes": None if run.params.aggregation.reveals == "sums" else votes_shown(run, statement, manifest),
        "evaluation": evaluation(read_json(run.folders.evaluation)),
        "errors": read_json(run.folders.private / ERRORS),
        "released": released_accuracy(run.folders) or released_error(run.folders),
        **private_tables(
            read_json(run.folders.accounting / "figures.json"),
            answer_names(manifest["class_names"], bool(run.params.data.several)),
        ),
        "partition": partition_figures(run),
        "parameters": flat(shown_parameters(run)),
        "versions": versions(run),
        "command": reproduce_command(run.root, run.name, local=not run.params.tracking.private_metrics),
        "changes": data_changes(run),
        **mechanism_texts(statement),
    }
    write_text(run.folders.report, render("report.html", values))


def votes_shown(run: Run, statement: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the part of the page about queries and votes."""
    answers = read_table(run.folders.answers / "answers.parquet")
    histograms = read_array(run.folders.accounting / "histograms.npy")
    names = answer_names(manifest["class_names"], bool(run.params.data.several))
    answered, queried = answers["answered"].to_numpy(), answers["round"].to_numpy() >= 0
    pictures = not run.params.data.several and run.params.data.name != "table"
    return {
        "sheets": contact_sheets(read_queries(run.folders), answered, answers["label"].to_numpy(), queried, names)
        if pictures
        else [],
        "released_per_class": bar_rows(names, statement["answered_per_class"]),
        "consensus": consensus(histograms, answered, queried),
    }


def contact_sheets(
    queries: Queries, answered: np.ndarray, labels: np.ndarray, queried: np.ndarray, class_names: list[str]
) -> list[dict[str, Any]]:
    """Return a sheet for each image source: `PER_SOURCE` of the queries asked, sorted by their label.

    Args:
        queries: The queries.
        answered: Bool [queries].
        labels: Int64 [queries]; used only for answered queries.
        queried: Bool [queries], False for those after the end of the budget.
        class_names: Class names by label.
    """
    sheets = []
    for kind, own in queries.by_source().items():
        known = own[queried[own]]
        places = np.linspace(0, len(known) - 1, min(PER_SOURCE, len(known))).round().astype(np.int64)
        pictures: list[dict[str, Any]] = []
        for query in sorted(known[places].tolist(), key=lambda query: (not answered[query], labels[query], query)):
            image = queries.images[query]
            uri = png_data_uri(image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0), LONGEST)
            label = class_names[labels[query]] if answered[query] else None
            pictures.append({"query": query, "uri": uri, "label": label})
        counts = {"queries": len(own), "queried": len(known), "answered": int(answered[own].sum())}
        sheets.append({"kind": kind, **counts, "pictures": pictures})
    return sheets


def evaluation_of_findings(figures: dict[str, Any]) -> dict[str, Any]:
    """Prepare the evaluation's figures for several findings: a bar for the AUC of each."""
    entries, images = figures["per_class"], figures["images"]
    shares = [entry["count"] / max(images, 1) for entry in entries]
    areas = [entry["auc"] or 0.0 for entry in entries]
    texts = [
        f"{plain(entry['auc'])}; {percent(entry['accuracy'])} right, {entry['count']:,} have it" for entry in entries
    ]
    return {
        "findings": True,
        "in_batches": figures.get("in_batches"),
        "gap": gap_warning(figures),
        "answers": figures.get("answers"),
        "accuracy": figures["accuracy"],
        "auc": figures["auc"],
        "images": images,
        # An upper bound: images are independent, but the findings of an image are not.
        "standard_error": float(np.sqrt(figures["accuracy"] * (1 - figures["accuracy"]) / max(images, 1))),
        "largest_class": float(np.mean([max(share, 1 - share) for share in shares])),
        "order": None,
        "measures": None,
        "subgroups": [],
        "per_class": bar_rows([entry["class"] for entry in entries], areas, texts, longest=1.0),
    }


def evaluation(figures: dict[str, Any]) -> dict[str, Any]:
    """Prepare the evaluation's figures: accuracy with its standard error, bars per class, and the confusion matrix.

    A matrix of many classes becomes a picture and a list of the most frequent errors.
    """
    if figures["confusion"] is None:
        return evaluation_of_findings(figures)
    confusion = np.array(figures["confusion"], dtype=np.int64)
    names = [entry["class"] for entry in figures["per_class"]]
    accuracy, images = figures["accuracy"], int(confusion.sum())
    accuracies = [entry["accuracy"] for entry in figures["per_class"]]
    texts = [f"{percent(entry['accuracy'])} of {entry['count']:,}" for entry in figures["per_class"]]
    errors = confusion - np.diag(confusion.diagonal())
    order = np.argsort(-errors, axis=None, kind="stable")[:WORST_CONFUSIONS]
    worst = [(int(place // len(names)), int(place % len(names))) for place in order if errors.flat[place]]
    return {
        "findings": False,
        "in_batches": figures.get("in_batches"),
        "gap": gap_warning(figures),
        "accuracy": accuracy,
        "answers": figures.get("answers"),
        "images": images,
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / max(images, 1))),
        "largest_class": float(confusion.sum(axis=1).max() / max(images, 1)),
        "order": order_rows(figures.get("order")),
        "measures": measured_rows(figures.get("measures")),
        "subgroups": subgroup_rows(figures.get("subgroups", {})),
        "per_class": bar_rows(names, [value or 0.0 for value in accuracies], texts, longest=1.0),
        "names": names,
        "confusion": confusion_rows(confusion, names) if len(names) <= WIDEST_TABLE else None,
        "long_names": max(map(len, names)) > 4,
        "picture": None if len(names) <= WIDEST_TABLE else png_data_uri(confusion_colours(confusion).astype(np.uint8)),
        "worst": [
            {"shown": names[shown], "predicted": names[predicted], "count": int(errors[shown, predicted])}
            for shown, predicted in worst
        ],
    }


def measured_rows(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return figures of `terrine.measures` for the page, for all classes together and for each class."""
    if found is None:
        return None
    columns = ("sensitivity", "auc", "sensitivity_at_specificity")
    whole = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "auc": "AUC"}
    return {
        "facts": [
            (text, shown_measure(found[name]), found[name]["method"]) for name, text in whole.items() if found[name]
        ],
        "classes": [(row["class"], [shown_measure(row[column]) for column in columns]) for row in found["by_class"]],
        **{name: found[name] for name in ("calibration_error", "confidence", "specificity", "independent")},
    }


def order_rows(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return figures of ordered classes for the page, or None."""
    if found is None:
        return None
    facts = [
        (text, shown_measure(found[name]), (found[name] or {}).get("method", "")) for name, text in OF_ORDER.items()
    ]
    return {"facts": facts, **{name: found[name] for name in ("of", "confidence", "error_of_the_median")}}


def subgroup_rows(found: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, int, str, str]]:
    """Return the page's rows of subgroups, in each column the worst first."""
    return [
        (
            column,
            row["subgroup"],
            row["records"],
            *(shown_measure(row[name]) for name in ("accuracy", "balanced_accuracy")),
        )
        for column, rows in found.items()
        for row in sorted(rows, key=lambda row: row["accuracy"]["value"])
    ]


def confusion_rows(confusion: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a confusion matrix: counts, shares of the row, and colours."""
    shares, colours = row_shares(confusion), confusion_colours(confusion)
    dark = white_reads_better(colours)
    return [
        {
            "name": shown,
            "cells": [
                {
                    "predicted": predicted,
                    "count": int(confusion[row, column]),
                    "share": float(shares[row, column]),
                    "colour": "rgb({},{},{})".format(*colours[row, column]),
                    "dark": bool(dark[row, column]),
                }
                for column, predicted in enumerate(names)
            ],
        }
        for row, shown in enumerate(names)
    ]


def consensus(histograms: np.ndarray, answered: np.ndarray, queried: np.ndarray) -> dict[str, Any]:
    """Draw a histogram of the winning class's share of the votes, by the outcome of the query.

    Args:
        histograms: Votes, int64 [queries, classes].
        answered: Bool [queries].
        queried: Bool [queries]; False after the end of the budget.
    """
    shares = histograms.max(axis=1) / histograms.sum(axis=1)
    groups = {
        "answered": answered & queried,
        "asked, not answered": ~answered & queried,
        "not asked, the budget had ended": ~queried,
    }
    return {
        "chart": stacked_histogram(shares, groups, x_label="share of votes for the winning class", y_label="queries"),
        "groups": [{"name": name, "count": int(mask.sum())} for name, mask in groups.items()],
    }


def private_tables(figures: dict[str, Any], class_names: list[str]) -> dict[str, Any]:
    """Split private figures into a table of single values and bars for lists by class."""
    single, by_class = [], []
    known = {name: figures[name] for name in PRIVATE_FIGURES if name in figures}
    shown = {**known, **{name: value for name, value in figures.items() if name != "notice"}}
    for name, value in flat(shown).items():
        text = PRIVATE_FIGURES.get(name, name.replace("_", " ").replace(".", ", "))
        if isinstance(value, list) and len(value) == len(class_names):
            by_class.append({"name": text, "rows": bar_rows(class_names, value)})
        else:
            single.append((text, plain(value)))
    return {"private_figures": single, "private_bars": by_class}


def versions(run: Run) -> dict[str, str]:
    """Return versions of code, libraries and machine."""
    code = code_version(run.root)
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "scipy")}
    return {
        "Terrine": code["terrine"],
        "commit of the project": code.get("project commit", "none: not a git checkout"),
        "tracked files changed since": code.get("modified", "–"),
        "digest of the run in dvc.lock": lock_digest(run.root, run.name),
        "Python": platform.python_version(),
        **libraries,
        "machine": f"{platform.system()} {platform.machine()}",
        "device": str(resolve_device(run.params.device)),
    }


def shown_parameters(run: Run) -> dict[str, Any]:
    """Return the parameters for a report, without site-local ones if the report is logged to MLflow."""
    return public_parameters(run.params) if run.params.tracking.private_metrics else run.params.model_dump(mode="json")
