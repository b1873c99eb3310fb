"""A CSV file with one record per row, for teachers that are not image models (UCI Adult in the PATE papers).

The file has a header, and one column is the target. Its rows have three splits:

    train   private: teachers learn from them
    query   public: teachers vote on these rows without their targets, and the student learns from them
    test    private: for evaluation only

`public_fraction` declares the public share. The name of a row (`terrine.data.units`) is its ID, or its number from 0
without a column of IDs. Each name, or group, draws its split independently of targets and values, so replacing, adding
or removing a row moves no other row. Rows with IDs are sorted by ID.

With `columns` the encoding is declared and no row is public. Without `columns` the encoding is learned from the public
rows (`terrine.data.encoding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, StrictFloat, StrictInt, StrictStr, model_validator

from terrine.data.content_digest import digests_of_cells
from terrine.data.csv_file import NO_HEADER, read_csv
from terrine.data.dataset import Dataset, split_fields
from terrine.data.labels import MISSING, USE_BINS, class_codes, is_number, similar_classes, similar_groups_warning
from terrine.data.ordered import InOrder, clipping_warning, read_numbers
from terrine.data.partition import encode_parties
from terrine.data.source import Own, Progress, Source, Survey, count_dataset
from terrine.data.units import name_codes, place_codes, shares
from terrine.errors import InputError, some

if TYPE_CHECKING:
    import pandas as pd

    from terrine.data.encoding import Column, Encoding

_DATE = re.compile(r"\d{1,4}([-./])\d{1,2}\1\d{1,4}")  # 2026-03-01, 1.3.2026, 03/01/26
_CLASSES = 50
"""Number of classes that may be numbers in a table of any length."""


class Table(InOrder, Own, Source):
    """A CSV file with a header and private, public and test rows."""

    of_images: ClassVar[bool] = False
    # Constants in place of an image's geometry: digests of shared backbones and manifests contain them.
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
    columns: dict[str, tuple[StrictInt | StrictFloat | StrictStr, ...]] | None = Field(None, min_length=1)
    """Features and their possible values: `[lowest, highest]` or increasing numbers for a number, all words otherwise.
    Published, so take them from the questionnaire, not from the data. null: learned from public rows."""
    public_fraction: float | None = Field(None, gt=0, lt=1)
    """Share of rows declared public, selected by name. Public rows are queries, published and unprotected.
    null: none; queries are drawn from `columns`."""
    categorical: tuple[str, ...] = ()
    """Columns treated as text even if all values are numbers, such as postal codes. Other numeric columns contain only
    numbers."""

    @model_validator(mode="after")
    def _check_features(self) -> Table:
        if self.columns is None and self.public_fraction is None:
            raise ValueError(
                "columns is missing: the possible values of each feature, for example {age: [17, 90], sex: [female, "
                "male]}. Set data.columns; or set data.public_fraction to the share of rows that may be published"
            )
        if self.columns is not None and self.public_fraction is not None:
            raise ValueError("columns and data.public_fraction exclude each other: with columns no row is public")
        if named := [name for name in self.roles if name in (self.columns or ())]:
            raise ValueError(f"columns has '{named[0]}', which is no feature but data.target, id, group or party")
        if (self.public_fraction or 0) + self.test_fraction >= 1:
            raise ValueError(
                f"public_fraction={self.public_fraction:g} and data.test_fraction={self.test_fraction:g} leave no "
                "record to teach. Their sum must be below 1"
            )
        self.declared_encoding()
        return self

    def declared_encoding(self) -> Encoding | None:
        """Return the encoding of `columns`, or None if there are none. Raise ValueError for impossible columns."""
        if self.columns is None:
            return None
        from terrine.data.encoding import declare  # imports pandas

        return declare(self.columns, self.categorical)

    @property
    def has_public_records(self) -> bool:
        """True if some rows are public."""
        return self.public_fraction is not None

    @property
    def roles(self) -> tuple[str, ...]:
        """Columns that are not features."""
        named = (self.target, self.id, self.group, self.party)
        return tuple(dict.fromkeys(column for column in named if column is not None))

    def check(self, run: Any) -> None:
        super().check(run)
        public = self.public_fraction is not None and not self.public_benchmark
        if self.group is not None and run.privacy.unit == "record" and public:
            raise ValueError(
                "privacy.unit=record protects all values of a row including its group, but data.group decides which "
                "rows are public: a row whose group changes could be published. Set privacy.unit=group, which "
                "protects all rows of a person, or remove data.group"
            )

    def load(self, at: Path = Path(), *, seed: int = 0, progress: Progress | None = None) -> Dataset:
        return self._read(at, seed)[0]

    def survey(self, at: Path = Path(), *, seed: int = 0) -> Survey:
        from terrine.data.encoding import column_types, header_is_record, identifying

        dataset, encoding, public = self._read(at, seed)
        if self.columns is not None:
            doubts, remarks = _on_undeclared(encoding, public)
            unused = tuple(name for name in dataset.content_columns if name not in self.columns)
            types = column_types(encoding) | ({"not used": unused} if unused else {}) | {"no features": self.roles}
            found = count_dataset(dataset)
            return replace(found, columns=types, doubts=doubts, remarks=(*found.remarks, *remarks))
        doubts = tuple(_on_words(column, len(public)) for column in identifying(encoding, len(public)))
        if header_is_record(encoding):
            named = some([f"'{column.name}'" for column in encoding.columns])
            doubts += (
                f"Most column names look like values: {named}. Column names are published with the student. "
                f"{NO_HEADER} To continue anyway: --anyway.",
            )
        types = column_types(encoding, public) | {"no features": self.roles}
        return replace(count_dataset(dataset), public=len(public), columns=types, doubts=doubts)

    def public_rows(self, at: Path = Path(), *, seed: int = 0) -> tuple[np.ndarray, Encoding]:
        """Return the features of the public rows, float32 [Q, F], and the encoding.

        Neither targets nor the values of other rows are read. Raises InputError for a file that cannot be used.
        """
        path = at / self.path
        frame, _, query, _ = self._split(path, seed)
        public, encoding = self._encoding(frame, query, path)
        return encoding.apply(public, str(path)), encoding

    def _encoding(self, frame: pd.DataFrame, query: np.ndarray, path: Path) -> tuple[pd.DataFrame, Encoding]:
        """Return the public rows as texts, and the encoding that is declared or learned from them."""
        from terrine.data.encoding import learn

        public = frame.drop(columns=[*self.roles])[query]
        return public, self.declared_encoding() or learn(public, str(path), self.categorical)

    def _read(self, at: Path, seed: int) -> tuple[Dataset, Encoding, pd.DataFrame]:
        """Return the dataset, the encoding, and the public rows as texts, or all rows if columns are declared.

        The dataset contains rows instead of images. Raises InputError for a file or a value that cannot be used.
        """
        path = at / self.path
        frame, names, query, test = self._split(path, seed)
        train = ~(query | test)
        unencoded = frame.drop(columns=[*self.roles])
        public, encoding = self._encoding(frame, query, path)
        features = encoding.apply(unencoded, str(path))
        columns = tuple(sorted(unencoded))

        def digests(wanted: Iterable[str], ordered: bool = True) -> np.ndarray:
            return digests_of_cells([frame[column].tolist() for column in wanted], ordered=ordered)

        def on_columns(wanted: tuple[str, ...]) -> np.ndarray | None:
            if not set(wanted) <= set(frame):
                return None
            own = digests(sorted(wanted))
            return np.concatenate([own[train], own[test], own[query]])

        contents = np.stack([digests(columns), digests(frame, ordered=False)], axis=1)
        labels, class_names, numbers, remarks = self._labels(frame[self.target], path)
        groups = None
        if self.group is not None:
            groups = name_codes(frame[self.group])
            remarks += similar_groups_warning(frame[self.group])
        parties: np.ndarray | None = None
        party_names: tuple[str, ...] = ()
        if self.party is not None:
            held, party_names = encode_parties({self.party: frame[self.party].to_numpy(dtype=str)[train]}, str(path))
            parties = held[self.party]
        known = {"names": names, "groups": groups, "contents": contents}
        dataset = Dataset(
            name=path.stem,
            **split_fields("train", train, images=features, labels=labels, **known),
            **split_fields("test", test, images=features, labels=labels, numbers=numbers, **known),
            **(split_fields("pool", query, **known) if query.any() else {}),
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
        return dataset, encoding, public if self.columns is None else unencoded

    def _split(self, path: Path, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
        """Return the table, the codes of the rows' names, int64 [rows], and the public and test rows, bool [rows]."""
        frame = read_csv(path)
        for column in (*self.roles, *self.categorical, *(self.columns or ())):
            if column not in frame:
                raise InputError(f"{path} has no column '{column}'; its columns are {', '.join(frame)}. {NO_HEADER}")
        if "" in frame:
            place = list(frame.columns).index("") + 1
            raise InputError(
                f"{path}: column {place} has no name in the header. Name it or remove it (pandas writes such a column "
                "of row numbers unless index=False)."
            )
        for column in self.roles[1:]:
            empty = frame.index[frame[column] == ""]
            if len(empty):
                raise InputError(f"{path}, line {empty[0]}: '{column}' is empty. Fill it in, or remove the row.")
        if self.id is None:
            names = place_codes(len(frame))
        else:
            again = frame.index[frame[self.id].duplicated()]
            if len(again):
                name = frame.loc[again[0], self.id]
                first = frame.index[frame[self.id] == name][0]
                raise InputError(
                    f"{path}, lines {first} and {again[0]}: both have '{self.id}' {name}. IDs must be unique; "
                    "data.group identifies people."
                )
            frame = frame.sort_values(self.id, kind="stable")  # the index keeps the line, for errors
            names = name_codes(frame[self.id])
        drawn = shares(names if self.group is None else name_codes(frame[self.group]), seed, "table.split")
        public = self.public_fraction or 0.0
        query = drawn < public
        test = ~query & (drawn < public + self.test_fraction)
        for what, count in (
            *([("public queries", query.sum())] if public else []),
            ("evaluation", test.sum()),
            ("teachers", (~query & ~test).sum()),
        ):
            if count < 2:
                raise InputError(
                    f"{path}: the split for {what} has {count} of {len(frame)} rows. Add rows (or groups), or change "
                    "data.public_fraction and data.test_fraction."
                )
        return frame, names, query, test

    def _labels(
        self, column: pd.Series, path: Path
    ) -> tuple[np.ndarray, tuple[str, ...], np.ndarray | None, tuple[str, ...]]:
        """Return the labels, int64 [rows], the class names, the numbers before binning, and warnings."""

        def place(row: int) -> str:
            return f"{path}, line {column.index[row]}, '{column.name}'"

        missing = np.flatnonzero(column.isin(MISSING))
        if len(missing):
            more = f" ({len(missing):,} such rows)" if len(missing) > 1 else ""
            raise InputError(f"{place(missing[0])}: it is missing{more}. Fill it in, or remove the row.")
        if self.scale is not None and self.bins:
            numbers, clipped = read_numbers(column.tolist(), self, place)
            return self.scale.places(numbers), self.scale.names, numbers, clipping_warning(clipped, len(numbers))
        names = self.grades or self.classes or _found_classes(column, path)
        setting = "data.grades" if self.grades else "data.classes"
        return class_codes(column.tolist(), names, place, setting), names, None, ()


