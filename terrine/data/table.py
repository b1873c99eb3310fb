"""A table of numbers and words, for teachers that are not image models (the UCI Adult experiments of the PATE papers).

A CSV file with a header and one row per record; one column is the target. Its records fall into three splits:

    train   private: teachers learn from it
    query   public: its rows, without their targets, are what teachers are asked about and the student learns from
    test    only evaluation sees it

Whoever names a `public_fraction` declares that many rows public. The name of a row (`terrine.data.units`) is what a
column of ids says, or else its number in the file, from 0. Every name, or with groups every group, draws its split by
itself: neither targets nor values have a say, so a row that is exchanged, added or removed under its own name moves no
other one into another split. Rows with ids are in the order of these, whatever their order in the file.

How columns become numbers is learned from the public rows alone (`Encoding`), so that no private record has a say in
the features of another: a numeric column is standardised with the mean and deviation of the public rows (a missing
value becomes its mean), any other column becomes one indicator per value that the public rows hold (another value sets
none). The encoding is as public as those rows, and travels with them: it turns new rows into what the student takes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from terrine.data.dataset import Dataset
from terrine.data.labels import encode_groups, encode_labels, encode_names
from terrine.data.parties import encode_parties
from terrine.data.sources.table import Table as Source
from terrine.data.units import place_codes, shares
from terrine.errors import InputError
from terrine.extras import from_extra

with from_extra("pipeline", "Tables"):
    import pandas as pd

_MISSING = ("", "?", "NA", "NaN", "nan")


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers: standardised by `mean` and `deviation`, or an indicator for each of `values`."""

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    values: tuple[str, ...] | None = None

    def feature_names(self) -> list[str]:
        """Return the names of the features it becomes."""
        return [self.name] if self.values is None else [f"{self.name}={value}" for value in self.values]


