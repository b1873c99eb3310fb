"""Private records: features that never mix teachers, and deformed copies."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import terrine as tr
from tasks.config.params import validate
from terrine.determinism.randomness import torch_generator
from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.models.backbone import features_in_batches
from terrine.models.deformations import Deformations, deform
from terrine.teachers.averaging.averaged import centre_records
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.ttac import Average, local_round
from terrine.teachers.base import TEACHERS, TeacherContext
from terrine.teachers.linear import train_heads
from terrine.teachers.records import AugmentedCopies, PrivateFeatures, Records, private_features, record_batches
from tests.terrine.teachers.averaging.helpers import averaged
from tests.terrine.teachers.conftest import striped_images

BACKBONE = build_backbone("small_cnn", channels=1, size=8, seed=0)


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("most", [2, 3, 5, 1000])
def test_a_batch_of_private_records_never_mixes_teachers(most, shuffle):
    assignment = np.random.default_rng(0).integers(0, 7, 100)
    batches = record_batches(assignment, most, shuffle=shuffle)
    assert sorted(np.concatenate(batches)) == list(range(100))
    for batch in batches:
        assert len(set(assignment[batch])) == 1
        assert 2 <= len(batch) <= max(most, 3)


def test_parts_are_cut_into_near_equal_batches_so_that_none_is_left_with_one_record():
    assignment = np.repeat([0, 1, 5], [501, 7, 3])
    assert sorted(len(batch) for batch in record_batches(assignment, 500)) == [3, 7, 250, 251]
    assert [len(batch) for batch in record_batches(np.zeros(3, int), 2)] == [3]
    with pytest.raises(InputError, match="most is 1"):
        record_batches(assignment, 1)


def test_parts_without_enough_records_are_left_out_and_have_features_of_zeros(records):
    assignment = np.where(np.arange(90) == 4, 1, np.where(np.arange(90) < 50, 0, 3))
    assert {len(batch) for batch in record_batches(assignment, 100, least=2)} == {49, 40}
    for statistics in ("current", "halfway"):
        features = private_features(BACKBONE, records.inputs, assignment, statistics, most=100)
        assert features.min_records == 2
        assert np.flatnonzero(~features.rows.any(axis=1)).tolist() == [4]
    original = private_features(BACKBONE, records.inputs, assignment, "original", most=100)
    assert original.min_records == 1
    assert original.rows.any(axis=1).all()


def test_shuffled_batches_follow_from_the_seed_and_the_teachers_own_records_alone():
    assignment = np.random.default_rng(1).integers(0, 5, 200)
    one = [set(batch) for batch in record_batches(assignment, 10, shuffle=3)]
    assert one != [set(batch) for batch in record_batches(assignment, 10)]
    assert one != [set(batch) for batch in record_batches(assignment, 10, shuffle=4)]
    more = np.append(assignment, 2)
    others = [set(batch) for batch in record_batches(more, 10, shuffle=3) if assignment[batch[0]] != 2]
    assert others == [batch for batch in one if assignment[min(batch)] != 2]


def test_features_are_refused_under_another_partition(records):
    features = private_features(BACKBONE, records.inputs, records.assignment, "current", most=100)
    moved = records.assignment.copy()
    moved[3] = (moved[3] + 1) % 5
    for assignment in (moved, np.zeros(90, int), records.assignment[::-1]):
        with pytest.raises(InputError, match="computed for another partition"):
            train_heads(features, records.labels, assignment, [0], 3, seed=0)
        with pytest.raises(InputError, match="computed for another partition"):
            Records(features, records.labels, assignment, 3)
    whole = private_features(BACKBONE, records.inputs, np.zeros(90, int), "current", most=1000)
    with pytest.raises(InputError, match="computed for another partition"):
        Records(whole, records.labels, records.assignment, 3)


def test_features_of_its_own_partition_train_the_heads_that_their_rows_do(records):
    features = private_features(BACKBONE, records.inputs, records.assignment, "current", most=100)
    same = records.assignment.astype(np.int32)  # the same content
    heads = train_heads(features, records.labels, same, range(5), 3, seed=0)
    rows = train_heads(features.rows, records.labels, records.assignment, range(5), 3, seed=0)
    assert np.array_equal(heads.weight, rows.weight)
    again = PrivateFeatures(features.rows, features.partition, features.min_records)
    assert again.partition == features.partition
    assert again.min_records == 2


@pytest.mark.parametrize("name", ["linear", "estimator"])
def test_kinds_for_a_backbones_features_refuse_all_that_were_not_computed_teacher_by_teacher(records, name):
    plain = TeacherContext(3, 1, 8, lambda: BACKBONE)
    strict, loose = (TEACHERS.of(name)().build(each) for each in (replace(plain, by_teacher=True), plain))
    mixed = features_in_batches(BACKBONE, records.inputs, [np.arange(90)], "current")
    for inputs in (mixed, PrivateFeatures.of_rows(mixed)):
        data = Records(inputs, records.labels, records.assignment, 3)
        with pytest.raises(InputError, match="not computed teacher by teacher"):
            list(strict.train(data, range(5), seed=0))
        assert len(list(loose.train(data, range(5), seed=0))) == 5
    own = private_features(BACKBONE, records.inputs, records.assignment, "current", most=100)
    data = Records(own, records.labels, records.assignment, 3)
    assert len(list(strict.train(data, range(5), seed=0))) == 5


def test_rounds_of_averaged_teachers_refuse_them_too_also_when_centred(records):
    learner = LinearLearner(BACKBONE.feature_dim, 3, by_teacher=True)
    start, own, settings = Average.start(learner), np.zeros((5, learner.length)), averaged()
    mixed = features_in_batches(BACKBONE, records.inputs, [np.arange(90)], "current")
    separate = private_features(BACKBONE, records.inputs, records.assignment, "current", most=100)
    for centre in (False, True):
        for inputs, refused in ((mixed, True), (PrivateFeatures.of_rows(mixed), True), (separate, False)):
            data = Records(inputs, records.labels, records.assignment, 3)
            if centre:
                data = centre_records(data, [1, 2], mixed.mean(axis=0))
            if refused:
                with pytest.raises(InputError, match="not computed teacher by teacher"):
                    local_round(learner, start, own[:2], data, [1, 2], settings, 0, seed=0)
            else:
                assert local_round(learner, start, own[:2], data, [1, 2], settings, 0, seed=0).update.any()


def test_an_assignment_that_does_not_fit_the_images_is_refused(records):
    with pytest.raises(InputError, match="do not fit together"):
        private_features(BACKBONE, records.inputs, records.assignment[:-1], "current", most=100)


def test_a_mixed_batch_is_what_would_couple_teachers(records):
    """Why all of this: the same records in one batch, and one of them moves the features of all."""
    images = records.inputs.copy()
    images[17] = 255 - images[17]
    mixed = [features_in_batches(BACKBONE, own, [np.arange(90)], "current") for own in (records.inputs, images)]
    assert (mixed[0] != mixed[1]).any(axis=1).all()
    separate = [
        private_features(BACKBONE, own, records.assignment, "current", most=100).rows
        for own in (records.inputs, images)
    ]
    touched = np.flatnonzero((separate[0] != separate[1]).any(axis=1))
    assert set(records.assignment[touched]) == {records.assignment[17]}


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
    queried = tr.Queries(data.test_images, np.array_split(np.arange(len(data.test_images)), 2))
    right = {}
    for copies in (0, 3):
        votes = tr.LinearTeachers(copies=copies).fit(data, parts, backbone).vote(queried)
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
    repeated = [copied.repeat_for_copies(values) for values in (rows, labels, teacher)]
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
