"""Neighbouring datasets through the real stages to sums over records: they differ by no more than is charged."""

import shutil

import numpy as np
import pytest

from flows.stages import run_through
from tasks.pipeline import features
from tasks.pipeline.sums import records_of
from tasks.runtime.accounts import open_account
from tasks.runtime.identity import changes_told
from tasks.tools.neighbours import audit_neighbours
from terrine.aggregation.course import JOINT
from terrine.aggregation.records import STEP
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.runs import files, settle

FORM = FORMATS["npz with ids"]
SUMS = {
    "aggregation": {"mechanism": "gradients", "rounds": 2, "epsilon": 30},
    "student": {"kind": "sums"},
}


@pytest.mark.parametrize(
    ("unit", "step", "one"),
    [("record", "replaced", "r211"), ("record", "removed", "r211"), ("group", "larger", "person 02")],
)
def test_one_unit_moves_sums_by_no_more_than_is_charged_and_no_other_record_at_all(tmp_path, unit, step, one):
    world = worlds.base()
    run = settle(tmp_path / "one", FORM, world, privacy={"unit": unit}, **SUMS)
    run_through(run, "dataset", "vote")
    changed = worlds.STEPS[unit][step].make(world, unit, one, FORM.positional, FORM.classes)
    after = settle(tmp_path / "other", FORM, changed, privacy={"unit": unit}, **SUMS)
    shutil.copytree(run.root / "data" / "public", after.root / "data" / "public")
    run_through(after, "dataset", "partition")
    before, other = records_of(run), records_of(after)

    def voices(records):
        return {(vector.tobytes(), int(label)) for vector, label in zip(records.vectors, records.labels, strict=True)}

    touched = len(worlds.members(world, unit, one)) + len(worlds.members(changed, unit, one))
    assert 0 < len(voices(before) ^ voices(other)) <= touched
    second = (before.second_moments() - other.second_moments()) * STEP
    labels = (before.label_moments() - other.label_moments()) * STEP
    assert 0 < np.square(second).sum() + np.square(labels).sum() <= JOINT
    weights = np.random.default_rng(0).normal(size=labels.shape)
    moved = np.linalg.norm(before.gradients(weights, 0.5) - other.gradients(weights, 0.5)) * STEP
    assert 0 < moved <= 2 * 0.5


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
    assert any("data.edition=2" in told for told in changes_told(run))


@pytest.mark.parametrize("unit", ["record", "group"])
def test_an_audit_of_sums_finds_no_unit_of_the_data_that_moves_them_by_more_than_is_charged(tmp_path, unit):
    run = settle(tmp_path, FORM, worlds.base(), privacy={"unit": unit}, **SUMS)
    run_through(run, "dataset", "pretrain")
    before = files(run.root)
    result = audit_neighbours(run, refused, 2)
    assert not result["caught"]
    assert 0.01 < result["most"] == max(entry["share"] for entry in result["steps"]) <= 1
    assert result["rounds"] == 3
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


def refused(run):
    raise AssertionError("nobody is taught, and nobody votes")
