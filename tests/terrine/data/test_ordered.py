"""Labels that have an order, as users write them, and what probabilities of them say."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from terrine.data.dataset import Dataset
from terrine.data.ordered import Scale
from terrine.data.pool import take_pool
from terrine.data.source import load_dataset
from terrine.data.sources.folder import Folder
from terrine.errors import InputError
from terrine.privacy.noised_accuracy import NoisedAccuracy, shares_of_units
from tests.noises import Silence

EDGES = (0, 20, 40, 60)
LABELS = ["0", "19.9", "20", "55", "60", "3e1", "7", "41"]
BINS = [0, 0, 1, 2, 2, 1, 0, 2]
GRADES = ("none", "mild", "severe")


def table(folder: Path, labels: list[str]) -> Path:
    """A CSV of images, the last two in the test split."""
    lines = ["path,split,label"]
    for number, label in enumerate(labels):
        Image.fromarray(np.full((8, 8), 30 * number, np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'test' if number >= len(labels) - 2 else 'train'},{label}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


def arrays(path: Path, labels: Any, **more: Any) -> Path:
    np.savez(
        path,
        train_images=np.zeros((len(labels) - 2, 8, 8), np.uint8),
        train_labels=labels[:-2],
        test_images=np.ones((2, 8, 8), np.uint8),
        test_labels=labels[-2:],
        **more,
    )
    return path


def read(path: Path, **settings: Any) -> Dataset:
    return load_dataset("npz" if path.suffix == ".npz" else "folder", path=path, size=8, **settings)


def test_numbers_of_a_table_class_folders_and_arrays_become_bins_and_are_kept_for_the_test(tmp_path: Path) -> None:
    found = [
        read(table(tmp_path, LABELS), bins=EDGES),
        read(arrays(tmp_path / "own.npz", np.array([float(label) for label in LABELS])[:, None]), bins=EDGES),
    ]
    for dataset in found:
        assert dataset.class_names == ("0 to 20", "20 to 40", "40 to 60")
        assert dataset.train_labels.tolist() == BINS[:6]
        assert dataset.test_labels.tolist() == BINS[6:]
        assert dataset.test_numbers.tolist() == [7, 41]
        assert dataset.scale == Scale.from_settings(bins=EDGES)
        assert dataset.remarks == ()
    for number, label in enumerate(LABELS):
        (tmp_path / "folders" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 30 * number, np.uint8)).save(tmp_path / "folders" / label / f"{number}.png")
    folders = read(tmp_path / "folders", bins=EDGES, test_fraction=0.4)
    by_shade = dict(zip(folders.train_images[:, 0, 0, 0].tolist(), folders.train_labels.tolist(), strict=True))
    assert by_shade == {30 * n: BINS[n] for n in range(8) if 30 * n in by_shade}
    assert folders.test_numbers.tolist() == [float(LABELS[n // 30]) for n in folders.test_images[:, 0, 0, 0]]


def test_what_stays_in_the_test_split_beside_a_public_pool_keeps_its_numbers() -> None:
    images = np.arange(40, dtype=np.uint8).repeat(64).reshape(40, 1, 8, 8)
    labels = Scale.from_settings(bins=EDGES).places(np.arange(40.0))
    dataset = Dataset("own", images, labels, None, images, labels, ("a", "b", "c"), test_numbers=np.arange(40.0))
    pooled = take_pool(dataset, "test", 0.5, seed=3)
    assert 5 < len(pooled.test_images) < 35
    assert pooled.test_numbers.tolist() == pooled.test_images[:, 0, 0, 0].tolist()


def test_what_is_no_number_or_beyond_the_edges_is_refused_by_its_place_or_clipped_and_told(tmp_path: Path) -> None:
    for label, said in (("7,5", "'7"), ("nan", "'nan'"), ("old", "'old'")):
        with pytest.raises(InputError, match=rf"3\.png: the label is {said}.*requires numbers"):
            read(table(tmp_path, [*LABELS[:3], f'"{label}"', *LABELS[4:]]), bins=EDGES)
    beyond = table(tmp_path, ["-1", *LABELS[1:7], "61"])
    with pytest.raises(InputError, match=r"0\.png: the label is -1, beyond data.bins, from 0 to 60 \(2 such labels\)"):
        read(beyond, bins=EDGES)
    with pytest.raises(InputError, match=r"test_labels\[1\]: the label is 61"):
        read(arrays(tmp_path / "own.npz", np.array([1.0, 2, 3, 61])), bins=EDGES)
    clipped = read(beyond, bins=EDGES, outside="clip")
    assert clipped.train_labels.tolist() == BINS[:6]
    assert clipped.test_numbers.tolist() == [7, 60]
    survey = Folder(path=beyond, size=8, bins=EDGES, outside="clip").survey()
    assert survey.remarks[0].startswith("2 of 8 labels are beyond data.bins")


def test_which_bins_and_grades_there_are_is_said_beforehand_and_empty_ones_are_no_fault(tmp_path: Path) -> None:
    few = read(table(tmp_path, ["3", "4", "5", "6"]), bins=EDGES)
    assert few.class_names == ("0 to 20", "20 to 40", "40 to 60")
    assert few.describe()["classes"]["40 to 60"] == {"train": 0, "test": 0}
    texts = ["mild", "none", "none", "mild", "severe", "none"]
    by_name = [0 if text == "none" else GRADES.index(text) for text in texts]
    for dataset in (
        read(table(tmp_path, texts), grades=GRADES),
        read(arrays(tmp_path / "texts.npz", np.array(texts)), grades=GRADES),
        read(arrays(tmp_path / "numbers.npz", np.array(by_name)), grades=GRADES),
        # In the file classes are numbered in another order.
        read(
            arrays(tmp_path / "named.npz", np.array([2 - n for n in by_name]), class_names=np.array(GRADES[::-1])),
            grades=GRADES,
        ),
    ):
        assert dataset.class_names == GRADES
        assert [*dataset.train_labels.tolist(), *dataset.test_labels.tolist()] == by_name
        assert dataset.test_numbers is None
    from_one = read(arrays(tmp_path / "one.npz", np.array([1, 2, 2, 1])), grades=("1", "2", "3"))
    assert [*from_one.train_labels.tolist(), *from_one.test_labels.tolist()] == [0, 1, 1, 0]
    with pytest.raises(InputError, match=r"1\.png: the label is 'none', not one of data.grades"):
        read(table(tmp_path, texts), grades=("mild", "severe"))
    with pytest.raises(InputError, match="the classes are ordered"):
        dataset.with_classes(GRADES[::-1])


@pytest.mark.parametrize(
    "settings",
    [
        {"bins": (0, 1)},
        {"bins": (0, 2, 2)},
        {"bins": (0, 1, float("inf"))},
        {"bins": (1000000.1, 1000000.2, 1000000.3)},
        {"grades": ("a",)},
        {"grades": ("a", "a")},
        {"grades": ("a", "b"), "bins": EDGES},
        {"findings": ("a", "b"), "bins": EDGES},
        {"outside": "clip"},
    ],
)
def test_settings_without_meaning_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Folder(path=tmp_path, **settings)


def test_grades_may_be_written_as_numbers(tmp_path: Path) -> None:
    assert Folder(path=tmp_path, grades=[0, 1, 2]).grades == ("0", "1", "2")


def test_the_number_is_the_median_of_evenly_filled_bins_and_the_class_the_one_of_least_expected_error() -> None:
    generator = np.random.default_rng(0)
    scale = Scale.from_settings(bins=(-3, 0, 1, 10, 10.5))
    likely = generator.dirichlet(np.full(4, 0.5), 50)
    numbers, classes = scale.numbers(likely), scale.classes(likely)
    for row, number, place in zip(likely, numbers, classes, strict=True):
        # The distribution function, piece by piece.
        below = sum(
            share * np.clip((number - low) / (high - low), 0, 1)
            for share, (low, high) in zip(row, pairwise(scale.edges), strict=True)
        )
        assert below == pytest.approx(0.5)
        assert scale.edges[place] <= number <= scale.edges[place + 1]
        errors = [(row * np.abs(np.arange(4) - other)).sum() for other in range(4)]
        assert errors[place] == pytest.approx(min(errors))
    certain = np.eye(4, dtype=np.float32)
    assert scale.numbers(certain).tolist() == scale.middles.tolist() == [-1.5, 0.5, 5.5, 10.25]
    graded = Scale.from_settings(GRADES)
    assert graded.numbers(np.array([[0.5, 0.25, 0.25]])).tolist() == [0.75]
    assert (graded.span, scale.span) == (2, 13.5)


def test_whatever_one_record_says_no_other_moves_to_another_bin_and_no_edge_moves(tmp_path: Path) -> None:
    before = read(table(tmp_path, LABELS), bins=EDGES)
    for victim in range(6):
        for other in ("0", "60", "33.3"):
            after = read(table(tmp_path, [*LABELS[:victim], other, *LABELS[victim + 1 :]]), bins=EDGES)
            assert (after.class_names, after.scale) == (before.class_names, before.scale)
            moved = np.flatnonzero(after.train_labels != before.train_labels)
            assert set(moved) <= {victim}


def test_a_unit_moves_the_sums_of_a_released_error_by_no_more_than_is_charged() -> None:
    scale, mechanism = Scale.from_settings(bins=EDGES), NoisedAccuracy.for_budget(1.0, 1e-5)
    # A unit of one or two records, each with what is true and what the student says: as far apart as can be.
    pairs = [(truth, said) for truth in (0, 30, 60) for said in (0, 17.5, 60)]
    contents = [None, *([pair] for pair in pairs), *([pairs[0], pair] for pair in pairs)]

    def sums(content: Any) -> np.ndarray:
        records = [(0, pair) for pair in ([] if content is None else content)] + [(1, (20, 40)), (2, (60, 55))]
        truth, said = (np.array([pair[part] for _, pair in records], float) for part in (0, 1))
        shares = shares_of_units(scale.closeness(said, truth), np.array([unit for unit, _ in records]))
        return mechanism.release(shares, Silence())

    found = [sums(content) for content in contents]
    apart = max(np.linalg.norm(one - other) for one in found for other in found)
    assert 0.999 < apart <= mechanism.event.sensitivity
    # A single unit without noise: the mean of errors 0, 20 and 5.
    assert scale.span * (1 - mechanism.estimate(found[1]).accuracy) == pytest.approx(25 / 3, abs=1e-3)
