"""Whose data differ: how right the student is by scanner, site, sex or age band. Private figures of test records.

A CSV file beside the data (`evaluation.subgroups`) says to which subgroup a test record belongs, by the name that the
data have for it: so no source needs to know of subgroups, and no teacher or student does.
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

NOT_SAID = "(not said)"


def load_subgroups(run: Run, dataset: Dataset) -> dict[str, np.ndarray]:
    """Return for each column of the run's table of subgroups what it says of every test record, text [records]:
    `NOT_SAID` of records that it does not name, or leaves empty; nothing where the run names no table.

    Raises InputError for a table that cannot be used, or test records without names.
    """
    given = run.params.evaluation.subgroups
    if given is None:
        return {}
    path = run.root / given
    table = read_csv(path)
    if len(table.columns) < 2:
        raise InputError(
            f"{path} needs a column that names records, as the data do (path, id or group), and after it at least one "
            "of subgroups, such as scanner or sex."
        )
    if dataset.test_units is None:
        raise InputError(
            f"evaluation.subgroups={given} says whose test records are which, but they have no names: the file is "
            "split already. Give one set with ids or groups, a folder or a CSV table."
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
            f"{path} names none of the test records in its first column '{table.columns[0]}'. It takes the names that "
            f"the data have: of {'groups' if dataset.train_groups is not None else 'records (path or id)'}."
        )
    columns = {name: table[name].to_numpy(str)[row] for name in table.columns[1:]}
    return {name: np.where(known & (values != ""), values, NOT_SAID) for name, values in columns.items()}


def by_subgroup(
    subgroups: dict[str, np.ndarray], labels: np.ndarray, predictions: np.ndarray, units: np.ndarray | None
) -> dict[str, list[dict[str, Any]]]:
    """Return for each column its subgroups, in alphabetical order: records, accuracy and balanced accuracy.

    subgroups: text [records] by column. labels, predictions: int64 [records]. units: who belongs together, or None.
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
