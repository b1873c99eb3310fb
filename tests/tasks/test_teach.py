"""Teachers as tasks: parts never mix, grouping changes nothing, what is finished is kept."""

import numpy as np
import pytest

from tasks import dataset, partition, pretrain, synthesize, teach, vote
from tasks.params import validate
from tasks.run import Run
from tasks.store import folder_digest, read_json

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 11},
    "queries": {"count": 24, "batch": 12, "sources": {"gaussian": 1}},
    "backbone": {"projection": 30},
    "teachers": {"per_task": 4},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
}


def prepared(root, **teachers):
    run = Run(root, "small", validate(VALUES | {"teachers": VALUES["teachers"] | teachers}))
    dataset.prepare_dataset.fn(run)
    partition.deal_records.fn(run)
    draws = synthesize.plan(run)
    for draw in draws:
        synthesize.draw_shard.fn(run, draw)
    synthesize.assemble_images.fn(run, draws)
    pretrain.pretrain_backbone.fn(run)
    return run


def taught(run):
    teach.extract_features.fn(run)
    for group in teach.groups(run):
        teach.train_group.fn(run, group)
    teach.collect_teachers.fn(run)
    vote.collect_votes.fn(run)
    return folder_digest(run.folders.teachers), vote.read_votes(run.folders)


@pytest.mark.parametrize("most", [2, 5, 1000])
def test_a_batch_of_private_records_never_mixes_teachers(most):
    assignment = np.random.default_rng(0).integers(0, 7, 100)
    batches = teach.record_batches(assignment, 7, most)
    assert sorted(np.concatenate(batches)) == list(range(100))
    for batch in batches:
        assert len(set(assignment[batch])) == 1
        assert len(batch) <= most


def test_parts_are_cut_into_near_equal_batches_so_that_none_is_left_with_one_record():
    assignment = np.repeat([0, 1], [501, 7])
    assert sorted(len(batch) for batch in teach.record_batches(assignment, 2, 500)) == [7, 250, 251]


def test_the_votes_do_not_depend_on_how_teachers_are_grouped(tmp_path):
    results = [taught(prepared(tmp_path / str(size), per_task=size)) for size in (1, 4, 50)]
    for digest, votes in results[1:]:
        assert digest == results[0][0]
        np.testing.assert_array_equal(votes, results[0][1])
    assert results[0][1].shape == (24, 11)


def test_one_record_touches_one_teacher(tmp_path):
    """The disjointness the guarantee rests on, seen in the weights: exchange a record, and one head changes."""
    run = prepared(tmp_path)
    taught(run)
    before = teach.read_heads(run.folders)
    images = np.load(run.folders.dataset / "train_images.npy")
    record = 17
    images[record] = 255 - images[record]
    np.save(run.folders.dataset / "train_images.npy", images)
    taught(run)
    after = teach.read_heads(run.folders)
    changed = np.flatnonzero((before.weight != after.weight).any(axis=(1, 2)))
    assert changed.tolist() == [partition.read_assignment(run.folders)[record]]


def test_a_finished_group_is_not_trained_again(tmp_path, monkeypatch):
    run = prepared(tmp_path)
    teach.extract_features.fn(run)
    first = teach.groups(run)[0]
    teach.train_group.fn(run, first)
    monkeypatch.setattr(teach, "train_heads", lambda *_, **__: pytest.fail("trained again"))
    teach.train_group.fn(run, first)


def test_what_another_setting_left_in_the_work_folder_is_not_used(tmp_path):
    one, two = prepared(tmp_path), Run(tmp_path, "small", validate(VALUES | {"teachers": {"ridge": 1.0}}))
    assert teach.work_folder(one) != teach.work_folder(two)


def test_the_work_folder_is_cleared_when_teachers_are_collected(tmp_path):
    run = prepared(tmp_path)
    taught(run)
    assert not teach.work_folder(run).exists()
    assert read_json(run.folders.teachers / "manifest.json")["teachers"] == 11
