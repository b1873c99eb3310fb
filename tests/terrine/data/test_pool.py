"""A public pool shares no image with the private or the test data, and no private record decides it."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.pool import check_disjoint, take_pool
from terrine.data.source import load_dataset
from terrine.errors import InputError

NAMES = ("a", "b")


def images(first, count):
    """Images that all differ: their numbers, written into their pixels."""
    numbers = np.arange(first, first + count)
    return np.stack([np.full((1, 4, 4), number // 256) for number in numbers]).astype(np.uint8) + np.stack(
        [np.arange(16).reshape(1, 4, 4) * (number % 256) % 199 for number in numbers]
    ).astype(np.uint8)


def dataset(train=60, test=40, validation=0):
    return Dataset(
        name="small",
        train_images=images(1, train),
        train_labels=np.arange(train) % 2,
        train_groups=np.arange(train) // 2,
        test_images=images(1_000, test),
        test_labels=np.arange(test) % 2,
        class_names=NAMES,
        train_parties=np.arange(train) % 3,
        party_names=("x", "y", "z"),
        pool_images=images(2_000, validation) if validation else None,
        pool_labels=np.arange(validation) % 2 if validation else None,
    )


def parts(private, pool, test, private_in_pool=0, test_in_private=0):
    """Counts of `check_disjoint`."""
    twice = {"private in pool": private_in_pool, "test in private": test_in_private}
    return {"private": private, "pool": pool, "test": test, **twice}


def keys(stack):
    return [image.tobytes() for image in stack]


def test_a_part_of_the_test_split_becomes_the_pool_and_nothing_is_lost_or_in_two_parts():
    whole = dataset()
    found = take_pool(whole, "test", 0.7, seed=0)
    assert len(found.pool_images) + len(found.test_images) == 40
    assert 14 < len(found.pool_images) < 39
    assert sorted(keys(found.pool_images) + keys(found.test_images)) == sorted(keys(whole.test_images))
    truth = dict(zip(keys(whole.test_images), whole.test_labels.tolist(), strict=True))
    assert [truth[key] for key in keys(found.pool_images)] == found.pool_labels.tolist()
    assert [truth[key] for key in keys(found.test_images)] == found.test_labels.tolist()
    assert np.array_equal(found.train_images, whole.train_images)
    assert check_disjoint(found) == parts(60, len(found.pool_images), len(found.test_images))
    found.validate()


@pytest.mark.parametrize("units", [None, np.arange(1_000, 1_080) // 2])
def test_what_is_public_of_the_test_split_draws_by_itself(units):
    whole = replace(dataset(test=80), test_groups=units)
    fewer = replace(
        whole,
        test_images=whole.test_images[:60],
        test_labels=whole.test_labels[:60],
        test_groups=None if units is None else units[:60],
    )
    pools = [take_pool(one, "test", 0.5, seed=0) for one in (whole, fewer)]
    first = set(keys(whole.test_images[:60]))
    assert [key for key in keys(pools[0].pool_images) if key in first] == keys(pools[1].pool_images)
    if units is not None:
        number = dict(zip(keys(whole.test_images), units.tolist(), strict=True))
        assert not {number[key] for key in keys(pools[0].pool_images)} & {
            number[key] for key in keys(pools[0].test_images)
        }
        assert pools[0].test_units.tolist() == [number[key] for key in keys(pools[0].test_images)]


@pytest.mark.parametrize("form", ["npz", "npz with groups", "folder"])
def test_without_a_split_of_its_own_no_label_decides_what_is_public(tmp_path, form):
    everything, labels = images(1, 80), np.arange(80) % 2
    for record in (0, 13, 79):
        exchanged = labels.copy()
        exchanged[record] = 1 - exchanged[record]
        found = []
        for number, own in enumerate((labels, exchanged)):
            if form == "folder":
                path = tmp_path / f"{record}-{number}"
                for index, label in enumerate(own):
                    (path / NAMES[label]).mkdir(parents=True, exist_ok=True)
                    Image.fromarray(everything[index, 0]).save(path / NAMES[label] / f"{index:03d}.png")
            else:
                path = tmp_path / f"{record}-{number}.npz"
                groups = {"groups": np.arange(80) // 2} if form == "npz with groups" else {}
                np.savez(path, images=everything, labels=own, **groups)
            name = form.split()[0]
            found.append(load_dataset(name, path=path, size=8, pool="test", pool_fraction=0.5))
        pools = [sorted(keys(each.pool_images)) for each in found]
        assert pools[0] == pools[1]
        assert sorted(keys(found[0].train_images)) == sorted(keys(found[1].train_images))


def test_the_validation_split_becomes_the_pool():
    found = take_pool(dataset(validation=9), "validation", seed=0)
    assert keys(found.pool_images) == keys(images(2_000, 9))
    assert check_disjoint(found) == parts(60, 9, 40)


def test_a_test_image_with_the_pixels_of_a_pool_image_is_left_out_and_a_private_one_stays_and_is_counted():
    whole = dataset(validation=9)
    train, test = whole.train_images.copy(), whole.test_images.copy()
    train[[3, 17]], test[5], test[7] = whole.pool_images[[0, 4]], whole.pool_images[8], whole.train_images[9]
    found = take_pool(replace(whole, train_images=train, test_images=test), "validation", seed=0)
    assert keys(found.train_images) == keys(train)
    for name in ("train_labels", "train_groups", "train_parties"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert keys(found.test_images) == keys(np.delete(test, 5, axis=0))
    assert keys(found.pool_images) == keys(whole.pool_images)
    assert check_disjoint(found) == parts(60, 9, 39, private_in_pool=2, test_in_private=1)


def test_a_private_record_has_no_say_in_the_pool():
    whole = dataset()
    other = whole.train_images.copy()
    other[0] = whole.test_images[0]
    pools = [take_pool(one, "test", 0.5, seed=0) for one in (whole, replace(whole, train_images=other))]
    assert keys(pools[0].pool_images) == keys(pools[1].pool_images)
    assert keys(pools[0].test_images) == keys(pools[1].test_images)


def test_a_private_record_that_becomes_a_public_image_moves_no_other_record():
    whole = dataset(validation=9)
    dealt = []
    for changed in (False, True):
        train = whole.train_images.copy()
        if changed:
            train[5] = whole.pool_images[3]
        found = take_pool(replace(whole, train_images=train), "validation", seed=0)
        teacher = iid(found.records, 10, seed=0)
        dealt.append(dict(zip(keys(found.train_images), teacher.tolist(), strict=True)))
    before, after = dealt
    assert set(before) - set(after) == {keys(whole.train_images)[5]}
    assert all(after[key] == teacher for key, teacher in before.items() if key in after)


def test_images_in_two_parts_are_found():
    found = take_pool(dataset(), "test", 0.7, seed=0)
    broken = replace(found, test_images=np.concatenate([found.test_images[:-1], found.pool_images[2:3]]))
    with pytest.raises(InputError, match="1 test images are in the public pool"):
        check_disjoint(broken)


def test_impossible_pools_are_refused():
    with pytest.raises(InputError, match=r"no validation split .* data\.pool=test"):
        take_pool(dataset(), "validation", seed=0)
    with pytest.raises(InputError, match="leaves 0 test images"):
        take_pool(dataset(test=1), "test", 0.999, seed=0)


def test_the_registry_takes_a_pool_from_files(tmp_path):
    whole = dataset(validation=9)
    path = tmp_path / "cells.npz"
    np.savez(
        path,
        train_images=whole.train_images, train_labels=whole.train_labels, val_images=whole.pool_images,
        val_labels=whole.pool_labels, test_images=whole.test_images, test_labels=whole.test_labels,
    )  # fmt: skip
    joined = load_dataset("npz", path=path)
    assert joined.records == 69
    assert joined.pool_images is None
    apart = load_dataset("npz", path=path, size=8, channels=3, pool="validation")
    assert apart.records == 60
    assert apart.pool_images.shape == (9, 3, 8, 8)
    both = load_dataset("npz", path=path, pool="test", pool_fraction=0.25)
    assert (both.records, len(both.pool_images) + len(both.test_images)) == (69, 40)
    assert 2 < len(both.pool_images) < 22
