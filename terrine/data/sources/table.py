"""A CSV file with one row per record, for teachers that are not image models (UCI Adult in the PATE papers).

The file has a header; one column is the target. Its records fall into three splits:

    train   private: teachers learn from it
    query   public: its rows, without their targets, are what teachers are asked about and the student learns from
    test    only evaluation sees it

A `public_fraction` declares that share of the rows public. The name of a row (`terrine.data.units`) is what a column of
ids says, or else its number in the file, from 0. Every name, or with groups every group, draws its split by itself:
neither targets nor values influence it, so a row that is exchanged, added or removed under its own name moves no other
one into another split. Rows with ids are in the order of these, whatever their order in the file.

How columns become numbers is learned from the public rows only (`terrine.data.encoding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from terrine.data.content_digest import digests_of_cells
from terrine.data.csv_file import NO_HEADER, read_csv_file
from terrine.data.dataset import Dataset, taken
from terrine.data.labels import (
    MISSING,
    OF_A_QUANTITY,
    UnknownLabelError,
    declared_names,
    encode_groups,
    encode_labels,
    encode_names,
    is_number,
    on_alike_groups,
    plain,
)
from terrine.data.ordered import InOrder, numbers_of, on_clipped
from terrine.data.partition import encode_parties
from terrine.data.source import Own, Progress, Source, Survey, survey_of
from terrine.data.units import place_codes, shares
from terrine.errors import InputError, some

if TYPE_CHECKING:
    import pandas as pd

    from terrine.data.encoding import Column, Encoding

_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")  # 2026-03-01, 1.3.2026, 03/01/26
_CLASSES = 50
"""As many classes may be called by numbers, however few rows there are."""


class Table(InOrder, Own, Source):
    """A CSV file with a header: private rows, public ones that are asked about, and those for evaluation."""

    of_images: ClassVar[bool] = False
    # What stood for the geometry of rows since there are tables: digests of shared backbones and manifests hold it.
    size: ClassVar[int] = 28
    channels: ClassVar[int] = 1

    name: Literal["table"] = "table"
    target: str = Field(min_length=1)
    """Column to predict."""
    id: str | None = Field(None, min_length=1)
    """Column with a unique name for each row. null: row numbers are the names."""
    group: str | None = Field(None, min_length=1)
    """Column with the group of each row, such as its patient."""
    party: str | None = Field(None, min_length=1)
    """Column with the party that holds each row."""
    public_fraction: float = Field(gt=0, lt=1)
    """Share of rows declared public, selected by name. They are the queries, are published, and have no protection."""
    categorical: tuple[str, ...] = ()
    """Columns treated as text even if all values are numbers, such as postal codes. Other numeric columns may contain
    only numbers."""

    @model_validator(mode="before")
    @classmethod
    def _declares_what_is_public(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("public_fraction") is None:
            raise ValueError(
                "public_fraction is missing: the share of rows that may be published. Nothing protects these rows, and "
                "the student learns from them. Set data.public_fraction, for example to 0.2"
            )
        return values

    @model_validator(mode="after")
    def _some_records_are_left_to_teach(self) -> Table:
        if self.public_fraction + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        return self

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features."""
        return tuple(column for column in (self.target, self.id, self.group, self.party) if column is not None)

    def check(self, run: Any) -> None:
        super().check(run)
        if self.group is not None and run.privacy.unit == "record" and not self.public_benchmark:
            raise ValueError(
                "privacy.unit=record protects a row with all that it says, also whose it is, and data.group decides by "
                "that which rows are public: a row that is exchanged for another person's could be published. Set "
                "privacy.unit=group, which protects all rows of a person, or leave data.group out"
            )

    def load(self, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None) -> Dataset:
        return self._read(at, seed)[0]

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        from terrine.data.encoding import identifying, kinds_of_columns, named_by_a_record

        dataset, encoding, public = self._read(at, seed)
        doubts = tuple(_on_words(column, len(public)) for column in identifying(encoding, len(public)))
        if named_by_a_record(encoding):
            named = some([f"'{column.name}'" for column in encoding.columns])
            doubts += (
                f"Most columns are called by a value that they could hold: {named}. Names of columns are published "
                f"with the student. {NO_HEADER} To go on all the same: --anyway.",
            )
        kinds = kinds_of_columns(encoding, public) | {"no features": tuple(dict.fromkeys(self.roles))}
        return replace(survey_of(dataset), public=len(public), columns=kinds, doubts=doubts)

    def public_rows(self, at: Path = Path(), *, seed: int = 0) -> tuple[np.ndarray, Encoding]:
        """Return the features, float32 [Q, F], of the public rows, and how they are encoded.

        Targets, and the values of all other rows, are not read. Raises InputError for a file that cannot be used.
        """
        from terrine.data.encoding import learn

        path = at / self.path
        frame, _, query, _ = _split(self, path, seed)
        public = _features(frame, self)[query]
        encoding = learn(public, str(path), self.categorical)
        return encoding.apply(public, str(path)), encoding

    def _read(self, at: Path, seed: int) -> tuple[Dataset, Encoding, pd.DataFrame]:
        """Return the private splits, how columns become numbers, and the features of public rows as they are written.

        Rows take the place of images. The columns of target, id, group and party become no features; a group is in one
        split. Raises InputError for a file or a value that cannot be used.
        """
        from terrine.data.encoding import learn

        path = at / self.path
        frame, names, query, test = _split(self, path, seed)
        train = ~(query | test)
        public = _features(frame, self)[query]
        encoding = learn(public, str(path), self.categorical)
        features = encoding.apply(_features(frame, self), str(path))
        columns = tuple(sorted(set(frame) - set(self.roles)))

        def digests(wanted: Iterable[str], ordered: bool = True) -> np.ndarray:
            return digests_of_cells([frame[column].tolist() for column in wanted], ordered=ordered)

        def on_columns(wanted: tuple[str, ...]) -> np.ndarray | None:
            if not set(wanted) <= set(frame):
                return None
            own = digests(sorted(wanted))
            return np.concatenate([own[train], own[test], own[query]])

        contents = np.stack([digests(columns), digests(frame, ordered=False)], axis=1)
        target = frame[self.target]
        _refuse_missing(target, path)
        numbers: np.ndarray | None = None
        remarks: tuple[str, ...] = ()
        if self.scale is not None and self.bins:
            numbers, clipped = numbers_of(
                target.tolist(), self, lambda row: f"{path}, line {target.index[row]}, '{target.name}'"
            )
            labels, class_names = self.scale.places(numbers), self.scale.names
            remarks = on_clipped(clipped, len(numbers))
        else:
            labels, class_names = _labels(target, self, path)
        groups = None
        if self.group is not None:
            groups = _groups(frame, self.group, path)
            remarks += on_alike_groups(frame[self.group])
        parties: np.ndarray | None = None
        party_names: tuple[str, ...] = ()
        if self.party is not None:
            held, party_names = encode_parties({self.party: frame[self.party].to_numpy(dtype=str)[train]}, str(path))
            parties = held[self.party]
        known = {"names": names, "groups": groups, "contents": contents}
        dataset = Dataset(
            name=path.stem,
            **taken("train", train, images=features, labels=labels, **known),
            **taken("test", test, images=features, labels=labels, numbers=numbers, **known),
            **taken("pool", query, **known),
            class_names=class_names,
            column_names=encoding.names,
            train_parties=parties,
            party_names=party_names,
            named=self.id is not None,
            content_columns=columns,
            content_on=on_columns,
            scale=self.scale,
            declared=not self.finds_classes(),
            remarks=remarks,
        )
        dataset.validate()
        return dataset, encoding, public


