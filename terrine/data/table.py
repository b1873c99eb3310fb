"""A table of numbers and words, for teachers that are not image models (the UCI Adult experiments of the PATE papers).

A CSV file with a header and one row per record; one column is the target. Its records fall into three splits:

    train   private: teachers learn from it
    query   public: its rows, without their targets, are what teachers are asked about
    test    only evaluation sees it

How columns become numbers is learned from the query split alone, so that no private record has a say in the features
of another: a numeric column is standardised with the mean and deviation of the query split (a missing value becomes its
mean), any other column becomes one indicator per value that the query split holds (another value sets none).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from terrine.data.digest import keyed_digest
from terrine.data.labels import encode_groups, encode_labels
from terrine.data.splits import stratified
from terrine.errors import InputError, SettingError

_MISSING = ("", "?", "NA", "NaN", "nan")


@dataclass(frozen=True)
class Table:
    """Labelled records as numbers, in the three splits of the module docstring.

    train_features  float32 [N, F]          query_features  float32 [Q, F]
    train_labels    int64 [N], 0..K-1       test_features   float32 [M, F]
    train_groups    int64 [N] or None       test_labels     int64 [M]
    feature_names   F names                 class_names     K distinct names
    """

    name: str
    train_features: np.ndarray
    train_labels: np.ndarray
    train_groups: np.ndarray | None
    query_features: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]


def load(
    path: Path,
    *,
    target: str,
    group: str | None = None,
    query_fraction: float = 0.2,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Table:
    """Return the CSV file at `path` as a `Table`.

    `target` names the column of classes, `group` one that says whose record a row is (it becomes no feature). Of all
    rows about `query_fraction` are taken as public queries and `test_fraction` for evaluation, stratified and with
    every group in one split. Raises InputError for a file or a value that cannot be used, SettingError for fractions
    that leave nothing to train on.
    """
    if not (query_fraction > 0 and test_fraction > 0 and query_fraction + test_fraction < 1):
        raise SettingError(
            f"The query fraction is {query_fraction} and the test fraction {test_fraction}. Both must be positive, and "
            "together less than 1."
        )
    frame = _read(path)
    for column in (target, group):
        if column is not None and column not in frame:
            raise InputError(f"{path} has no column '{column}'; its columns are {', '.join(frame)}.")
    labels, class_names = _labels(frame[target], path)
    groups = None
    if group is not None:
        groups = encode_groups({group: frame[group].to_numpy(dtype=str)}, str(path))[group]

    rest, test = stratified(labels, test_fraction, groups=groups, seed=seed)
    train, query = stratified(
        labels[rest],
        query_fraction / (1 - test_fraction),
        groups=None if groups is None else groups[rest],
        seed=seed + 1,  # another order than that which chose the test rows
    )
    train, query = rest[train], rest[query]
    features, names = _encode(frame.drop(columns=[column for column in (target, group) if column]), query, path)
    return Table(
        name=path.stem,
        train_features=features[train],
        train_labels=labels[train],
        train_groups=None if groups is None else groups[train],
        query_features=features[query],
        test_features=features[test],
        test_labels=labels[test],
        feature_names=names,
        class_names=class_names,
    )


def fingerprint(table: Table, key: bytes) -> str:
    """Return the HMAC-SHA256, as hex, of the arrays of `table` under `key`; see `terrine.data.dataset.fingerprint`."""
    return keyed_digest(
        "terrine table 1",
        {
            "train_features": (table.train_features, "<f4"),
            "train_labels": (table.train_labels, "<i8"),
            "train_groups": (table.train_groups, "<i8"),
            "query_features": (table.query_features, "<f4"),
            "test_features": (table.test_features, "<f4"),
            "test_labels": (table.test_labels, "<i8"),
        },
        key,
    )


def _read(path: Path) -> pd.DataFrame:
    """Return the cells as stripped text, so that nothing is guessed about them yet."""
    if not path.is_file():
        raise InputError(f"There is no file {path}. Point data.path at your CSV file.")
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} is no CSV file in UTF-8 with a header ({' '.join(str(error).split())}).") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"{path} has rows with more values than columns. Put a text with a comma into double quotes.")
    frame.columns = frame.columns.str.strip()
    if len(frame) == 0:
        raise InputError(f"{path} has no rows below its header.")
    return frame.apply(lambda column: column.str.strip())


def _labels(column: pd.Series, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    values = column.to_numpy(dtype=str)
    missing = np.flatnonzero(np.isin(values, _MISSING))
    if len(missing):
        raise InputError(f"{path}, row {missing[0] + 1}: '{column.name}' is missing. Fill it in, or remove the row.")
    labels, names = encode_labels({str(column.name): values}, None, str(path))
    if len(names) < 2:
        raise InputError(f"{path}: every row has '{column.name}' {names[0]}. At least two classes are needed.")
    return labels[str(column.name)], names


def _encode(frame: pd.DataFrame, query: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return float32 [rows, F] and the F names, encoded with what the rows `query` show."""
    blocks, names = [], []
    for column in frame:
        text = frame[column].to_numpy(dtype=str)
        missing = np.isin(text, _MISSING)
        numbers = pd.to_numeric(pd.Series(np.where(missing, "", text)), errors="coerce").to_numpy(dtype=np.float64)
        known = np.isfinite(numbers)
        if known[query].any() and (known | missing)[query].all():
            wrong = np.flatnonzero(~known & ~missing)
            if len(wrong):
                raise InputError(
                    f"{path}, row {wrong[0] + 1}: '{column}' is '{text[wrong[0]]}', while the column holds numbers. "
                    "Correct the value, or leave it empty."
                )
            shown = numbers[query][known[query]]
            scaled = (numbers - shown.mean()) / (shown.std() or 1.0)
            blocks.append(np.where(known, scaled, 0.0)[:, None])
            names.append(str(column))
        else:
            values = np.unique(text[query])
            blocks.append(text[:, None] == values[None, :])
            names.extend(f"{column}={value}" for value in values)
    if not blocks:
        raise InputError(f"{path} has no column beside the target. Teachers need something to learn from.")
    return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe"), tuple(names)
