"""Accuracy of the student by subgroup, such as scanner, site, sex or age band. Private figures of test records.

A CSV file (`evaluation.subgroups`) assigns test records to subgroups by name, so sources, teachers and students do not
need to know them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.runtime.run import Run
from terrine.data.csv_file import read_csv
from terrine.data.dataset import Dataset
from terrine.data.units import name_codes
from terrine.errors import InputError
from terrine.measures import as_json, balanced_accuracy, rate

MISSING = "(missing)"


def load_subgroups(run: Run, dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the subgroup of each test record, text [records], by column of the run's table of subgroups.

    The value is `MISSING` for records that the table does not name or leaves empty.

    Raises:
        InputError: If the table cannot be used or test records have no names.
    """
    given = run.params.evaluation.subgroups
    if given is None:
        return {}
    path = run.root / given
    table = read_csv(path)
    if len(table.columns) < 2:
        raise InputError(
            f"{path} needs a column with the records' names (path, id or group), followed by at least one column of "
            "subgroups, such as scanner or sex."
        )
    if dataset.test_units is None:
        raise InputError(
            f"evaluation.subgroups={given} needs names of test records, and these split data have none. Give one set "
            "with ids or groups, a folder or a CSV table."
        )
    codes = name_codes(table.iloc[:, 0])
    order = np.argsort(codes, kind="stable")
    twice = np.flatnonzero(np.diff(codes[order]) == 0)
    if len(twice):
        line = table.index[order[twice[0] + 1]]
        raise InputError(f"{path}, line {line} names {table.iloc[order[twice[0]], 0]!r} a second time. Name each once.")
    place = np.minimum(np.searchsorted(codes[order], dataset.test_units), len(codes) - 1)
    row = order[place]
    known = codes[row] == dataset.test_units
    if not known.any():
        raise InputError(
            f"{path} names none of the test records in its first column '{table.columns[0]}'. Use the names of "
            f"{'groups' if dataset.train_groups is not None else 'records (path or id)'} in the data."
        )
    columns = {name: table[name].to_numpy(str)[row] for name in table.columns[1:]}
    return {name: np.where(known & (values != ""), values, MISSING) for name, values in columns.items()}


def by_subgroup(
    subgroups: dict[str, np.ndarray], labels: np.ndarray, predictions: np.ndarray, units: np.ndarray | None
) -> dict[str, list[dict[str, Any]]]:
    """Return records, accuracy and balanced accuracy of each subgroup in alphabetical order, by column.

    Args:
        subgroups: Subgroups of the records, text [records], by column.
        labels: True classes, int64 [records].
        predictions: Predicted classes, int64 [records].
        units: Units of the records, or None.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for column, values in subgroups.items():
        found[column] = []
        for value in np.unique(values):
            own = values == value
            together = None if units is None else units[own]
            found[column].append(
                {
                    "subgroup": str(value),
                    "records": int(own.sum()),
                    "accuracy": as_json(rate(labels[own] == predictions[own], together)),
                    "balanced_accuracy": as_json(balanced_accuracy(labels[own], predictions[own], together)),
                }
            )
    return found
