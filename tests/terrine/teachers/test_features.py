"""Features of private records are made teacher by teacher, and are good for that partition alone."""

from dataclasses import replace

import numpy as np
import pytest

from terrine.errors import InputError
from terrine.models.architecture import build_backbone
from terrine.models.backbone import features_in_batches
from terrine.teachers.averaging.averaged import centred_records
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.ttac import Average, local_round
from terrine.teachers.base import TEACHERS, TeacherContext
from terrine.teachers.linear import train_heads
from terrine.teachers.records import PrivateFeatures, Records, private_features, record_batches
from tests.terrine.teachers.averaging.helpers import averaged

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
        assert features.least == 2
        assert np.flatnonzero(~features.rows.any(axis=1)).tolist() == [4]
    original = private_features(BACKBONE, records.inputs, assignment, "original", most=100)
    assert original.least == 1
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
    again = PrivateFeatures(features.rows, **features.about())
    assert again.partition == features.partition
    assert again.least == 2


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
                data = centred_records(data, [1, 2], mixed.mean(axis=0))
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