def _on_words(column: Column, rows: int) -> str:
    """Say of a column of words that tell public rows apart what to do about it."""
    words = column.values or ()
    what = "an identifier, free text, or numbers with decimal commas?"
    remedy = "Remove the column; or name it in data.id or data.group, which are not read; or write numbers with points."
    if sum(_DATE.match(word) is not None for word in words) > len(words) / 2:
        what, remedy = "dates.", "Remove the column from the file, or write it as a number, such as an age or days."
    return (
        f"Column '{column.name}' holds words, {len(words):,} different ones in {rows:,} public rows: {what} Hardly "
        f"anything can be learnt from them, and they are published with the student. {remedy} To go on all the same: "
        "--anyway."
    )


def _split(source: Table, path: Path, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return the table and the code of each row's name, int64 [rows], and which rows are public queries, and which
    serve evaluation: bool [rows] each."""
    frame = read_csv_file(path)
    _check_columns(frame, source, path)
    if source.id is None:
        names = place_codes(len(frame))
    else:
        codes, order = encode_names({source.id: frame[source.id].to_numpy(dtype=str)}, str(path))
        frame, names = frame.iloc[order], codes[order]  # the index keeps the line, for errors
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


def _features(frame: pd.DataFrame, source: Table) -> pd.DataFrame:
    return frame.drop(columns=list(set(source.roles)))


def _check_columns(frame: pd.DataFrame, source: Table, path: Path) -> None:
    """Refuse a table that lacks a column that is spoken of, and empty cells where a row says what it is."""
    for column in (*source.roles, *source.categorical):
        if column not in frame:
            raise InputError(f"{path} has no column '{column}'; its columns are {', '.join(frame)}. {NO_HEADER}")
    if "" in frame:
        place = list(frame.columns).index("") + 1
        raise InputError(
            f"{path}: column {place} has no name in the header. Name it or remove it (pandas writes one without a name "
            "for row numbers: to_csv(..., index=False) leaves it out)."
        )
    for column in dict.fromkeys(role for role in (source.id, source.group, source.party) if role is not None):
        empty = np.flatnonzero(frame[column] == "")
        if len(empty):
            raise InputError(
                f"{path}, line {frame.index[empty[0]]}: '{column}' is empty. Fill it in, or remove the row; a record "
                "that stands alone gets one of its own."
            )
    if source.id is not None:
        again = np.flatnonzero(frame[source.id].duplicated())
        if len(again):
            name = frame[source.id].iloc[again[0]]
            first = frame.index[frame[source.id] == name][0]
            raise InputError(
                f"{path}, lines {first} and {frame.index[again[0]]}: both have '{source.id}' {name}. An id names one "
                "record: give each its own. Whom records belong to is said by data.group."
            )


def _refuse_missing(column: pd.Series, path: Path) -> None:
    missing = np.flatnonzero(column.isin(MISSING))
    if len(missing):
        line, more = column.index[missing[0]], f" ({len(missing):,} such rows)" if len(missing) > 1 else ""
        raise InputError(f"{path}, line {line}: '{column.name}' is missing{more}. Fill it in, or remove the row.")


def _labels(column: pd.Series, source: Table, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    names = _class_names(column, source, path)
    values = column.map(names).to_numpy(dtype=str)
    labels, class_names = encode_labels({str(column.name): values}, source.grades or source.classes, str(path))
    if len(class_names) < 2:
        raise InputError(f"{path}: every row has '{column.name}' {class_names[0]}. At least two classes are needed.")
    return labels[str(column.name)], class_names


def _class_names(column: pd.Series, source: Table, path: Path) -> dict[str, str]:
    """Return the class that each label of the target stands for: itself, or that of `classes` or `grades` it is like.

    Raises InputError for labels that look like one class written in two ways, and for one that is like none declared.
    """
    firsts = column.drop_duplicates()
    numbers = not source.classes and not source.grades and len(firsts) > max(_CLASSES, len(column) / 10)
    if numbers and all(map(is_number, firsts)):
        raise InputError(
            f"{path}: '{column.name}' holds {len(firsts):,} different numbers in {len(column):,} rows, too many to be "
            f"classes. {OF_A_QUANTITY} If they are codes, list them in data.classes; a number that only names a row is "
            "no target."
        )
    lines = {str(label): line for line, label in firsts.items()}
    if declared := source.grades or source.classes:
        names = declared_names(lines, declared)
        unknown = next((label for label, name in names.items() if not name), None)
        if unknown is not None:
            raise UnknownLabelError(
                f"{path}, line {lines[unknown]}: '{column.name}' is '{unknown}'",
                unknown,
                f"which is none of data.{'grades' if source.grades else 'classes'}={_listed(declared)}. Correct it, or "
                "add it there.",
            )
        return names
    seen: dict[str, str] = {}
    for label in sorted(lines, key=lines.__getitem__):
        other = seen.setdefault(plain(label), label)
        if other != label:
            kept = sorted({plain(name): name for name in sorted(lines, key=lines.__getitem__, reverse=True)}.values())
            raise InputError(
                f"{path}: '{column.name}' is '{other}' in line {lines[other]} and '{label}' in line {lines[label]}, "
                "which look like one class written in two ways. Correct the file, or name the classes: with "
                f"data.classes={_listed(kept)} other ways to write these count as these, and with "
                f"data.classes={_listed(sorted(lines))} all stay apart."
            )
    return {label: label for label in lines}


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
