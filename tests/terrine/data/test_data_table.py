from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from terrine.data import table
from terrine.errors import InputError, SettingError

COLOURS = ("red", "green", "blue")


def row(index: int) -> list[str]:
    age = "?" if index % 17 == 0 else str(20 + index % 50)
    return [str(index), age, COLOURS[index % 3], f"p{index // 2}", ">50K" if index % 4 == 0 else "<=50K"]


def write(path: Path, rows: list[list[str]], header: str = "number,age,colour,person,income") -> Path:
    path.write_text("\n".join([header, *(", ".join(cells) for cells in rows)]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def adult(tmp_path: Path) -> Path:
    return write(tmp_path / "adult.csv", [row(index) for index in range(400)])


def original_index(features: np.ndarray, data: table.Table) -> np.ndarray:
    """Recover the row numbers from the standardised first column: it is linear in them."""
    column = np.concatenate([data.train_features, data.query_features, data.test_features])[:, 0]
    step = (column.max() - column.min()) / 399
    return np.rint((features[:, 0] - column.min()) / step).astype(int)


def test_the_three_splits_are_disjoint_cover_the_rows_and_have_their_sizes(adult: Path) -> None:
    data = table.load(adult, target="income", query_fraction=0.25, test_fraction=0.25)
    splits = [original_index(f, data).tolist() for f in (data.train_features, data.query_features, data.test_features)]
    assert sorted(index for split in splits for index in split) == list(range(400))
    assert [len(split) for split in splits] == [200, 100, 100]
    assert data.class_names == ("<=50K", ">50K")
    for features, labels in ((data.train_features, data.train_labels), (data.test_features, data.test_labels)):
        assert labels.tolist() == [int(index % 4 == 0) for index in original_index(features, data)]


def test_columns_are_encoded_with_the_query_split_alone(adult: Path) -> None:
    data = table.load(adult, target="income")
    assert data.feature_names == (
        *("number", "age", "colour=blue", "colour=green", "colour=red"),
        *(name for name in data.feature_names if name.startswith("person=")),
    )
    queries = original_index(data.query_features, data)
    ages = [20 + index % 50 for index in queries if index % 17]
    mean, deviation = np.mean(ages), np.std(ages)
    for features in (data.train_features, data.query_features, data.test_features):
        for index, values in zip(original_index(features, data), features, strict=True):
            age = 0.0 if index % 17 == 0 else (20 + index % 50 - mean) / deviation
            assert values[1] == pytest.approx(age, abs=1e-5)
            assert values[2:5].tolist() == [float(COLOURS[index % 3] == name) for name in ("blue", "green", "red")]


def test_a_private_value_changes_no_other_record(adult: Path) -> None:
    before = table.load(adult, target="income", group="person")
    private = int(original_index(before.train_features, before)[0])
    rows = [row(index) for index in range(400)]
    rows[private][1:3] = ["1000000", "ultraviolet"]
    after = table.load(write(adult, rows), target="income", group="person")
    assert after.feature_names == before.feature_names
    assert np.array_equal(after.query_features, before.query_features)
    assert np.array_equal(after.train_features[1:], before.train_features[1:])
    assert after.train_features[0, 2:].tolist() == [0.0, 0.0, 0.0]


def test_persons_stay_in_one_split_and_are_no_feature(adult: Path) -> None:
    data = table.load(adult, target="income", group="person")
    assert not any(name.startswith("person") for name in data.feature_names)
    features = (data.train_features, data.query_features, data.test_features)
    persons = [set((original_index(f, data) // 2).tolist()) for f in features]
    assert not persons[0] & persons[1]
    assert not persons[0] & persons[2]
    assert not persons[1] & persons[2]
    assert data.train_groups is not None
    assert len(set(data.train_groups.tolist())) == len(persons[0])


def test_a_constant_column_is_zero(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [[str(i), "7", "ab"[i % 2]] for i in range(40)], "x,constant,y")
    assert not table.load(path, target="y").train_features[:, 1].any()


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("x,z", [["1", "a"]] * 20, "has no column 'y'; its columns are x, z"),
        ("x,y", [], "has no rows below its header"),
        ("x,y", [["1", "a"]] * 20, "every row has 'y' a. At least two classes"),
        ("x,y", [["1", "a"], ["2", ""], *([["1", "b"]] * 18)], "row 2: 'y' is missing"),
        ("y", [["a"], ["b"]] * 20, "has no column beside the target"),
        ("x,y", [["1", "a", "extra"]] * 20, r"is no CSV file|more values than columns"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, header: str, rows: list[list[str]], message: str) -> None:
    with pytest.raises(InputError, match=rf"t\.csv.*({message})"):
        table.load(write(tmp_path / "t.csv", rows, header), target="y")


def test_a_word_among_private_numbers_is_named(adult: Path) -> None:
    data = table.load(adult, target="income")
    private = int(original_index(data.train_features, data)[0])
    rows = [row(index) for index in range(400)]
    rows[private][1] = "old"
    with pytest.raises(InputError, match=rf"row {private + 1}: 'age' is 'old', while the column holds numbers"):
        table.load(write(adult, rows), target="income")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"There is no file .*none\.csv"):
        table.load(tmp_path / "none.csv", target="y")


@pytest.mark.parametrize(("query", "test"), [(0.5, 0.5), (0.0, 0.2), (0.2, 0.0), (float("nan"), 0.2)])
def test_fractions_that_leave_nothing_are_refused(adult: Path, query: float, test: float) -> None:
    with pytest.raises(SettingError, match="together less than 1"):
        table.load(adult, target="income", query_fraction=query, test_fraction=test)


def test_the_fingerprint_depends_on_every_array(adult: Path) -> None:
    data = table.load(adult, target="income", group="person")
    prints = {table.fingerprint(data, b"key"), table.fingerprint(data, b"other")}
    fields = ("train_features", "train_labels", "train_groups", "query_features", "test_features", "test_labels")
    for field in fields:
        changed = getattr(data, field).copy()
        changed.flat[0] += 1
        prints.add(table.fingerprint(replace(data, **{field: changed}), b"key"))
    assert len(prints) == 2 + len(fields)
