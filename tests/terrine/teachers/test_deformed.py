"""Deformed copies are of a teacher's own images, and follow from nothing of another teacher's."""

import numpy as np
import pytest
import torch

import terrine as tr
from tasks.config.params import validate
from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError
from terrine.models.deformations import Deformations, deform
from terrine.teachers.linear import train_heads
from terrine.teachers.records import AugmentedCopies
from tests.terrine.teachers.conftest import striped_images

ASSIGNMENT = np.array([1, 0, 1, 4, 1, 0])
IMAGES = striped_images(len(ASSIGNMENT), 0)[0]
AMOUNTS = Deformations(rotation=30, scale=0.1, shear=0.1, shift=0.2)


def whole(images, assignment, copies=2, seed=5):
    made = AugmentedCopies(images, assignment, copies, AMOUNTS, seed=seed)
    return made[np.arange(len(made))].reshape(1 + copies, *images.shape)


def test_copies_are_the_images_deformed_one_teacher_after_the_other():
    """Drawn again in a plain loop, a teacher's part at a time: record by record, its copies together."""
    found = whole(IMAGES, ASSIGNMENT)
    assert (found[0] == IMAGES).all()
    for teacher in (0, 1, 4):
        part = np.flatnonzero(teacher == ASSIGNMENT)
        twice = torch.from_numpy(np.repeat(IMAGES[part], 2, axis=0)).float() / 255
        moved = deform(twice, AMOUNTS, torch_generator(5, "deformed copies", teacher))
        expected = (moved * 255).round().clamp(0, 255).to(torch.uint8).numpy().reshape(len(part), 2, *IMAGES.shape[1:])
        assert (found[1:, part] == expected.swapaxes(0, 1)).all()
    assert (found[1] != found[0]).any(axis=(1, 2, 3)).all()
    assert (found[1] != found[2]).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize("change", ["one more", "one fewer", "exchanged"])
def test_what_becomes_of_one_part_changes_no_copy_of_another(change):
    before = whole(IMAGES, ASSIGNMENT)
    images, assignment = IMAGES.copy(), ASSIGNMENT
    if change == "one more":  # in front, so that every other record has another place
        images, assignment = np.concatenate([IMAGES[:1], images]), np.append(1, assignment)
    elif change == "one fewer":
        images, assignment = images[1:], assignment[1:]
    else:
        images[0] = 255 - images[0]
    after = whole(images, assignment)
    for teacher in (0, 4):
        assert (before[:, teacher == ASSIGNMENT] == after[:, assignment == teacher]).all()


def test_any_order_and_part_of_an_index_gives_the_same_images():
    made = AugmentedCopies(IMAGES, ASSIGNMENT, 2, AMOUNTS, seed=5)
    assert len(made) == 18
    order = np.random.default_rng(0).permutation(18)
    np.testing.assert_array_equal(made[order], made[np.arange(18)][order])


def test_a_majority_of_teachers_of_ten_records_is_better_with_copies():
    """In memory, as the stages do it: features of copies are made with those of their teacher's records."""
    data, queries = tr.load_dataset("digits", size=16), tr.draw("dead_leaves", count=200, size=16, seed=0)
    backbone = tr.Scattering(projection=40, invariance=True).fit(queries)
    parts = tr.partition(data, teachers=140, seed=0)
    asked = tr.Queries(data.test_images, np.array_split(np.arange(len(data.test_images)), 2))
    right = {}
    for copies in (0, 3):
        votes = tr.LinearTeachers(copies=copies).fit(data, parts, backbone).vote(asked)
        counted = np.stack([np.bincount(row, minlength=10) for row in votes.values])
        right[copies] = (counted.argmax(axis=1) == data.test_labels).mean()
    assert right[3] > right[0], right


@pytest.mark.parametrize("dimension", [4, 40])
def test_copies_that_are_all_alike_change_no_head(dimension):
    """So the penalty that is best without copies means the same with them."""
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(24, dimension)).astype(np.float32), random.integers(3, size=24)
    teacher = np.arange(24) % 2
    alone = train_heads(rows, labels, teacher, [0, 1], 3, tr.LinearTeachers(ridge=0.2), seed=0)
    copied = tr.LinearTeachers(ridge=0.2, copies=3)
    repeated = [copied.repeated(values) for values in (rows, labels, teacher)]
    heads = train_heads(*repeated, [0, 1], 3, copied, seed=0)
    np.testing.assert_allclose(heads.weight, alone.weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(heads.bias, alone.bias, rtol=1e-4, atol=1e-6)


def test_half_as_much_is_done_to_a_copy_as_features_may_forget():
    copied, forgotten = tr.LinearTeachers().deformations.model_dump(), Deformations().model_dump()
    assert copied == pytest.approx({name: amount / 2 for name, amount in forgotten.items()})


def test_rows_of_a_table_have_no_copies():
    rows = np.zeros((20, 3), np.float32)
    labels = np.arange(20) % 2
    data = tr.Dataset("rows", rows, labels, None, rows, labels, ("no", "yes"), column_names=("a", "b", "c"))
    parts = tr.partition(data, teachers=2, seed=0)
    with pytest.raises(SettingError, match="rows is a table, whose rows have no deformed copies"):
        tr.LinearTeachers(copies=1).fit(data, parts)


def test_a_run_on_a_table_is_refused_before_anything_is_read():
    table = {
        "data": {"name": "table", "path": "a.csv", "target": "y", "public_fraction": 0.2},
        "ledger": {"account": "a", "epsilon": 8},
    }
    table["backbone"] = {"kind": "columns"}
    with pytest.raises(SettingError, match="copies=2 are deformed images, and data"):
        validate(table | {"teachers": {"kind": "linear", "copies": 2}})
