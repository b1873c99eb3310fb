"""Canaries in a small run of the pipeline: what they find, and what they leave alone."""

import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from flows.cli import audit as command
from flows.stages import run_through
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.teachers import read_votes
from tasks.auditing import canaries
from tasks.auditing.canaries import audit_canaries
from tasks.config.params import merge_overrides, validate
from tasks.pipeline import dataset, vote
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.aggregation.records import Records
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest
from terrine.privacy.auditing.canaries import make_canaries
from terrine.privacy.noise import ReplayNoise

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 24},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1}},
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2, "noise": "replay"},
}
ANSWERS = {
    "histogram": {"sigma": 20},
    "gnmax": {"sigma": 20},
    "lnmax": {"scale": 60},
    "confident": {"threshold": 10, "sigma1": 40, "sigma2": 20},
}


SUMS = {
    "moments": {"aggregation": {"mechanism": "moments"}},
    "gradients": {"aggregation": {"mechanism": "gradients", "rounds": 4}},
    "moments, normalised by released ones": {
        "aggregation": {"mechanism": "moments", "epsilon": 4},
        "backbone": {"kind": "scattering", "projection": 20},
        "data": {"size": 16},
        "privacy": {"moments": 0.1},
    },
    "groups": {"aggregation": {"mechanism": "moments"}, "privacy": {"unit": "group"}},
}
"""Sections of runs whose records are summed."""
TABLE = {
    "data": {
        "name": "table",
        "path": "rows.csv",
        "target": "kind",
        "columns": {"x": [0, 1], "y": [0, 1], "z": [0, 1], "word": ["a", "b", "c"]},
    },
    "partition": {"teachers": 24},
    "queries": {"count": 200},
    "backbone": {"kind": "columns"},
    "teachers": {"optimiser": "ridge", "statistics": "original"},
    "student": {"kind": "sums"},
    "aggregation": {"mechanism": "gradients", "rounds": 4, "epsilon": 1},
    "ledger": {"account": "rows", "epsilon": 8},
}


def summed(root, name):
    """A run that sums records, with its release."""
    base = {section: values for section, values in VALUES.items() if section != "aggregation"}
    base |= {"aggregation": {"epsilon": 2, "noise": "replay"}, "student": {"kind": "sums"}}
    run = Run(root, "sums", validate(merge_overrides(base, SUMS[name])))
    run_through(run, "dataset", "aggregate")
    return run


class Seeded(ReplayNoise):
    """Seeded noise that a ledger of private data accepts."""

    kind = "secure"


