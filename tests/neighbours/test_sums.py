"""Neighbouring datasets through the real stages of sums over records: they differ by no more than is charged."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts import features
from tasks.auditing.neighbours import audit_neighbours
from tasks.pipeline.sums import load_summed_records
from tasks.runtime.accounts import open_account
from tasks.runtime.release_identity import data_changes
from terrine.aggregation.gradient_rounds import JOINT, NoisyGradientDescent, RoundSchedule, flatten_moments
from terrine.aggregation.records import STEP, Records
from terrine.privacy.noise import ReplayNoise
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.runs import files, settle

FORM = FORMATS["npz with ids"]
SUMS = {
    "aggregation": {"mechanism": "gradients", "rounds": 2, "epsilon": 30},
    "student": {"kind": "sums"},
}


@pytest.mark.parametrize(
    ("form", "unit", "step", "one"),
    [
        (FORM, "record", "replaced", "r211"),
        (FORM, "record", "removed", "r211"),
        (FORM, "group", "larger", "person 02"),
        (FORMATS["table with declared columns"], "record", "replaced", "r211"),
        (FORMATS["table with declared columns"], "record", "removed", "r211"),
    ],
)
def test_one_unit_moves_sums_by_no_more_than_is_charged_and_no_other_record_at_all(
    tmp_path, monkeypatch, form, unit, step, one
):
    world = worlds.base()
    run = settle(tmp_path / "one", form, world, privacy={"unit": unit}, **SUMS)
    run_through(run, "dataset", "vote")
    changed = worlds.STEPS[unit][step].make(world, unit, one, form.positional, form.classes)
    after = settle(tmp_path / "other", form, changed, privacy={"unit": unit}, **SUMS)
    shutil.copytree(run.root / "data" / "public", after.root / "data" / "public")
    run_through(after, "dataset", "partition")
    before, other = load_summed_records(run), load_summed_records(after)

    def voices(records):
        return {(vector.tobytes(), int(label)) for vector, label in zip(records.vectors, records.labels, strict=True)}

    touched = len(worlds.members(world, unit, one)) + len(worlds.members(changed, unit, one))
    assert 0 < len(voices(before) ^ voices(other)) <= touched
    check_what_is_released(before, other, run.params.aggregation, monkeypatch)


def check_what_is_released(before, other, mechanism, monkeypatch):
    """With the same noise, and asked the same, neighbours' releases differ by their exact sums, to the bit."""
    schedule, queried, released = mechanism.schedule(0.5), [], []

    class SameQuestions(NoisyGradientDescent):
        def receive(self, numbers):
            if not released:
                queried.append(numbers)
            super().receive(queried[self.taken])
            self.taken += 1

        taken = 0

    monkeypatch.setattr(
        RoundSchedule, "descent", lambda self, length: SameQuestions(length, self.sigma, self.learning_rate)
    )
    summing = [schedule.summing(records) for records in (before, other)]
    released.append(mechanism.release(before, 0.5, ReplayNoise(3)))
    released.append(mechanism.release(other, 0.5, ReplayNoise(3)))
    descent = NoisyGradientDescent(before.length, schedule.sigma, schedule.learning_rate)
    rounds = [flatten_moments(arrays["second"], arrays["labels"]) for arrays in released]
    pairs = [rounds, *zip(*(arrays["gradients"] for arrays in released), strict=True)]
    for number, (first, second) in enumerate(pairs):
        sums = [sums(descent.broadcast) for sums in summing]
        moved = (sums[0] - sums[1]) * STEP
        assert np.array_equal(first.ravel() - second.ravel(), moved)
        noise = np.concatenate([np.full(n, s) for n, s in schedule.noise(before.length, before.classes, number)])
        charged = JOINT if number == 0 else (2 * schedule.clip) ** 2
        assert 0 < np.square(moved / noise).sum() <= charged / noise[0 if number else -1] ** 2
        descent.receive(queried[number])


def test_sums_made_again_on_a_neighbour_are_the_stored_ones_and_only_their_keeper_is_told(tmp_path):
    world = worlds.base()
    run = settle(tmp_path, FORM, world, **SUMS)
    run_through(run, "dataset", "student")
    released, (ledger, account) = files(run.folders.release), open_account(run)
    charged = ledger.events(account)
    changed = worlds.STEPS["record"]["replaced"].make(world, "record", "r211", FORM.positional, FORM.classes)
    FORM.write(tmp_path, changed)
    run_through(run, "dataset", "student")
    assert files(run.folders.release) == released
    assert ledger.events(account) == charged
    assert any("data.edition=2" in told for told in data_changes(run))


@pytest.mark.parametrize(
    ("form", "unit"), [(FORM, "record"), (FORM, "group"), (FORMATS["table with declared columns"], "record")]
)
def test_an_audit_of_sums_finds_no_unit_of_the_data_that_moves_them_by_more_than_is_charged(tmp_path, form, unit):
    run = settle(tmp_path, form, worlds.base(), privacy={"unit": unit}, **SUMS)
    run_through(run, "dataset", "pretrain")
    before = files(run.root)
    result = audit_neighbours(run, refused, 2)
    assert not result["caught"]
    assert 0.01 < result["most"] == max(entry["share"] for entry in result["steps"]) <= 1
    assert result["rounds"] == 3
    assert all(0 < share <= 1 for entry in result["steps"] for share in entry["rounds"])
    assert files(run.root) == before


def test_an_audit_of_sums_finds_records_whose_features_depend_on_the_others(tmp_path, monkeypatch):
    plain = features.features_one_by_one

    def of_the_batch(backbone, images, then, rows):
        """As under current statistics: normalised by all images of the data."""
        raw = np.concatenate(list(plain(backbone, images, lambda raw: raw)))
        yield then((50 * (raw - raw.mean(axis=0)) / np.ptp(raw, axis=0).clip(1e-6))[rows])

    run = settle(tmp_path, FORM, worlds.base(), **SUMS)
    run_through(run, "dataset", "pretrain")
    monkeypatch.setattr(features, "features_one_by_one", of_the_batch)
    assert audit_neighbours(run, refused, 2)["caught"]


@pytest.mark.parametrize("defect", ["gradients of any length", "one record counted twice"])
def test_an_audit_of_sums_finds_a_round_in_which_a_unit_moves_them_by_more_than_its_own_price(
    tmp_path, monkeypatch, defect
):
    run = settle(tmp_path, FORM, worlds.base(), **SUMS)
    run_through(run, "dataset", "pretrain")
    if defect == "one record counted twice":
        plain = Records.of.__func__

        def twice(cls, *given):
            own = plain(cls, *given)
            return replace(own, weights=2 * own.weights)

        monkeypatch.setattr(Records, "of", classmethod(twice))
    else:
        clipped = Records._errors
        monkeypatch.setattr(Records, "_errors", lambda self, weights, clip: clipped(self, weights, 1e9))
    result = audit_neighbours(run, refused, 2)
    assert result["caught"]
    shares = np.max([entry["rounds"] for entry in result["steps"]], axis=0)
    assert (shares > 1).tolist() == ([True] * 3 if defect == "one record counted twice" else [False, True, True])


def refused(run):
    raise AssertionError("nobody is taught, and nobody votes")
