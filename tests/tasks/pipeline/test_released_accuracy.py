"""The noised accuracy of a run: released once, charged once, by the unit that is protected, or refused for nothing."""

import numpy as np
import pytest

from tasks.artefacts.records import read_dataset, write_dataset
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.pipeline.figures.released_accuracy import check_use_of_accuracy, held_out_units, release_accuracy
from tasks.reports import accuracy as shown
from tasks.runtime.accounts import open_account
from tasks.runtime.release_identity import data_changes
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from terrine.data.dataset import Dataset
from terrine.data.units import name_codes
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noised_accuracy import NoisedAccuracy

VALUES = {
    "data": {"name": "npz", "path": "people.npz", "public_benchmark": False},
    "aggregation": {"mechanism": "histogram", "sigma": 20},
    "ledger": {"account": "people", "epsilon": 2},
    "evaluation": {"epsilon": 0.5},
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a run whose student is right about the first 60 % of its test records."""

    def make(changes=None, *, records=500, right=0.6, groups=None, held_out=None):
        run = Run(tmp_path, "run", validate(merge(VALUES, changes or {})))
        labels = np.arange(records) % 2
        images = np.zeros((records, 1, 8, 8), dtype=np.uint8)
        dataset = Dataset("people", images, labels, groups, images, labels, ("a", "b"), **(held_out or {}))
        write_dataset(run.folders, dataset, dataset.describe() | {"class_names": ["a", "b"], "declared": True})
        write_json(run.folders.student / "manifest.json", {"student": run.params.student.kind})
        monkeypatch.setattr(
            "tasks.pipeline.figures.released_accuracy.right_answers",
            lambda run, dataset: np.arange(len(dataset.test_labels)) < right * records,
        )
        return run

    return make


def release(run):
    release_accuracy(run, read_dataset(run.folders))
    return read_json(run.folders.accuracy)


def charged(run):
    ledger, account = open_account(run)
    return ledger.events(account)


def test_it_is_drawn_and_charged_once_and_says_how_far_it_may_be_off(make):
    run = make()
    first = release(run)
    assert charged(run) == [NoisedAccuracy.for_budget(0.5, 1e-5).event]
    assert abs(first["accuracy"] - 0.6) <= 2 * first["plus_minus"] < 0.1
    assert (first["epsilon"], first["epsilon_dataset"], first["unit"]) == (0.5, 0.5, "record")
    assert shown.shown_accuracy(first["accuracy"], first["plus_minus"]) in first["summary"]
    assert release(run) == first
    assert len(charged(run)) == 1
    # Other data under the same edition: what was released comes back, and only the operator is told.
    assert release(make(right=0.1)) == first
    assert len(charged(run)) == 1
    assert "accuracy" in data_changes(run)[0]
    # A new student is a new release, charged separately.
    other = make({"student": {"l2": 7.0}})
    assert release(other)["release_id"] != first["release_id"]
    assert len(charged(run)) == 2


def test_subgroups_that_were_declared_are_released_in_the_same_draw_by_unit(make, tmp_path):
    units = name_codes(str(number // 2) for number in range(2000))  # a thousand people with two records each
    # The first 60 % of records are right. Young people are the first half; every tenth is of no declared age.
    ages = {str(number): "none" if number % 10 == 9 else "young" if number < 500 else "old" for number in range(1000)}
    lines = [f"{name},{age},{'a' if int(name) % 2 else 'b'}" for name, age in ages.items()]
    (tmp_path / "who.csv").write_text("\n".join(["group,age,site", *lines]))
    wanted = {"released_subgroups": {"age": ["old", "young"], "site": ["a", "b"]}, "subgroups": "who.csv"}
    changes = {"evaluation": wanted, "privacy": {"unit": "group"}}
    run = make(changes, records=2000, groups=units, held_out={"test_groups": units})
    check_use_of_accuracy(run)
    found = release(run)
    assert charged(run) == [NoisedAccuracy.for_budget(0.5, 1e-5, [2, 2]).event]
    assert price(charged(run)[0], 1e-5) == pytest.approx(0.5, rel=1e-6)
    truth = {("age", "old"): 0.2, ("age", "young"): 1.0, ("site", "a"): 0.6, ("site", "b"): 0.6}
    for column, entries in found["subgroups"].items():
        for entry in entries:
            assert abs(entry["accuracy"] - truth[column, entry["subgroup"]]) <= 2 * entry["plus_minus"] < 0.4
    assert found["subgroups"]["age"][0]["units"] == pytest.approx(450, abs=100)
    assert release(run) == found
    assert len(charged(run)) == 1
    with pytest.raises(
        InputError, match=r"names scanner, but evaluation\.subgroups has only age, site\. Nothing was charged"
    ):
        check_use_of_accuracy(
            make(
                {**changes, "evaluation": wanted | {"released_subgroups": {"scanner": ["x"]}}},
                records=2000,
                groups=units,
                held_out={"test_groups": units},
            )
        )
    for given, sentence in (
        ({"epsilon": None}, "needs evaluation.epsilon"),
        ({"subgroups": None}, "needs evaluation.epsilon"),
        ({"released_subgroups": {"age": ["a", "a"]}}, "each named once"),
    ):
        with pytest.raises(SettingError, match=sentence):
            make({"evaluation": wanted | given})


def test_without_a_price_nothing_is_released_and_no_ledger_is_opened(make):
    run = make({"evaluation": {"epsilon": None}})
    assert release(run)["accuracy"] is None
    assert shown.released_accuracy(run.folders) is None
    check_use_of_accuracy(run)
    assert not (run.root / "data" / "private" / "ledger" / "ledger.db").exists()


def test_noise_that_would_make_it_useless_is_refused_for_nothing_with_a_price_that_is_enough(make):
    run = make(records=100)
    with pytest.raises(
        SettingError, match=r"±16 percentage points, because only 100 records.*Set evaluation\.epsilon=1 "
    ):
        check_use_of_accuracy(run)
    with pytest.raises(SettingError, match="Nothing was charged"):
        release(run)
    assert charged(run) == []
    enough = {"evaluation": {"epsilon": 1}}
    assert release(make(enough, records=100))["accuracy"] is not None


def test_a_group_counts_once_however_many_records_of_it_are_held_out(make):
    """One group with most of the records, all wrong, and 399 with one each, all right."""
    groups = np.r_[np.arange(399), np.full(1000, 399)]
    run = make(
        {"privacy": {"unit": "group"}},
        records=1399,
        right=399 / 1399,
        groups=np.arange(1399),
        held_out={"test_groups": groups},
    )
    found = release(run)
    assert abs(found["accuracy"] - 399 / 400) <= 2 * found["plus_minus"]
    assert found["units"] == pytest.approx(400, abs=60)
    assert "held-out groups" in found["summary"]


def test_records_of_one_name_are_one_unit_with_and_without_groups_and_groups_that_nobody_names_are_refused(make):
    units = np.array([5, 5, 9, 9])
    for groups in (None, np.array([2, 2, 2, 2])):
        by_name = make(records=4, groups=groups, held_out={"test_names": units, "test_groups": groups})
        np.testing.assert_array_equal(held_out_units(by_name, read_dataset(by_name.folders)), units)
    by_place = make(records=4, groups=np.arange(4))
    np.testing.assert_array_equal(held_out_units(by_place, read_dataset(by_place.folders)), np.arange(4))
    unnamed = make({"privacy": {"unit": "group"}}, records=4, groups=np.arange(4))
    with pytest.raises(SettingError, match="these split data have none"):
        held_out_units(unnamed, read_dataset(unnamed.folders))


def test_replayed_noise_is_marked_and_a_transcription_releases_no_accuracy(make):
    public = {"aggregation": {"mechanism": "histogram", "sigma": 20, "noise": "replay"}, "evaluation": {"epsilon": 0.5}}
    replayed = Run(make().root, "run", validate(public))
    found = release(replayed)
    assert found["epsilon"] is None
    assert "NOT PRIVATE" in found["summary"]
    with pytest.raises(SettingError, match="which releases no accuracy"):
        validate(merge(VALUES, {"transcription": {"annotation": {"sigma": 10}}}))
