"""Labels of several findings as users write them: columns of a table, one cell, and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from terrine.data.dataset import Dataset
from terrine.data.findings import counts_by_class, labelled
from terrine.data.source import count_dataset, load_dataset
from terrine.data.sources.folder import Folder
from terrine.errors import InputError

FINDINGS = ("edema", "effusion", "mass")
ROWS = [(1, 0, 0), (0, 0, 0), (1, 1, 0), (0, 1, 1), (0, 0, 1), (1, 1, 1), (0, 0, 0), (0, 1, 0)]


def table(folder: Path, header: str, cells: list[str]) -> Path:
    """A CSV of eight images, the last two in the test split."""
    lines = [header]
    for number, cell in enumerate(cells):
        Image.fromarray(np.full((8, 8), 30 * number, np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'test' if number > 5 else 'train'},{cell}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, **settings: Any) -> Dataset:
    return load_dataset("folder", path=path, size=8, findings=FINDINGS, **settings)


def columns(rows: list[Any]) -> list[str]:
    return [",".join(map(str, row)) for row in rows]


def test_a_column_for_each_finding_and_one_cell_with_all_of_them_are_the_same_data(tmp_path: Path) -> None:
    by_column = read(table(tmp_path, "path,split,mass,edema,effusion", columns([(c, a, b) for a, b, c in ROWS])))
    assert by_column.class_names == FINDINGS
    assert by_column.train_labels.tolist() == [list(row) for row in ROWS[:6]]
    assert by_column.test_labels.tolist() == [list(row) for row in ROWS[6:]]
    for separator in (";", " | "):
        cells = [separator.join([*(n for n, y in zip(FINDINGS, row, strict=True) if y), "hernia"]) for row in ROWS]
        cells[1] = "No Finding"
        cells[6] = ""
        again = read(table(tmp_path, "path,split,label", cells))
        np.testing.assert_array_equal(again.train_labels, by_column.train_labels)
        np.testing.assert_array_equal(again.test_labels, by_column.test_labels)
    written = read(table(tmp_path, "path,split,edema,effusion,mass", columns([("1.0", "", "no"), *ROWS[1:]])))
    np.testing.assert_array_equal(written.train_labels, by_column.train_labels)


@pytest.mark.parametrize(
    ("header", "cells", "message"),
    [
        ("path,split,edema,effusion,mass", columns([("-1.0", 0, 0), *ROWS[1:]]), "line 2: edema is '-1.0'.*uncertain"),
        (
            "path,split,edema,effusion",
            columns([row[:2] for row in ROWS]),
            "must contain path and edema, effusion, mass",
        ),
        ("path,split,label", ["edema;effusion"] * 8, "have no training records: 'mass'"),
    ],
)
def test_what_is_no_table_of_findings_is_refused_in_a_sentence(
    tmp_path: Path, header: str, cells: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(table(tmp_path, header, cells))


def test_class_folders_have_no_findings_and_one_finding_alone_is_a_class(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a table"):
        read(tmp_path)
    with pytest.raises(ValidationError, match="must be two or more distinct names"):
        Folder(path=tmp_path, findings=("edema",))
    with pytest.raises(ValidationError, match="must be two or more distinct names"):
        Folder(path=tmp_path, findings=("edema", "edema"))


def test_a_survey_counts_what_is_there_before_an_image_is_opened(tmp_path: Path) -> None:
    path = table(tmp_path, "path,split,edema,effusion,mass", columns(ROWS))
    survey = Folder(path=path, size=8, findings=FINDINGS).survey()
    assert survey.class_names == FINDINGS
    assert survey.records == (6, 2)
    assert count_dataset(read(path)).records == (6, 2)
    assert survey.train.tolist() == np.sum(ROWS[:6], axis=0).tolist()
    assert survey.test.tolist() == np.sum(ROWS[6:], axis=0).tolist()


def arrays(tmp_path: Path, labels: Any, **others: Any) -> Path:
    path = tmp_path / "own.npz"
    np.savez(path, images=np.random.default_rng(0).integers(0, 256, (8, 8, 8), np.uint8), labels=labels, **others)
    return path


def test_arrays_have_a_column_for_each_finding_and_some_can_be_chosen(tmp_path: Path) -> None:
    path = arrays(tmp_path, np.array(ROWS), class_names=np.array(["mass", "edema", "effusion"]))
    data = load_dataset("npz", path=path, size=8, findings=("effusion", "mass"), test_fraction=0.3)
    known = dict(zip([image.tobytes() for image in np.load(path)["images"]], ROWS, strict=True))
    for image, label in zip(data.train_images, data.train_labels.tolist(), strict=True):
        assert label == [known[image.tobytes()][2], known[image.tobytes()][0]]
    assert data.describe()["classes"]["mass"]["train"] == data.train_labels[:, 1].sum()
    unnamed = load_dataset("npz", path=arrays(tmp_path, np.array(ROWS)), size=8, findings=FINDINGS, test_fraction=0.3)
    assert unnamed.class_names == FINDINGS


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(ROWS)[:, :2], "it needs one column for each of 3 findings"),
        (2 * np.array(ROWS), "must contain only 0"),
        (np.array([row[0] for row in ROWS]), r"shape \[8\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, labels: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset("npz", path=arrays(tmp_path, labels), size=8, findings=FINDINGS)


def test_columns_without_findings_say_how_to_name_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name them in data\.findings"):
        load_dataset("npz", path=arrays(tmp_path, np.array(ROWS)), size=8)
    with pytest.raises(InputError, match=r"has no finding 'hernia', only edema, effusion, mass"):
        load_dataset(
            "npz",
            path=arrays(tmp_path, np.array(ROWS), class_names=np.array(FINDINGS)),
            size=8,
            findings=("edema", "hernia"),
        )


def test_labels_of_either_kind_are_counted_by_class() -> None:
    records, classes = labelled(np.array(ROWS))
    assert list(zip(records.tolist(), classes.tolist(), strict=True)) == [
        (number, finding) for number, row in enumerate(ROWS) for finding in range(3) if row[finding]
    ]
    assert counts_by_class(np.array(ROWS), 3).tolist() == np.sum(ROWS, axis=0).tolist()
    assert counts_by_class(np.array([2, 0, 2]), 4).tolist() == [1, 0, 2, 0]
