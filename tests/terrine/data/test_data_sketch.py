"""By what a dataset is known again: its records' contents, whatever their labels, places, sizes or company."""

import shutil

import numpy as np
import pytest
from PIL import Image

from terrine.data.sketch import SIZE, digests_of_arrays, sketch
from terrine.data.sources.digits import Digits
from terrine.data.sources.folder import Folder
from terrine.data.sources.npz import Npz
from terrine.data.sources.table import Table
from terrine.privacy.ledger.data import same_people

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 12, 12), dtype=np.uint8)
LABELS = np.arange(60) % 3


def share(one: np.ndarray, other: np.ndarray) -> float:
    return len(np.intersect1d(one, other)) / min(len(one), len(other))


def npz(path, images=IMAGES, labels=LABELS, **arrays):
    np.savez(path, images=images, labels=labels, **arrays)
    return path


@pytest.mark.parametrize(
    ("arrays", "settings"),
    [
        ({}, {}),
        ({}, {"size": 20}),
        ({}, {"channels": 3}),
        ({}, {"size": 9, "test_fraction": 0.5}),
        ({"labels": LABELS[::-1]}, {"size": 10}),
        ({"groups": np.arange(60)}, {"size": 10}),
        ({"ids": np.arange(60)[::-1]}, {"size": 10}),
        ({"images": IMAGES[:-1], "labels": LABELS[:-1]}, {"size": 10}),
        ({"images": np.concatenate([IMAGES, 255 - IMAGES]), "labels": np.tile(LABELS, 2)}, {"size": 10}),
    ],
)
def test_arrays_are_known_again(arrays, settings, tmp_path):
    one = Npz(path=npz(tmp_path / "one.npz"), size=12).load().sketch
    other = Npz(path=npz(tmp_path / "elsewhere.npz", **arrays), **settings).load().sketch
    assert share(one, other) >= 0.45  # of the two kinds of digests one does not depend on the size


def test_other_arrays_are_others_and_black_images_nobodys(tmp_path):
    black = np.concatenate([255 - IMAGES, np.zeros((20, 12, 12), np.uint8)])
    blacker = np.concatenate([IMAGES, np.zeros((20, 12, 12), np.uint8)])
    labels = np.arange(80) % 3
    one, other = (
        Npz(path=npz(tmp_path / f"{number}.npz", images, labels), size=12).load().sketch
        for number, images in enumerate([black, blacker])
    )
    assert share(one, other) == 0


@pytest.fixture
def folder(tmp_path):
    for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        path = tmp_path / "one" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "one"


def test_files_are_known_again_under_other_names_classes_and_sizes_and_in_another_format(folder, tmp_path):
    one = Folder(path=folder, size=12).load().sketch
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        for name, suffix in (("moved", "png"), ("converted", "bmp")):
            path = tmp_path / name / str(number % 2) / f"{number:03d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, path) if suffix == "png" else Image.open(file).save(path)
    assert share(one, Folder(path=tmp_path / "moved", size=31).load().sketch) >= 0.45
    assert share(one, Folder(path=tmp_path / "converted", size=12).load().sketch) >= 0.45
    assert share(one, Npz(path=npz(tmp_path / "same.npz"), size=12).load().sketch) >= 0.45


def test_rows_are_known_again_whatever_their_columns_are_taken_for(tmp_path):
    rows = [f"{n},{n % 7},{RNG.random():.9f},{'ab'[n % 2]}" for n in range(200)]
    path = tmp_path / "one.csv"
    path.write_text("\n".join(["name,ward,pressure,ill", *rows]))
    one = Table(path=path, target="ill").load().sketch
    assert share(one, Table(path=path, target="ward", id="name", public_fraction=0.4).load().sketch) >= 0.45
    turned = [f"{row[:-1]}{'ab'[row.endswith('a')]}" for row in rows]
    path.write_text("\n".join(["name,ward,pressure,ill", *reversed(turned)]))
    assert share(one, Table(path=path, target="ill").load().sketch) >= 0.3  # other rows are public now
    path.write_text("\n".join(["name,ward,pressure,ill", *(row.replace(",0.", ",1.") for row in turned)]))
    assert share(one, Table(path=path, target="ill").load().sketch) == 0


def test_public_data_have_none_unless_they_are_treated_as_private():
    assert Digits(size=8).load().sketch is None
    assert len(Digits(size=8, public_benchmark=False).load().sketch) > 3_000


def test_a_sketch_of_many_records_is_small_and_what_two_sets_share_shows_in_it():
    records = np.random.default_rng(3).integers(0, 256, (450_000, 16), dtype=np.uint8)
    digests = digests_of_arrays(records, "read")
    one, other = sketch(digests[:240_000]), sketch(digests[210_000:])
    assert len(one) == len(other) == SIZE
    assert 0.08 < share(one, other) < 0.2  # 30,000 of 240,000 records
    np.testing.assert_array_equal(one, sketch(digests[100_000:240_000], digests[:100_000][::-1]))


def test_a_cohort_is_found_again_in_an_archive_a_thousand_times_as_large_and_its_archive_in_turn():
    digests = np.random.default_rng(4).integers(0, 2**64, 400_000, dtype=np.uint64)
    archive = sketch(digests)
    for start in range(0, 20_000, 400):
        cohort = sketch(digests[start : start + 400])
        common = len(np.intersect1d(cohort, archive))
        assert same_people(common, len(archive), len(cohort))
        assert same_people(common, len(cohort), len(archive))
    assert not same_people(0, len(archive), 400)
