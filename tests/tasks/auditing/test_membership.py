"""Shadow runs of a small pipeline, and what an attack finds in them."""

from dataclasses import replace

import numpy as np
import pytest

from flows.cli.audit import make_shadow
from flows.stages import run_through
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.auditing import membership
from tasks.auditing.membership import audit_student, coins_of
from tasks.auditing.shadow_runs import members, shadow_run, units_of
from tasks.config.params import validate
from tasks.pipeline import aggregate, dataset
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.data.dataset import Dataset
from terrine.errors import ArtefactError, SettingError
from terrine.privacy.noise import ReplayNoise, SecureNoise

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 20},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1}},
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2},
    "student": {"l2": 0.3},
}
SHADOWS = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with its release and its student."""
    run = Run(tmp_path_factory.mktemp("project"), "small", validate(VALUES))
    run_through(run, "dataset", "student")
    return run


def test_a_private_student_survives_the_attack_and_the_runs_ledger_is_left_alone(made):
    ledger, account = aggregate.open_account(made)
    releases = len(ledger.events(account))
    result = audit_student(made, make_shadow, SHADOWS)
    assert 0.4 < result["auc"]["low"] < result["auc"]["value"] < result["auc"]["high"] < 0.6
    assert not result["caught"]
    assert result["units"] == 1435
    assert result["epsilon_charged"] == read_json(made.folders.statement)["epsilon"]
    assert read_json(made.folders.private / "membership.json") == result
    assert len(ledger.events(account)) == releases


def test_a_head_of_sums_survives_the_attack_and_one_made_without_noise_gives_its_records_away(tmp_path, monkeypatch):
    """Sums over some 30 records of 30 features determine a head that fits those records best."""
    plain = dataset.load_dataset
    monkeypatch.setattr(dataset, "load_dataset", lambda run: members(plain(run), np.arange(1435) < 60))
    sums = {"aggregation": {"mechanism": "moments", "epsilon": 2}, "student": {"kind": "sums"}}
    run = Run(tmp_path, "sums", validate(VALUES | sums | {"privacy": {"anyway": True}}))
    run_through(run, "dataset", "student")
    drawn = ReplayNoise(7)  # one stream for all shadow runs
    monkeypatch.setattr(SecureNoise, "gaussian", lambda self, shape, sigma: drawn.gaussian(shape, sigma))
    noisy = audit_student(run, make_shadow, 16)
    assert not noisy["caught"]
    assert noisy["auc"]["low"] < 0.5 < noisy["auc"]["high"]
    monkeypatch.setattr(SecureNoise, "gaussian", lambda self, shape, sigma: np.zeros(shape))
    run = Run(tmp_path, "sums", run.params.model_copy(update={"seed": 1}))
    bare = audit_student(run, make_shadow, 16)
    assert bare["auc"]["low"] > noisy["auc"]["value"]
    for found in (bare["members_found"], bare["others_found"]):
        assert found["0.1"]["low"] > 0.1


def test_a_student_that_repeats_what_its_teachers_saw_is_caught(made, monkeypatch):
    """A stub that is more confident on the shadow's own records replaces each shadow's student."""
    run = Run(made.root, made.name, made.params.model_copy(update={"seed": 1}))
    calls = iter(range(SHADOWS))
    units = units_of(read_dataset(made.folders), run.params)

    def leaky(shadow, images):
        number = next(calls)
        member = coins_of(run, number, len(images))[units]
        sure = np.where(member, 0.9, 0.2) + np.random.default_rng(number).normal(0, 0.02, len(images))
        labels = read_dataset(made.folders).train_labels
        table = np.repeat((1 - sure)[:, None] / 9, 10, axis=1)
        table[np.arange(len(images)), labels] = sure
        return table

    monkeypatch.setattr(membership, "probabilities", leaky)
    result = audit_student(run, lambda shadow: None, SHADOWS)
    assert result["auc"]["low"] > 0.99
    assert result["caught"]


def test_finished_shadow_runs_are_not_made_again(made):
    first = audit_student(made, make_shadow, SHADOWS)
    assert audit_student(made, lambda shadow: pytest.fail("made again"), SHADOWS) == first


def test_the_unit_is_the_group_where_groups_are_protected():
    images = np.zeros((5, 1, 8, 8), np.uint8)
    groups = np.array([7, 3, 7, 9, 3])
    people = Dataset("five", images, np.arange(5) % 2, groups, images, np.arange(5) % 2, ("a", "b"))
    assert units_of(people, validate(VALUES | {"privacy": {"unit": "group"}})).tolist() == [1, 0, 1, 2, 0]
    assert sorted(units_of(people, validate(VALUES)).tolist()) == [0, 1, 2, 3, 4]
    shared = replace(people, train_names=np.array([5, 6, 5, 8, 9]))
    assert units_of(shared, validate(VALUES)).tolist() == [0, 1, 0, 2, 3]


def test_whoever_is_in_a_shadow_run_sits_with_the_teacher_of_the_run_itself(made, tmp_path):
    dataset = read_dataset(made.folders)
    inside = coins_of(made, 3, dataset.records)
    shadow = shadow_run(made, members(dataset, inside), tmp_path)
    run_through(shadow, "partition", "partition")
    assert np.array_equal(read_assignment(shadow.folders), read_assignment(made.folders)[inside])


def test_too_few_shadow_runs_and_a_run_without_release_are_refused(made, tmp_path):
    with pytest.raises(SettingError, match="at least 8 shadow runs"):
        audit_student(made, make_shadow, 7)
    with pytest.raises(ArtefactError, match="released nothing yet"):
        audit_student(Run(tmp_path, "none", made.params), make_shadow, 8)