def table(root, epsilon, monkeypatch):
    """A run that sums the rows of a table, with its release."""
    monkeypatch.setattr("tasks.pipeline.sums.noise_source", lambda run: Seeded(0))
    generator = np.random.default_rng(0)
    rows = [f"{x},{y},{z},{'abcd'[int(4 * z)]},{'no' if x < y else 'yes'}" for x, y, z in generator.random((800, 3))]
    (root / "rows.csv").write_text("\n".join(["x,y,z,word,kind", *rows]))
    run = Run(root, "rows", validate(merge_overrides(TABLE, {"aggregation": {"epsilon": epsilon}})))
    run_through(run, "dataset", "aggregate")
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with its release."""
    run = Run(tmp_path_factory.mktemp("project"), "small", validate(VALUES))
    run_through(run, "dataset", "aggregate")
    return run


def with_answers(run, mechanism, **settings):
    values = {"mechanism": mechanism} | ANSWERS[mechanism] | settings
    return replace(run, params=validate(merge_overrides(VALUES, {"aggregation": values})))


def contents(folder):
    return {path: file_digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("mechanism", sorted(ANSWERS))
def test_a_sound_run_is_not_accused_and_nothing_but_the_private_figure_is_written(made, mechanism):
    run = with_answers(made, mechanism)
    before = contents(made.root)
    result = audit_canaries(run, run_through, 20)
    written = made.folders.private / "canaries.json"
    after = contents(made.root)
    after.pop(written, None)
    before.pop(written, None)
    assert after == before
    assert read_json(written) == json.loads(json.dumps(result, allow_nan=False)) == result
    assert not result["caught"]
    assert result["leaked_votes"] == 0
    assert result["moved"] > 0.8
    assert result["epsilon_at_least"] <= result["epsilon_charged"]
    assert (result["mu_charged"] is None) == (mechanism == "lnmax")


@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_sound_run_that_sums_records_is_not_accused_and_only_the_private_figure_is_written(
    tmp_path, monkeypatch, name
):
    if name == "groups":
        plain = dataset.load_dataset

        def grouped(run):
            records = plain(run)
            return replace(records, train_groups=np.arange(records.records) // 3)

        monkeypatch.setattr(dataset, "load_dataset", grouped)
    run = summed(tmp_path, name)
    before = contents(run.root)
    result = audit_canaries(run, run_through, 300)
    written = run.folders.private / "canaries.json"
    after = contents(run.root)
    after.pop(written)
    assert after == before
    assert read_json(written) == json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["caught"], result["fault"]) == (False, None)
    assert 0.85 < result["moved"] <= 1
    assert result["epsilon_at_least"] <= result["epsilon_charged"] < 4
    assert result["epsilon_without_noise"] > 3


@pytest.mark.parametrize("epsilon", [1, 4])
def test_a_sound_run_that_sums_rows_of_a_table_is_not_accused(tmp_path, monkeypatch, epsilon):
    result = audit_canaries(table(tmp_path, epsilon, monkeypatch), run_through, 300)
    assert (result["caught"], result["fault"]) == (False, None)
    assert result["epsilon_at_least"] <= result["epsilon_charged"] == pytest.approx(epsilon)
    assert result["epsilon_without_noise"] > 3


@pytest.mark.parametrize("records", ["images", "rows"])
def test_in_a_run_that_sums_records_missing_noise_and_gradients_of_any_length_are_found(tmp_path, monkeypatch, records):
    run = summed(tmp_path, "gradients") if records == "images" else table(tmp_path, 1, monkeypatch)
    with monkeypatch.context() as quiet:
        quiet.setattr(ReplayNoise, "gaussian", lambda self, shape, sigma: np.zeros(shape))
        result = audit_canaries(run, run_through, 100)
        assert result["caught"]
        assert result["epsilon_at_least"] > max(3, result["epsilon_charged"])
    clipped = Records._errors
    monkeypatch.setattr(Records, "_errors", lambda self, weights, clip: clipped(self, weights, 1e9))
    result = audit_canaries(run, run_through, 100)
    assert result["caught"]
    assert "as far as is charged" in result["fault"]


def test_with_the_noise_left_out_the_bound_says_that_it_is_missing(made, monkeypatch):
    monkeypatch.setattr(ReplayNoise, "gaussian", lambda self, shape, sigma: np.zeros(shape))
    result = audit_canaries(made, run_through, 24)
    assert result["caught"]
    assert result["epsilon_at_least"] > result["epsilon_charged"]


def test_the_power_is_that_of_the_same_votes_without_noise(made):
    assert audit_canaries(made, run_through, 24)["epsilon_without_noise"] > 3


def test_teachers_that_look_at_others_are_found_astray(made):
    """A defect: where a teacher would vote 3 it votes as the one before, so a canary moves two."""

    def make(run, first, last):
        run_through(run, first, "vote")
        votes = read_votes(run.folders)
        vote._write_votes(run, np.where(votes == 3, np.roll(votes, 1, axis=1), votes))
        if last == "aggregate":
            run_through(run, "aggregate", "aggregate")

    result = audit_canaries(made, make, 20)
    assert result["leaked_votes"] > 0
    assert result["caught"]


def test_only_the_teachers_of_canaries_lose_their_records(made, monkeypatch):
    kept = []
    honest = canaries.shadow_run

    def watched(run, records, root):
        shadow = honest(run, records, root)
        run_through(shadow, "partition", "partition")
        kept.append((read_dataset(shadow.folders), read_assignment(shadow.folders)))
        return shadow

    monkeypatch.setattr(canaries, "shadow_run", watched)
    audit_canaries(made, run_through, 8)
    dataset, assignment = read_dataset(made.folders), read_assignment(made.folders)
    teacher_of = dict(zip(dataset.record_names.tolist(), assignment.tolist(), strict=True))
    for shadow, dealt in kept:
        own = np.isin(shadow.record_names, dataset.record_names)
        emptied = set(dealt[~own].tolist())
        assert len(emptied) == 8
        assert np.array_equal(np.bincount(dealt[~own])[sorted(emptied)], np.full(8, 2))
        assert [teacher_of[name] for name in shadow.record_names[own].tolist()] == dealt[own].tolist()
        assert own.sum() == sum(teacher not in emptied for teacher in assignment.tolist())


def test_groups_and_parties_get_canaries_too(made, monkeypatch):
    dataset = read_dataset(made.folders)
    groups = replace(dataset, train_groups=dataset.record_names // 2)
    monkeypatch.setattr(canaries, "read_dataset", lambda folders: groups)
    by_group = replace(made, params=validate(VALUES | {"privacy": {"unit": "group"}}))
    result = audit_canaries(by_group, run_through, 24)
    assert (result["unit"], result["leaked_votes"]) == ("group", 0)
    held = replace(
        dataset, train_parties=read_assignment(made.folders), party_names=tuple(f"party {k}" for k in range(24))
    )
    monkeypatch.setattr(canaries, "read_dataset", lambda folders: held)
    by_party = replace(made, params=validate(VALUES | {"partition": {"kind": "party", "teachers": 24}}))
    own, teachers, names = canaries._free_slots(by_party, 8)
    assert own.records == np.sum(~np.isin(held.train_parties, teachers))
    beds = canaries._CanarySlots(
        own, make_canaries(dataset.train_images, 8, 10, 1, np.random.default_rng(0)), 1, teachers, names
    )
    planted = beds.records(np.ones(8, dtype=bool))
    assert np.array_equal(np.bincount(planted.train_parties, minlength=24)[teachers], np.full(8, 2))
    assert len(set(planted.record_names.tolist())) == planted.records


def test_what_canaries_say_nothing_about_is_refused(made, tmp_path):
    with pytest.raises(SettingError, match="between 8 and 24"):
        audit_canaries(made, run_through, 25)
    with pytest.raises(SettingError, match="between 8 and 4,096"):
        audit_canaries(summed(tmp_path / "sums", "moments"), run_through, 5000)
    with pytest.raises(SettingError, match="no independent runs"):
        audit_canaries(made, run_through, 20, 2)
    by_label = replace(made, params=validate(VALUES | {"partition": {"kind": "dirichlet", "alpha": 1, "teachers": 24}}))
    with pytest.raises(SettingError, match="reads labels"):
        audit_canaries(by_label, run_through, 20)
    averaged = {"teachers": {"kind": "averaged", "mode": "private", "clip": 1.0, "budget_share": 0.5}}
    with pytest.raises(SettingError, match="averages its teachers"):
        audit_canaries(replace(made, params=validate(VALUES | averaged)), run_through, 20)
    with pytest.raises(ArtefactError, match="up to pretrain"):
        audit_canaries(Run(tmp_path, "none", made.params), run_through, 20)


def test_the_command_shows_bound_charge_and_power(made, monkeypatch):
    monkeypatch.setattr("tasks.config.presets.project_root", lambda: made.root)
    monkeypatch.setattr("tasks.runtime.run.open_run", lambda root, name: made)
    app = typer.Typer()
    app.command()(command.audit)
    app.callback()(lambda: None)
    shown = CliRunner().invoke(app, ["audit", "--run", "small", "--canaries", "20"], catch_exceptions=False)
    assert shown.exit_code == 0
    for text in ("20 canaries", "charged: ", "without noise", "Do not publish"):
        assert text in shown.stdout
    assert not (made.folders.public / "audit.json").exists()
