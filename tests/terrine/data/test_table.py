import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from terrine.data.csv_file import read_csv
from terrine.data.dataset import Dataset, fingerprint
from terrine.data.encoding import KNOTS, Encoding
from terrine.data.source import Survey
from terrine.data.sources import table
from terrine.data.sources.table import Table
from terrine.data.units import name_codes, place_codes
from terrine.errors import InputError

COLOURS = ("red", "green", "blue")


@dataclass(frozen=True)
class Splits:
    """The dataset, whose rows take the place of images, and the public rows beside it."""

    dataset: Dataset
    query_features: np.ndarray
    encoding: Encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name.replace("_features", "_images"))


def load(path: Path, **settings: object) -> Splits:
    source = Table(path=path, **{"public_fraction": 0.2, **settings})
    return Splits(source.load(), *source.public_rows())


def row(index: int) -> list[str]:
    age = "?" if index % 17 == 0 else str(20 + index % 50)
    return [str(index), age, COLOURS[index % 3], f"p{index // 2}", ">50K" if index % 4 == 0 else "<=50K"]


def write(path: Path, rows: list[list[str]], header: str = "number,age,colour,person,income") -> Path:
    path.write_text("\n".join([header, *(", ".join(cells) for cells in rows)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def adult(tmp_path: Path) -> Path:
    return write(tmp_path / "adult.csv", [row(index) for index in range(400)])


def original_index(features: np.ndarray, data: Splits, last: int = 399) -> np.ndarray:
    """Return the number of the unchanged row that has each row's features."""
    rows = pd.DataFrame(
        [row(index) for index in range(last + 1)], columns=["number", "age", "colour", "person", "income"]
    )
    expected = data.encoding.apply(rows.assign(days=[f"{index / 4:g}" for index in range(len(rows))]), "rows")
    return np.array([int(np.abs(expected - values).sum(axis=1).argmin()) for values in features])


def days(path: Path) -> Path:
    """A table whose target is a number: a quarter of the row's, from 0 to 99.75."""
    return write(path, [[*row(index)[:4], f"{index / 4:g}"] for index in range(400)], "number,age,colour,person,days")


def test_a_target_that_is_a_number_becomes_bins_and_is_kept_for_the_test(tmp_path: Path) -> None:
    data = load(days(tmp_path / "stay.csv"), target="days", bins=(0, 25, 50, 100))
    assert data.class_names == ("0 to 25", "25 to 50", "50 to 100")
    truth = original_index(data.train_features, data) / 4
    assert data.train_labels.tolist() == [0 if days < 25 else 1 if days < 50 else 2 for days in truth]
    assert data.test_numbers.tolist() == (original_index(data.test_features, data) / 4).tolist()
    assert data.dataset.scale.edges == (0, 25, 50, 100)


def test_targets_beyond_the_edges_are_refused_by_their_line_or_clipped_and_counted(tmp_path: Path) -> None:
    path = days(tmp_path / "stay.csv")
    with pytest.raises(InputError, match=r"stay\.csv, line 363, 'days': the label is 90\.25, beyond data\.bins"):
        load(path, target="days", bins=(0, 25, 50, 90))
    data = load(path, target="days", bins=(0, 25, 50, 90), outside="clip")
    assert data.remarks[0].startswith("39 of 400 labels are beyond data.bins")
    assert max(data.test_numbers) <= 90
    with pytest.raises(InputError, match=r"line 2, 'colour': the label is 'red', but data\.bins requires numbers"):
        load(path, target="colour", bins=(0, 25, 50))


def test_grades_keep_their_order_and_are_named_all(tmp_path: Path) -> None:
    path = days(tmp_path / "stay.csv")
    data = load(path, target="colour", grades=("green", "Red", "blue", "black"))
    assert data.class_names == ("green", "Red", "blue", "black")
    assert data.train_labels.tolist() == [(1, 0, 2)[place % 3] for place in original_index(data.train_features, data)]
    with pytest.raises(InputError, match=r"the label is 'blue', not one of data\.grades=\[green, red\]"):
        load(path, target="colour", grades=("green", "red"))
    with pytest.raises(ValidationError, match="classes and grades are different types of labels"):
        Table(public_fraction=0.2, path=path, target="colour", grades=("a", "b"), classes=("a", "b"))


def test_the_three_splits_are_disjoint_cover_the_rows_and_have_about_their_sizes(adult: Path) -> None:
    data = load(adult, target="income", public_fraction=0.25, test_fraction=0.25)
    splits = [original_index(f, data).tolist() for f in (data.train_features, data.query_features, data.test_features)]
    assert sorted(index for split in splits for index in split) == list(range(400))
    for split, expected in zip(splits, (200, 100, 100), strict=True):
        assert abs(len(split) - expected) < 30  # three standard deviations and more
    assert data.class_names == ("<=50K", ">50K")
    for features, labels in ((data.train_features, data.train_labels), (data.test_features, data.test_labels)):
        assert labels.tolist() == [int(index % 4 == 0) for index in original_index(features, data)]


def test_which_rows_are_public_depends_on_their_number_alone(tmp_path: Path) -> None:
    """No other row moves if a row changes, including its target, or rows are appended."""
    rows = [row(index) for index in range(300)]
    before = load(write(tmp_path / "t.csv", rows), target="income", group=None)
    private = int(original_index_of(before.train_features[0], before, 299))
    rows[private] = [str(private), "77", "red", "p0", ">50K" if rows[private][-1] == "<=50K" else "<=50K"]
    after = load(write(tmp_path / "t.csv", rows), target="income")
    assert np.array_equal(after.query_features[:, 0], before.query_features[:, 0])
    assert np.array_equal(after.test_labels, before.test_labels)
    assert (after.train_labels != before.train_labels).sum() == 1
    longer = load(write(tmp_path / "t.csv", rows + [row(index) for index in range(300, 400)]), target="income")
    firsts = [set(original_index(data.query_features, data, last)) for data, last in ((after, 299), (longer, 399))]
    assert firsts[0] == {index for index in firsts[1] if index < 300}


def original_index_of(row: np.ndarray, data: Splits, last: int) -> int:
    return int(original_index(row[None], data, last)[0])


@pytest.mark.parametrize("group", [None, "person"])
def test_a_new_person_moves_no_other_persons_rows(tmp_path: Path, group: str | None) -> None:
    rows = [row(index) for index in range(200)]
    before = load(write(tmp_path / "t.csv", rows), target="income", group=group)
    rows[57][3] = "somebody new"
    after = load(write(tmp_path / "t.csv", rows), target="income", group=group)

    def places(data: Splits) -> list[set[int]]:
        splits = (data.train_features, data.query_features, data.test_features)
        return [set(original_index(features, data, 199)) - {57} for features in splits]

    assert places(before) == places(after)


@pytest.mark.parametrize("group", [None, "person"])
def test_public_rows_are_the_queries_and_need_no_private_value(tmp_path: Path, group: str | None) -> None:
    rows = [row(index) for index in range(300)]
    data = load(write(tmp_path / "t.csv", rows), target="income", group=group)
    public = set(original_index(data.query_features, data, 299))
    for index in range(300):
        if index not in public:
            rows[index][0:3] = ["not a number", "neither", "infra-red"]
            rows[index][4] = "?"
    features, encoding = Table(
        public_fraction=0.2, path=write(tmp_path / "t.csv", rows), target="income", group=group
    ).public_rows()
    assert np.array_equal(features, data.query_features)
    assert encoding == data.encoding


def test_rows_with_ids_are_where_they_are_in_whatever_order_they_come(tmp_path: Path) -> None:
    rows = [row(index) for index in range(300)]
    before = load(write(tmp_path / "t.csv", rows), target="income", id="number", group="person")
    data = load(write(tmp_path / "t.csv", rows[::-1]), target="income", id="number", group="person")
    for field in ("train_features", "train_labels", "train_names", "train_groups", "query_features", "test_features"):
        assert np.array_equal(getattr(data, field), getattr(before, field))
    assert not any(name.startswith("number") for name in data.column_names)
    features, encoding = Table(
        public_fraction=0.2, path=tmp_path / "t.csv", target="income", id="number", group="person"
    ).public_rows()
    assert np.array_equal(features, data.query_features)
    assert encoding == data.encoding
    assert np.array_equal(data.record_names, data.train_names)


def test_a_row_is_named_by_its_id_or_else_its_number(tmp_path: Path) -> None:
    rows = [["7", f"{index:03d}", "ab"[index % 2]] for index in range(100)]
    path = write(tmp_path / "t.csv", rows, "x,key,y")
    by_id = load(path, target="y", id="key")
    assert set(by_id.train_names.tolist()) < set(name_codes(f"{index:03d}" for index in range(100)).tolist())
    by_number = load(path, target="y")
    assert set(by_number.train_names.tolist()) < set(place_codes(100).tolist())


def test_an_error_names_the_line_of_the_file_also_where_ids_order_the_rows(tmp_path: Path) -> None:
    rows = [["7", f"{99 - index}", "ab"[index % 2]] for index in range(100)]
    rows[4][2] = ""
    with pytest.raises(InputError, match="line 6, 'y': it is missing"):
        load(write(tmp_path / "t.csv", rows, "x,key,y"), target="y", id="key")
    rows[4][2], rows[9][1] = "a", "99"
    with pytest.raises(InputError, match="lines 2 and 11: both have 'key' 99"):
        load(write(tmp_path / "t.csv", rows, "x,key,y"), target="y", id="key")
    with pytest.raises(InputError, match="has no column 'number'"):
        load(write(tmp_path / "t.csv", rows, "x,key,y"), target="y", id="number")


def test_the_encoding_travels_as_json_and_encodes_rows_that_come_later(adult: Path) -> None:
    data = load(adult, target="income")
    encoding = Encoding.from_description(json.loads(json.dumps(data.encoding.describe())))
    assert encoding == data.encoding
    later = pd.DataFrame({"number": ["7"], "age": ["?"], "colour": ["ultraviolet"], "person": ["p0"]})
    features = encoding.apply(later, "the request")
    assert features.shape == (1, len(encoding.names))
    assert not features[0, KNOTS : 2 * KNOTS + 3].any()
    with pytest.raises(InputError, match=r"the request has no column 'colour'"):
        encoding.apply(later.drop(columns="colour"), "the request")
    assert any("ultraviolet" in sentence for sentence, _ in encoding.unknown(later))


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f'{number},"two\nlines",{"ab"[number % 2]}' for number in range(50)]
    path.write_text("x,text,y\n\n" + "\n".join([*rows, "51,word,"]) + "\n")
    with pytest.raises(InputError, match=r"t\.csv, line 103, 'y': it is missing"):
        load(path, target="y")
    assert path.read_text().splitlines()[102] == "51,word,"


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize(("cell", "words"), [("inf", "which is not finite"), ("old", "but the column is numeric")])
def test_an_odd_cell_does_not_change_the_type_of_a_column(adult: Path, cell: str, words: str, public: bool) -> None:
    data = load(adult, target="income", group="person")
    odd = int(original_index(data.query_features if public else data.train_features, data)[0])
    rows = [row(index) for index in range(400)]
    rows[odd][1] = cell
    with pytest.raises(InputError, match=rf"adult\.csv, line {odd + 2}: 'age' is '{cell}', {words}"):
        load(write(adult, rows), target="income", group="person")
    if cell == "old" and public:
        with pytest.raises(InputError, match=r"look like numbers: data\.categorical=\[age\]"):
            load(adult, target="income", group="person")
        declared = load(adult, target="income", group="person", categorical=("age",))
        assert "age=old" in declared.encoding.names


LABELS = ["<=50K", ">50K", "<=50K.", " >50k", "<=50K"]


def test_labels_that_look_like_one_class_are_named_and_declared(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [[str(i), LABELS[i % 5]] for i in range(100)], "x,y")
    with pytest.raises(
        InputError, match=r"'<=50K' in line 2 and '<=50K\.' in line 4, which look like two spellings of one class"
    ) as error:
        load(path, target="y")
    assert 'data.classes=["<=50K", ">50K"]' in str(error.value)
    two = load(path, target="y", classes=(">50K", "<=50K"))
    assert two.class_names == (">50K", "<=50K")
    assert set(two.train_labels.tolist()) == {0, 1}
    assert load(path, target="y", classes=("<=50K", "<=50K.", ">50K", ">50k")).class_names[1] == "<=50K."
    with pytest.raises(InputError, match=r"line 3, 'y': the label is '>50K', not one of data\.classes"):
        load(path, target="y", classes=("<=50K", "more"))


def test_a_target_of_many_numbers_is_pointed_to_bins_and_one_of_codes_to_its_classes(tmp_path: Path) -> None:
    rows = [[str(n), "20", "red", f"p{n}", f"{n % 60 + 250}"] for n in range(400)]
    path = write(tmp_path / "prices.csv", rows)
    with pytest.raises(
        InputError, match=r"'income' contains 60 different numbers in 400 rows.*data\.bins.*data\.classes"
    ):
        load(path, target="income")
    codes = tuple(str(number + 250) for number in range(60))
    assert load(path, target="income", classes=codes).class_names == codes


@pytest.mark.parametrize("labels", [("A+", "A-"), ("1", "10"), ("1.0", "10"), ("1000001", "1000002"), ("no", "none")])
def test_labels_that_only_resemble_each_other_stay_classes(tmp_path: Path, labels: tuple[str, str]) -> None:
    path = write(tmp_path / "t.csv", [[str(i), labels[i % 2]] for i in range(60)], "x,y")
    assert load(path, target="y").class_names == tuple(sorted(labels))


def test_the_party_of_a_row_is_kept_and_is_no_feature(adult: Path) -> None:
    data = load(adult, target="income", party="colour").dataset
    assert data.party_names == ("blue", "green", "red")
    assert data.train_parties is not None
    assert data.column_names is not None
    assert not any(name.startswith("colour") for name in data.column_names)


def test_as_a_dataset_its_private_splits_are_checked_and_fingerprinted(adult: Path) -> None:
    data = load(adult, target="income", group="person").dataset
    data.validate()
    description = data.describe()
    assert description["shape"] == [len(data.column_names or ())]
    assert description["columns"][0].startswith("number=")
    prints = {fingerprint(data, b"key"), fingerprint(data, b"other")}
    for field in ("train_images", "train_labels", "train_names", "train_groups", "test_images", "test_labels"):
        changed = getattr(data, field).copy()
        changed.flat[0] += 1
        prints.add(fingerprint(replace(data, **{field: changed}), b"key"))
    assert len(prints) == 8
    broken = data.train_images.copy()
    broken[3, 0] = np.inf
    with pytest.raises(InputError, match="train_images"):
        replace(data, train_images=broken).validate()
    with pytest.raises(InputError, match=r"rows as float32 \[N, 2\]"):
        replace(data, column_names=("a", "b")).validate()


def test_a_split_that_gets_no_rows_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [row(index) for index in range(6)])
    with pytest.raises(InputError, match=r"the split for public queries has 0 of 6 rows"):
        load(path, target="income", public_fraction=0.001)


def test_columns_are_encoded_with_the_query_split_alone(adult: Path) -> None:
    constant = write(adult.with_name("constant.csv"), [[str(i), "7", "ab"[i % 2]] for i in range(40)], "x,constant,y")
    assert load(constant, target="y").column_names[-1] == "constant=7.0"
    assert (load(constant, target="y").train_features[:, -1] == 1).all()
    data = load(adult, target="income")
    assert data.column_names == (
        *(name for name in data.column_names if name.startswith(("number=", "age="))),
        *("colour=blue", "colour=green", "colour=red"),
        *(name for name in data.column_names if name.startswith("person=")),
    )
    queries = original_index(data.query_features, data)
    ages = [20 + index % 50 for index in queries if index % 17]
    knots = data.encoding.columns[1].knots
    assert len(knots) == KNOTS
    assert set(knots) <= set(ages)
    assert (knots[0], knots[-1]) == (min(ages), max(ages))
    for features in (data.train_features, data.query_features, data.test_features):
        for index, values in zip(original_index(features, data), features, strict=True):
            age, hats = 20 + index % 50, values[KNOTS : 2 * KNOTS]
            assert hats.sum() == pytest.approx(float(index % 17 > 0))
            assert (hats > 0).sum() <= 2
            if index % 17:
                assert hats @ np.array(knots) == pytest.approx(np.clip(age, knots[0], knots[-1]), abs=1e-4)
            words = values[2 * KNOTS : 2 * KNOTS + 3]
            assert words.tolist() == [float(COLOURS[index % 3] == name) for name in ("blue", "green", "red")]


def test_a_private_value_changes_no_other_record(adult: Path) -> None:
    before = load(adult, target="income", group="person")
    private = int(original_index(before.train_features, before)[0])
    rows = [row(index) for index in range(400)]
    rows[private][1:3] = ["1000000", "ultraviolet"]
    after = load(write(adult, rows), target="income", group="person")
    assert after.column_names == before.column_names
    assert np.array_equal(after.query_features, before.query_features)
    assert np.array_equal(after.train_features[1:], before.train_features[1:])
    assert after.train_features[0, KNOTS:].tolist() == [0.0] * (KNOTS - 1) + [1.0, 0.0, 0.0, 0.0]


def test_persons_stay_in_one_split_and_are_no_feature(adult: Path) -> None:
    data = load(adult, target="income", group="person")
    assert not any(name.startswith("person") for name in data.column_names)
    features = (data.train_features, data.query_features, data.test_features)
    persons = [set((original_index(f, data) // 2).tolist()) for f in features]
    assert not persons[0] & persons[1]
    assert not persons[0] & persons[2]
    assert not persons[1] & persons[2]
    assert data.train_groups is not None
    assert len(set(data.train_groups.tolist())) == len(persons[0])


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("x,z", [["1", "a"]] * 20, "has no column 'y'; its columns are x, z. If the first line is a record"),
        ("x,y", [], "has no rows below its header"),
        ("x,y", [["1", "a"]] * 20, "every row has 'y' a. At least two classes"),
        ("x,y", [["1", "a"], ["2", ""], *([["1", "b"]] * 18)], "line 3, 'y': it is missing. Fill it in"),
        ("x,y", [["1", "a"], ["2", ""], *([["1", "?"]] * 18)], r"line 3, 'y': it is missing \(19 such rows\)"),
        ("y", [["a"], ["b"]] * 20, "has no column beside the target"),
        ("x,y", [["1", "a"], ["1", "a", "extra"]] * 20, "line 3 has 3 values, but the header has 2 columns"),
        ("x,y", [["1"]] * 20, "line 2 has 1 values, but the header has 2 columns"),
        ("x;y", [["1;a"]] * 20, "is separated by semicolons"),
        ("x,x,y", [["1", "2", "a"]] * 20, "has two columns 'x'.*If the first line is a record"),
        (",x,y", [["1", "2", "a"]] * 20, "column 1 has no name in the header"),
        ("x,y", [['"1', "a"]], "is not a CSV file in UTF-8"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, header: str, rows: list[list[str]], message: str) -> None:
    with pytest.raises(InputError, match=r"There is no file .*none\.csv"):
        load(tmp_path / "none.csv", target="y")
    with pytest.raises(InputError, match=rf"t\.csv.*({message})"):
        load(write(tmp_path / "t.csv", rows, header), target="y")


@pytest.mark.parametrize(("query", "test"), [(0.5, 0.5), (0.0, 0.2), (0.2, 0.0), (float("nan"), 0.2)])
def test_fractions_that_leave_nothing_are_refused(adult: Path, query: float, test: float) -> None:
    with pytest.raises(ValidationError, match=r"leave no record to teach|greater than 0|finite number"):
        load(adult, target="income", public_fraction=query, test_fraction=test)


def test_a_survey_counts_what_there_is_and_reads_the_file_once(adult: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, read = Table(public_fraction=0.2, path=adult, target="income"), []
    monkeypatch.setattr(table, "read_csv", lambda path: read.append(path) or read_csv(path))
    survey = source.survey()
    assert read == [adult]
    assert survey.public == len(source.public_rows()[0]) > 0
    assert survey.train.sum() + survey.test.sum() + survey.public == 400


def test_a_number_too_large_to_be_averaged_is_refused_by_its_line(tmp_path: Path) -> None:
    rows = [row(index) for index in range(400)]
    for index in range(0, 400, 3):
        rows[index][0] = "1e308" if index % 2 else "-1e308"
    with pytest.raises(InputError, match=r"line \d+: 'number' is -?1e308, which is too large"):
        load(write(tmp_path / "huge.csv", rows), target="income")


def test_similar_group_names_are_reported(tmp_path: Path) -> None:
    rows = [row(index) for index in range(400)]
    for index in range(400):
        rows[index][3] = f"{index // 4:04}" if index % 2 else str(index // 4)
    data = load(write(tmp_path / "zeros.csv", rows), target="income", group="person")
    assert any("100 of 200 group names look like another" in said for said in data.dataset.remarks)


def test_a_header_that_looks_like_a_record_is_doubted(tmp_path: Path, adult: Path) -> None:
    bare = write(tmp_path / "bare.csv", [row(index) for index in range(1, 400)], ", ".join(row(0)))
    (doubt,) = Table(public_fraction=0.2, path=bare, target=">50K", id="0", group="p0").survey().doubts
    assert "Most column names look like values: '?', 'red'." in doubt
    assert Table(public_fraction=0.2, path=adult, target="income", id="number", group="person").survey().doubts == ()


def test_declared_columns_need_no_public_row_and_read_no_value_of_the_table(adult: Path) -> None:
    columns = {"age": (20, 69), "colour": ("blue", "green"), "number": (0, 100, 399)}
    source = Table(path=adult, target="income", columns=columns)
    assert not source.has_public_records
    encoding = source.declared_encoding()
    assert encoding is not None
    assert [len(column.knots) for column in encoding.columns] == [KNOTS, 0, 3]
    data = source.load()
    assert len(data.train_images) + len(data.test_images) == 400
    assert data.pool_names is None
    assert source.survey().columns == {
        "numbers": ("age", "number"),
        "words": ("colour",),
        "not used": ("person",),
        "no features": ("income",),
    }
    drawn = encoding.draw(1000, np.random.default_rng(0))
    assert set(drawn["colour"]) == {"blue", "green"}
    assert drawn["age"].between(20, 69).all()
    assert drawn["age"].mean() == pytest.approx(44.5, abs=2)
    features = encoding.apply(drawn, "drawn")
    assert features[:, :KNOTS].sum(axis=1) == pytest.approx(1)
    assert features[:, :KNOTS] @ np.array(encoding.columns[0].knots) == pytest.approx(drawn["age"].to_numpy(), abs=1e-3)


def test_values_that_are_not_declared_are_reported_and_refused_if_they_are_the_rule(adult: Path) -> None:
    def survey(**columns: Any) -> Survey:
        return Table(path=adult, target="income", columns=columns).survey()

    sound = survey(age=(20, 69), colour=COLOURS, number=(0, 399))
    assert (sound.doubts, sound.remarks) == ((), ())
    some = survey(age=(20, 60), colour=COLOURS, number=(0, 399))
    assert not some.doubts
    (remark,) = some.remarks
    assert re.fullmatch(r"'age': \d+ of 400 rows have numbers outside 20 to 60, .* Compare data\.columns\.", remark)
    wrong = survey(age=(0, 1), colour=("Blue", "Green"))
    assert [text.partition(":")[0] for text in wrong.doubts] == ["'age'", "'colour'"]
    assert "400 of 400 rows have unknown words, which are ignored: blue, green, red." in wrong.doubts[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "columns is missing"),
        ({"columns": {"age": (1, 2)}, "public_fraction": 0.1}, "exclude each other"),
        ({"columns": {"age": (2, 1)}}, r"columns\.age=\[2, 1\] is neither a lowest and a highest number"),
        ({"columns": {"age": (1, "old")}}, "Put words that look like numbers into quotes"),
        ({"columns": {"age": (1,)}}, "is neither a lowest and a highest number"),
        ({"columns": {"income": ("a", "b")}}, "is no feature"),
        ({"columns": {"age": (True, False)}}, "valid"),
    ],
)
def test_columns_that_cannot_be_encoded_are_refused(adult: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Table(path=adult, target="income", **settings)