@dataclass(frozen=True)
class Encoding:
    """How rows become features, learned from public rows alone."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.columns for name in column.feature_names())

    def apply(self, frame: pd.DataFrame, where: str) -> np.ndarray:
        """Return float32 [rows, features] of a table of text; `where` says in errors where it comes from.

        Raises InputError for a column that is missing and for a word where the column holds numbers.
        """
        blocks = []
        for column in self.columns:
            if column.name not in frame:
                raise InputError(f"{where} has no column '{column.name}'; its columns are {', '.join(frame)}.")
            text = frame[column.name].to_numpy(dtype=str)
            if column.values is not None:
                blocks.append(text[:, None] == np.array(column.values, dtype=str)[None, :])
                continue
            numbers, known, missing = _numbers(text)
            wrong = np.flatnonzero(~known & ~missing)
            if len(wrong):
                row = frame.index[wrong[0]] + 1
                raise InputError(
                    f"{where}, row {row}: '{column.name}' is '{text[wrong[0]]}', while the column holds numbers. "
                    "Correct the value, or leave it empty."
                )
            blocks.append(np.where(known, (numbers - column.mean) / column.deviation, 0.0)[:, None])
        return np.concatenate(blocks, axis=1, dtype=np.float32, casting="unsafe")

    def describe(self) -> list[dict[str, Any]]:
        """Return it as JSON-able values, which `from_description` takes."""
        return [
            {"name": column.name, "mean": column.mean, "deviation": column.deviation}
            if column.values is None
            else {"name": column.name, "values": list(column.values)}
            for column in self.columns
        ]

    @classmethod
    def from_description(cls, description: list[dict[str, Any]]) -> "Encoding":
        """Return the encoding that `describe` described."""
        return cls(
            tuple(
                Column(entry["name"], values=tuple(entry["values"]))
                if "values" in entry
                else Column(entry["name"], entry["mean"], entry["deviation"])
                for entry in description
            )
        )


def load(source: Source, at: Path = Path(), *, seed: int = 0) -> Dataset:
    """Return the private splits of the CSV file of `source`, its path relative to `at`: rows take the place of images.

    The columns of target, id, group and party become no features; a group is in one split. Raises InputError for a file
    or a value that cannot be used.
    """
    path = at / source.path
    frame, names, query, test = _split(source, path, seed)
    train = ~(query | test)
    encoding = _learn(_features(frame, source)[query], path)
    features = encoding.apply(_features(frame, source), str(path))
    labels, class_names = _labels(frame[source.target], path)
    groups = None if source.group is None else _groups(frame, source.group, path)
    parties: np.ndarray | None = None
    party_names: tuple[str, ...] = ()
    if source.party is not None:
        held, party_names = encode_parties({source.party: frame[source.party].to_numpy(dtype=str)[train]}, str(path))
        parties = held[source.party]
    return Dataset(
        name=path.stem,
        train_images=features[train],
        train_labels=labels[train],
        train_groups=None if groups is None else groups[train],
        test_images=features[test],
        test_labels=labels[test],
        class_names=class_names,
        column_names=encoding.names,
        train_parties=parties,
        party_names=party_names,
        train_names=names[train],
        test_units=(names if groups is None else groups)[test],
    )


def public_rows(source: Source, at: Path = Path(), *, seed: int = 0) -> tuple[np.ndarray, Encoding]:
    """See `terrine.data.sources.table.Table.public_rows`."""
    path = at / source.path
    frame, _, query, _ = _split(source, path, seed)
    public = _features(frame, source)[query]
    encoding = _learn(public, path)
    return encoding.apply(public, str(path)), encoding


def _split(source: Source, path: Path, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return the table and the code of each row's name, int64 [rows], and which rows are public queries, and which
    serve evaluation: bool [rows] each."""
    frame = _read(path)
    for column in source.roles:
        if column not in frame:
            raise InputError(f"{path} has no column '{column}'; its columns are {', '.join(frame)}.")
    if source.id is None:
        names = place_codes(len(frame))
    else:
        codes, order = encode_names({source.id: frame[source.id].to_numpy(dtype=str)}, str(path))
        frame, names = frame.iloc[order], codes[order]  # the index keeps the number in the file, for errors
    drawn = shares(names if source.group is None else _groups(frame, source.group, path), seed, "table.split")
    query = drawn < source.public_fraction
    test = ~query & (drawn < source.public_fraction + source.test_fraction)
    counts = {"public queries": query.sum(), "evaluation": test.sum(), "teachers": (~query & ~test).sum()}
    for what, count in counts.items():
        if count < 2:
            raise InputError(
                f"{path}: {count} of {len(frame)} rows fall to the split for {what}. Bring more rows (or more groups), "
                "or change data.public_fraction and data.test_fraction."
            )
    return frame, names, query, test


def _groups(frame: pd.DataFrame, group: str, path: Path) -> np.ndarray:
    return encode_groups({group: frame[group].to_numpy(dtype=str)}, str(path))[group]


def _features(frame: pd.DataFrame, source: Source) -> pd.DataFrame:
    return frame.drop(columns=list(set(source.roles)))


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
        row = column.index[missing[0]] + 1
        raise InputError(f"{path}, row {row}: '{column.name}' is missing. Fill it in, or remove the row.")
    labels, names = encode_labels({str(column.name): values}, None, str(path))
    if len(names) < 2:
        raise InputError(f"{path}: every row has '{column.name}' {names[0]}. At least two classes are needed.")
    return labels[str(column.name)], names


def _numbers(text: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers in `text`, float64, and which are known, and which are missing."""
    missing = np.isin(text, _MISSING)
    numbers = pd.to_numeric(pd.Series(np.where(missing, "", text)), errors="coerce").to_numpy(dtype=np.float64)
    return numbers, np.isfinite(numbers), missing


def _learn(public: pd.DataFrame, path: Path) -> Encoding:
    """Return the encoding of the columns that the public rows show."""
    columns = []
    for name in public:
        text = public[name].to_numpy(dtype=str)
        numbers, known, missing = _numbers(text)
        if known.any() and (known | missing).all():
            shown = numbers[known]
            columns.append(Column(str(name), float(shown.mean()), float(shown.std()) or 1.0))
        else:
            columns.append(Column(str(name), values=tuple(np.unique(text).tolist())))
    if not columns:
        raise InputError(f"{path} has no column beside the target. Teachers need something to learn from.")
    return Encoding(tuple(columns))
