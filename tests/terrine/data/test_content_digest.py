"""Content digests do not depend on labels, places, sizes and formats."""

import shutil

import numpy as np
import pytest
from PIL import Image

from terrine.data.content_digest import digest_of_image, digests_of_cells, digests_of_images
from terrine.data.sources.digits import Digits
from terrine.data.sources.folder import Folder
from terrine.data.sources.npz import Npz
from terrine.data.sources.table import Table

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 12, 12), dtype=np.uint8)
LABELS = np.arange(60) % 3


def natives(source) -> set[int]:
    people = source.load().people()
    return set(people.contents[:, 0].tolist()) - {0}


def npz(path, images=IMAGES, labels=LABELS, **arrays):
    np.savez(path, images=images, labels=labels, **arrays)
    return path


def test_an_image_is_recognised_in_every_type_and_channel_layout():
    image = IMAGES[0]
    digest = digest_of_image(image)
    assert digest == digest_of_image(np.stack([image] * 3, axis=2))
    assert digest == digest_of_image(image.astype(np.int64)) == digest_of_image(image.astype(np.float32))
    assert digest == digests_of_images(image[None, None])[0] == digests_of_images(np.stack([image] * 3)[None])[0]
    others = [image.T, image[::-1], image[:-1], image.reshape(6, 24), np.stack([image, image, image[::-1]], axis=2)]
    assert len({digest, *map(digest_of_image, others)}) == 6
    deep = image.astype(np.int32) * 257
    assert digest_of_image(deep) == digest_of_image(deep.astype(np.uint16)) != digest


def test_images_of_a_single_value_have_no_digest():
    assert [digest_of_image(np.full((8, 8), value, np.uint8)) for value in (0, 7, 255)] == [0, 0, 0]
    assert digest_of_image(np.zeros((0, 8), np.uint8)) == 0
    assert digests_of_images(np.zeros((5000, 3, 2, 2), np.uint8)).any() == np.False_


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
        ({"images": np.repeat(IMAGES[..., None], 3, axis=3)}, {"size": 10}),
        ({"images": IMAGES / 255.0}, {"size": 10}),
    ],
)
def test_arrays_are_recognised_under_other_settings(arrays, settings, tmp_path):
    one = natives(Npz(path=npz(tmp_path / "one.npz"), size=12))
    assert len(one) == 60
    assert natives(Npz(path=npz(tmp_path / "elsewhere.npz", **arrays), **settings)) == one


def test_copies_at_the_size_of_an_earlier_run_are_recognised(tmp_path):
    """A run's 9-pixel images as a new dataset show the same people."""
    first = Npz(path=npz(tmp_path / "one.npz"), size=9).load()
    small = np.concatenate([first.train_images, first.test_images])[:, 0]
    second = Npz(path=npz(tmp_path / "small.npz", small), size=28).load()
    assert set(second.people().contents[:, 0].tolist()) == set(first.people().contents[:, 1].tolist())


@pytest.fixture
def folder(tmp_path):
    for number, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        path = tmp_path / "one" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "one"


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif", "webp", "ppm"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_files_are_recognised_in_another_format_mode_size_class_and_under_other_names(suffix, mode, folder, tmp_path):
    one = natives(Folder(path=folder, size=12))
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        path = tmp_path / "copies" / str(number % 2) / f"{number:03d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == "png" and mode == "L":
            shutil.copy(file, path)
        elif suffix == "gif":
            Image.open(file).save(path)
        else:
            Image.open(file).convert(mode).save(path, **({"lossless": True} if suffix == "webp" else {}))
    assert natives(Folder(path=tmp_path / "copies", size=31, channels=3)) == one
    assert natives(Npz(path=npz(tmp_path / "same.npz"), size=16)) == one


def test_colour_files_and_a_photograph_that_is_larger_than_the_run_are_recognised(tmp_path):
    """A JPEG decoder must not skip detail: the digest would depend on the run's size."""
    large = RNG.integers(0, 256, (16, 200, 160, 3), dtype=np.uint8)
    for kind in ("jpg", "bmp"):
        for number, image in enumerate(large):
            path = tmp_path / kind / str(number % 2) / f"{number}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "jpg":
                Image.fromarray(image).save(path, quality=95)
            else:
                Image.open(tmp_path / "jpg" / str(number % 2) / f"{number}.jpg").save(path)
    found = [
        natives(Folder(path=tmp_path / kind, size=size, channels=3, test_fraction=0.5))
        for kind, size in (("jpg", 16), ("jpg", 32), ("bmp", 24))
    ]
    assert len(found[0]) == 16
    assert found[0] == found[1] == found[2]


def test_cells_are_equal_as_numbers_and_rows_in_any_order_of_columns():
    one = digests_of_cells([["1.50", "x"], ["2", "3e1"]], ordered=True)
    assert (one == digests_of_cells([["1.5", "x"], ["2.0", "30"]], ordered=True)).all()
    assert (one != digests_of_cells([["2", "3e1"], ["1.50", "x"]], ordered=True)).all()
    swapped = digests_of_cells([["2", "3e1"], ["1.50", "x"]], ordered=False)
    assert (swapped == digests_of_cells([["1.50", "x"], ["2", "3e1"]], ordered=False)).all()
    assert (digests_of_cells([["nan", "inf"]], ordered=True) != digests_of_cells([["inf", "nan"]], ordered=True)).all()


def test_rows_are_recognised_whatever_their_columns_are_taken_for(tmp_path):
    rows = [f"{n},{n % 7},{RNG.random():.9f},{'ab'[n % 2]}" for n in range(200)]
    path = tmp_path / "one.csv"
    path.write_text("\n".join(["name,ward,pressure,ill", *rows]))
    one = Table(path=path, target="ill", public_fraction=0.2).load().people()
    other = Table(path=path, target="ward", id="name", public_fraction=0.4).load().people()
    assert set(one.contents[:, 1].tolist()) == set(other.contents[:, 1].tolist())
    assert one.columns == ("name", "pressure", "ward")
    assert other.columns == ("ill", "pressure")
    assert set(other.on(one.columns).tolist()) == set(one.contents[:, 0].tolist())
    assert other.on(("lost", "ward")) is None
    path.write_text("\n".join(["name,ward,pressure,ill", *(row.replace(",0.", ",1.") for row in rows)]))
    changed = Table(path=path, target="ill", public_fraction=0.2).load().people()
    assert not np.isin(one.contents, changed.contents).any()


def test_public_data_have_none_unless_they_are_treated_as_private():
    assert Digits(size=8).load().people() is None
    assert len(Digits(size=8, public_benchmark=False).load().people().sketch()) > 1_700
