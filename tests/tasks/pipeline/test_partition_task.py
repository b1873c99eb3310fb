"""The partition as an artefact: every kind, its labels, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.artefacts.records import read_assignment, read_dataset
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.pipeline import dataset, partition
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json
from terrine.data.units import draws, place_codes
from terrine.errors import InputError, SettingError

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
}


def make(root, **overrides):
    run = Run(root, "small", validate(merge(VALUES, overrides)))
    dataset.prepare_dataset.fn(run)
    return run


def test_labels_and_images_have_no_say_in_the_deal(tmp_path):
    run = make(tmp_path, partition={"teachers": 40})
    stored = read_dataset(run.folders)
    other = replace(stored, train_labels=stored.train_labels[::-1].copy(), train_images=stored.train_images[::-1])
    dealt = run.params.partition.assign(stored, None, run.params.seed)
    assert run.params.partition.assign(other, None, run.params.seed).tolist() == dealt.tolist()
    units = draws(stored.record_names, run.params.seed, "partition.deal")
    assert dealt.tolist() == [int(unit) % 40 for unit in units]


def test_groups_are_asked_for_where_groups_are_protected(tmp_path):
    with pytest.raises(SettingError, match=r"privacy\.unit=group, but the data have no groups"):
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
    assignment = read_assignment(run.folders)
    stored = read_dataset(run.folders)
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


@pytest.mark.parametrize(
    ("settings", "distance"),
    [
        ({"kind": "iid"}, (0, 0.15)),
        ({"kind": "dirichlet", "alpha": 0.05}, (0.5, 1)),
        ({"kind": "dirichlet", "alpha": 1000}, (0, 0.15)),
        ({"kind": "similarity", "similarity": 0}, (0.6, 1)),
        ({"kind": "similarity", "similarity": 100}, (0, 0.15)),
    ],
)
def test_the_kind_decides_how_different_the_teachers_are(tmp_path, settings, distance):
    run = make(tmp_path, partition={"teachers": 9, **settings})
    partition.deal_records.fn(run)
    manifest = read_json(run.folders.partition / "manifest.json")
    assert distance[0] <= manifest["labels"]["label_distance"]["mean"] <= distance[1]
    assert manifest["kind"] == settings["kind"]
    histograms = read_array(run.folders.partition / "label_histograms.npy")
    stored = read_dataset(run.folders)
    assignment = read_assignment(run.folders)
    for teacher in range(9):
        expected = np.bincount(stored.train_labels[assignment == teacher], minlength=10)
        assert np.array_equal(histograms[teacher], expected)
    assert run.folders.partition.is_relative_to(tmp_path / "data" / "private")


def own_arrays(root, parties, **overrides):
    """Prepare a run on 120 images of 40 persons, held by the parties given."""
    generator = np.random.default_rng(0)
    source = root / "own.npz"
    np.savez(
        source,
        images=generator.integers(0, 256, (120, 8, 8), np.uint8),
        labels=np.arange(120) % 3,
        groups=np.repeat(np.arange(40), 3),
        **({} if parties is None else {"parties": parties}),
    )
    own = {
        "data": {"name": "npz", "path": str(source), "public_benchmark": False},
        "partition": {"kind": "party", "teachers": 4},
        "ledger": {"epsilon": 5, "account": "own"},
    }
    return make(root, **merge(own, overrides))


NAMES = np.array(["north", "south", "east", "west"])


def test_every_party_is_a_teacher(tmp_path):
    held = np.repeat(NAMES[np.arange(40) % 4], 3)
    run = own_arrays(tmp_path, held, privacy={"unit": "group"})
    partition.deal_records.fn(run)
    stored = read_dataset(run.folders)
    assert stored.party_names == ("east", "north", "south", "west")
    assert np.array_equal(read_assignment(run.folders), stored.train_parties)
    manifest = read_json(run.folders.partition / "manifest.json")
    assert manifest["parties"] == ["east", "north", "south", "west"]
    assert manifest["every_group_in_exactly_one_part"] is True
    # The person at place k of the file is with party k mod 4.
    persons = {code: place for place, code in enumerate(place_codes(40).tolist())}
    for group, party in zip(stored.train_groups, stored.train_parties, strict=True):
        assert stored.party_names[party] == NAMES[persons[group] % 4]


def test_who_holds_a_record_does_not_change_whose_budget_it_draws_on(tmp_path):
    key = {"ledger": {"key": str(tmp_path / "key")}}
    prints = []
    for number, held in enumerate((np.repeat(NAMES, 30), np.tile(NAMES, 30), None)):
        (tmp_path / str(number)).mkdir()
        run = own_arrays(tmp_path / str(number), held, **key)
        prints.append(run.folders.dataset_manifest()["fingerprint"])
    assert len(set(prints)) == 1


def test_a_party_with_one_record_or_none_is_a_teacher_like_others(tmp_path):
    """The success of a run must not depend on the number of a party's records."""
    for place in range(10):
        held = np.repeat(NAMES[:3], 40)
        held[place] = "east"
        held[held == "east"] = np.where(np.flatnonzero(held == "east") == place, "alone", "east")
        (tmp_path / str(place)).mkdir()
        run = own_arrays(tmp_path / str(place), held)
        partition.deal_records.fn(run)
        manifest = read_json(run.folders.partition / "manifest.json")
        assert manifest["parties"] == ["alone", "east", "north", "south"]
        assert manifest["counts"][0] in (0, 1)
        assert manifest["teachers_without_records"] == 1 - manifest["counts"][0]


def test_a_person_with_two_parties_is_refused_where_persons_are_protected(tmp_path):
    run = own_arrays(tmp_path, np.tile(NAMES, 30), privacy={"unit": "group"})
    with pytest.raises(InputError, match=r"groups have records with several parties"):
        partition.deal_records.fn(run)
    partition.deal_records.fn(own_arrays(tmp_path, np.tile(NAMES, 30)))


@pytest.mark.parametrize("settings", [{"kind": "dirichlet", "alpha": 0.5}, {"kind": "similarity", "similarity": 10}])
def test_partitions_that_read_labels_are_refused_for_private_data(settings):
    private = {"data": {"public_benchmark": False}, "ledger": {"epsilon": 5, "account": "trial"}}
    with pytest.raises(SettingError, match=rf"partition\.kind={settings['kind']} depends on labels"):
        validate(merge(VALUES, {**private, "partition": settings}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "dirichlet"}, r"alpha is missing: kind=dirichlet needs it"),
        ({"kind": "similarity"}, r"similarity is missing: kind=similarity needs it"),
        ({"kind": "party", "alpha": 1}, r"alpha=1 has no meaning for kind=party"),
        ({"similarity": 10}, r"similarity=10 has no meaning for kind=iid"),
        ({"kind": "dirichlet", "alpha": 0}, r"partition\.alpha"),
        ({"kind": "similarity", "similarity": 101}, r"partition\.similarity"),
        ({"kind": "by_colour"}, r"partition\.kind"),
    ],
)
def test_impossible_partitions_are_refused_before_any_work(settings, message):
    with pytest.raises(SettingError, match=message):
        validate(merge(VALUES, {"partition": settings}))