def _on_undeclared(encoding: Encoding, rows: pd.DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return doubts about columns whose values are mostly undeclared, and remarks on the others. Private."""
    doubts: list[str] = []
    remarks: list[str] = []
    for sentence, count in encoding.unknown(rows):
        text = f"{sentence} Compare data.columns."
        if 2 * count > len(rows):
            doubts.append(f"{text} To continue anyway: --anyway.")
        else:
            remarks.append(text)
    return tuple(doubts), tuple(remarks)


def _on_words(column: Column, rows: int) -> str:
    """Return a warning about a column whose words identify public rows."""
    words = column.values or ()
    what = "an identifier, free text, or numbers with decimal commas?"
    remedy = "Remove the column; or declare it as data.id or data.group; or write numbers with decimal points."
    if sum(_DATE.match(word) is not None for word in words) > len(words) / 2:
        what, remedy = "dates.", "Remove the column, or write it as a number, such as an age or days."
    return (
        f"Column '{column.name}' contains {len(words):,} different words in {rows:,} public rows: {what} Little can be "
        f"learned from them, and they are published with the student. {remedy} To continue anyway: --anyway."
    )


def _found_classes(column: pd.Series, path: Path) -> tuple[str, ...]:
    """Return the distinct labels in alphabetical order.

    Raises:
        InputError: All labels are equal, a class has two spellings, or there are too many numbers for classes.
    """
    names = tuple(sorted(set(column)))
    if len(names) < 2:
        raise InputError(f"{path}: every row has '{column.name}' {names[0]}. At least two classes are needed.")
    if len(names) > max(_CLASSES, len(column) / 10) and all(map(is_number, names)):
        raise InputError(
            f"{path}: '{column.name}' contains {len(names):,} different numbers in {len(column):,} rows, too many to "
            f"be classes. {USE_BINS} If they are codes, list them in data.classes."
        )
    if pairs := similar_classes(names):
        one, other = ((name, column.index[(column == name).to_numpy().argmax()]) for name in pairs[0])
        listed = ", ".join(f'"{name}"' for name in names if name not in dict(pairs).values())
        raise InputError(
            f"{path}: '{column.name}' is '{one[0]}' in line {one[1]} and '{other[0]}' in line {other[1]}, which look "
            f"like two spellings of one class. If they are, set data.classes=[{listed}], which accepts both; otherwise "
            "list all classes there."
        )
    return names
