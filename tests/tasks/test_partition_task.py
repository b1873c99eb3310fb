"""The partition as an artefact."""

import numpy as np
import pytest

from tasks import dataset, partition
from tasks.params import merge, validate
from tasks.run import Run
from tasks.store import read_json
from terrine.errors import SettingError

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
}


def make(root, **overrides):
    run = Run(root, "small", validate(merge(VALUES, overrides)))
    dataset.prepare_dataset.fn(run)
    return run


def test_more_teachers_than_records_are_refused_and_nothing_is_written(tmp_path):
    run = make(tmp_path, partition={"teachers": 2000})
    with pytest.raises(SettingError, match=r"2000 teachers cannot share 1438"):
        partition.deal_records.fn(run)
    assert not run.folders.partition.exists()


def test_groups_are_asked_for_where_groups_are_protected(tmp_path):
    with pytest.raises(SettingError, match=r"privacy\.unit=group, but digits has no groups"):
        partition.deal_records.fn(make(tmp_path, privacy={"unit": "group"}))


def test_all_records_of_a_group_go_to_one_teacher(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 3
    groups = np.repeat(np.arange(40), 3)
    source = tmp_path / "own.npz"
    np.savez(source, images=generator.integers(0, 256, (120, 8, 8), np.uint8), labels=labels, groups=groups)
    run = make(
        tmp_path,
        data={"name": "npz", "path": str(source), "public_benchmark": False},
        privacy={"unit": "group"},
        partition={"teachers": 5},
        ledger={"epsilon": 5, "account": "own"},
    )
    partition.deal_records.fn(run)
    assignment = partition.read_assignment(run.folders)
    stored = dataset.read_dataset(run.folders)
    for group in np.unique(stored.train_groups):
        assert len(set(assignment[stored.train_groups == group])) == 1
    assert read_json(run.folders.partition / "manifest.json")["every_group_in_exactly_one_part"] is True


def test_who_is_in_the_training_data_does_not_depend_on_the_seed(tmp_path):
    manifests = [
        read_json(
            make(tmp_path / str(seed), seed=seed, ledger={"key": str(tmp_path / "key")}).folders.dataset
            / "manifest.json"
        )
        for seed in (0, 1)
    ]
    assert manifests[0]["fingerprint"] == manifests[1]["fingerprint"]
