"""The stage `average`: independent of task groups, drawn once, charged first, and composed with the votes."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.averages import read_average_manifest
from tasks.artefacts.teachers import HEADS, read_start, read_teachers_manifest, read_votes
from tasks.config.params import merge_overrides, public_parameters, validate
from tasks.config.values import as_yaml
from tasks.pipeline import average
from tasks.pipeline.aggregate import release_answers
from tasks.reports.statement_page import mechanism_texts
from tasks.reports.summary import result
from tasks.runtime.accounts import open_account
from tasks.runtime.releases import worst_cases
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, read_tensors, write_text
from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import GaussianEvent, NonPrivateEvent, compose, from_json
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import SecureNoise
from terrine.privacy.statement import statement_from

ROUNDS = {"kind": "averaged", "statistics": "original", "rounds": 4, "steps": 2, "learning_rate": 2.0, "batch": 8}
PRIVATE = {**ROUNDS, "clip": 1.0, "budget_share": 0.7, "centre": "shared"}
PAPER = {**ROUNDS, "mode": "paper"}
VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 12, "kind": "similarity", "similarity": 0},
    "queries": {"count": 60, "batch": 20, "sources": {"gaussian": 1}},
    "backbone": {"projection": 12},
    "teachers": {"per_task": 5, **PRIVATE},
    "aggregation": {"mechanism": "histogram", "sigma": 40, "epsilon": 6, "noise": "secure"},
}


def run_with(root, **overrides):
    return Run(root, "small", validate(merge_overrides(VALUES, overrides)))


def with_teachers(root, teachers, **overrides):
    values = {name: part for name, part in merge_overrides(VALUES, overrides).items() if name != "teachers"}
    return Run(root, "small", validate({**values, "teachers": {"per_task": 5, **teachers}}))


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A folder in which all stages before the averages have run."""
    root = tmp_path_factory.mktemp("origin")
    run_through(run_with(root), "dataset", "pretrain")
    return root


@pytest.fixture
def prepared(origin):
    """A function that copies this folder for a run."""

    def prepare(run):
        shutil.copytree(origin / "data", run.root / "data", dirs_exist_ok=True)
        return run

    return prepare


def releases(run):
    ledger, account = open_account(run)
    return ledger.events(account)


def test_private_averages_and_votes_are_charged_each_once_and_stated_together(tmp_path, prepared):
    run = prepared(run_with(tmp_path))
    run_through(run, "average", "aggregate")
    events = releases(run)
    # The centre, three averages, and the votes.
    assert len(events) == 5
    assert all(isinstance(event, GaussianEvent) for event in events[:4])
    statement = read_json(run.folders.statement)
    stated = from_json(statement["event"])
    assert price(stated, 1e-5) == pytest.approx(price(compose(*events), 1e-5))
    assert price(compose(*events[:4]), 1e-5) == pytest.approx(price(worst_cases(run.params)["averages"], 1e-5))
    assert 5 < statement["epsilon"] <= run.params.aggregation.epsilon
    assert statement["epsilon_dataset"] == statement["epsilon"]
    assert statement["private"]
    assert statement["answered"] == 60
    about = statement["mechanism"]["averaging"]
    assert (about["mode"], about["averages"], about["vectors"], about["clip"]) == ("private", 3, 4, 1.0)
    assert about["noise_multiplier"] > 1
    statement_from(statement)
    words = {key: value for key, value, _ in mechanism_texts(statement)["mechanism_parameters"]}
    assert "noise multiplier" in words["averaging"]
    assert len({"update", "own"} & read_tensors(run.folders.average / "average.safetensors").keys()) == 0


def test_the_same_rounds_again_return_what_was_drawn_and_cost_nothing(tmp_path, prepared):
    """Secure noise cannot be drawn twice alike, so equal averages were drawn once."""
    run = prepared(run_with(tmp_path))
    run_through(run, "average", "average")
    first, events = read_start(run.folders), releases(run)
    value, own = first.average.value.copy(), np.array(first.own)
    run_through(run, "average", "average")
    again = read_start(run.folders)
    np.testing.assert_array_equal(again.average.value, value)
    np.testing.assert_array_equal(again.centre, first.centre)
    np.testing.assert_array_equal(again.own, own)
    assert releases(run) == events


def test_a_run_without_averages_loads_no_torch_to_say_so(tmp_path):
    values = {"data": VALUES["data"], "teachers": {"kind": "linear"}}
    code = (
        "import sys; from pathlib import Path; from flows.stages import run_through; "
        "from tasks.config.params import validate; from tasks.runtime.staleness import data_settings_digest; "
        "from tasks.runtime.run import Run; from tasks.runtime.store import write_json; "
        f"run = Run(Path({str(tmp_path)!r}), 'alone', validate({values!r})); "
        "about = {'data_settings_digest': data_settings_digest(run.params)}; "
        "write_json(run.folders.dataset / 'manifest.json', about); "
        "run_through(run, 'average', 'average'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    run = Run(tmp_path, "alone", validate(values))
    manifest = read_average_manifest(run.folders)
    assert (manifest["averages"], manifest["event"], manifest["coordinates"]) == (0, None, 0)
    assert releases(run) == []


@pytest.mark.parametrize("crash_at", ["local", "combine", "draw"])
def test_a_crash_in_the_middle_is_continued_and_charged_once(tmp_path, prepared, monkeypatch, crash_at):
    run = prepared(run_with(tmp_path))
    calls = []

    def dying(true, at):
        def until_killed(*arguments, **options):
            calls.append(1)
            if len(calls) == at:
                raise KeyboardInterrupt
            return true(*arguments, **options)

        return until_killed

    if crash_at == "local":
        monkeypatch.setattr(average, "local_round", dying(average.local_round, 5))
    elif crash_at == "combine":
        monkeypatch.setattr(average, "server_step", dying(average.server_step, 2))
    else:
        monkeypatch.setattr(SecureNoise, "gaussian", dying(SecureNoise.gaussian, 3))
    with pytest.raises(KeyboardInterrupt):
        run_through(run, "average", "average")
    monkeypatch.undo()
    charged = len(releases(run))
    # Round 2 was charged where the crash came after its reservation: before its noise was there.
    assert charged == {"local": 2, "combine": 3, "draw": 3}[crash_at]
    run_through(run, "average", "average")
    assert len(releases(run)) == 4
    assert read_average_manifest(run.folders)["averages"] == 3


@pytest.mark.parametrize("teachers", [PAPER, {**PAPER, "correction": "none"}, PRIVATE])
def test_averages_do_not_depend_on_who_carries_which_teachers(tmp_path, prepared, teachers):
    found = []
    for per_task in (1, 5):
        own = {**teachers, "per_task": per_task}
        run = prepared(with_teachers(tmp_path / str(per_task), own, aggregation={"noise": "replay"}))
        run_through(run, "average", "vote")
        found.append((read_start(run.folders), read_votes(run.folders)))
    for start, votes in found[1:]:
        np.testing.assert_array_equal(start.average.value, found[0][0].average.value)
        np.testing.assert_array_equal(start.average.control, found[0][0].average.control)
        np.testing.assert_array_equal(start.own, found[0][0].own)
        np.testing.assert_array_equal(votes, found[0][1])
    assert (found[0][0].average.control != 0).any() == (teachers.get("correction") != "none")


def test_given_the_averages_a_record_touches_one_teacher_only(tmp_path, prepared):
    run = prepared(run_with(tmp_path, teachers={"batch": None}))
    run_through(run, "average", "teach")
    before = read_tensors(run.folders.teachers / HEADS)
    # Another record of teacher 3, and the averages as they were released.
    images = np.array(read_array(run.folders.dataset / "train_images.npy"))
    assignment = read_array(run.folders.partition / "assignment.npy")
    record = np.flatnonzero(assignment == 3)[0]
    images[record] = 255 - images[record]
    np.save(run.folders.dataset / "train_images.npy", images)
    run_through(run, "teach", "teach")
    after = read_tensors(run.folders.teachers / HEADS)
    changed = np.flatnonzero((before["weight"] != after["weight"]).any(axis=(1, 2)))
    assert changed.tolist() == [3]


def test_the_published_form_is_stated_reported_and_tracked_as_what_it_is(tmp_path, prepared, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would be laid out for longer than all the rest
    tracking = {"register_student": False, "uri": (tmp_path / "mlruns").as_uri()}
    run = prepared(with_teachers(tmp_path, PAPER, tracking=tracking))
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "small.yaml").write_text("description: as published\n")
    write_text(run.folders.public_parameters, as_yaml(public_parameters(run.params)))
    run_through(run, "average", "report")
    assert releases(run) == [NonPrivateEvent()]
    statement = read_json(run.folders.statement)
    assert not statement["private"]
    assert statement["epsilon"] is None
    assert "NOT PRIVATE" in statement["warning"]
    assert statement["epsilon_claimed"] == pytest.approx(price(from_votes(60, 40), 1e-5), abs=1e-4)
    statement_from(statement)
    assert "NOT PRIVATE" in run.folders.report.read_text(encoding="utf-8")
    tracked = read_json(run.folders.private / "tracking.json")
    mlflow.set_tracking_uri(tracking["uri"])
    logged = mlflow.get_run(tracked["run_id"]).data
    assert logged.tags["private"] == "NOT PRIVATE"
    assert "epsilon" not in logged.metrics
    shown = result(run).plain
    assert "NOT PRIVATE" in shown
    assert "may be published" not in shown
    assert "accuracy" in logged.metrics


def from_votes(queries, sigma):
    from terrine.privacy.accounting.events import RepeatedEvent, vote_answer

    return RepeatedEvent(vote_answer(float(sigma)), queries)


def test_groups_vote_as_one_and_cost_what_votes_cost(tmp_path, prepared):
    blocks = {**ROUNDS, "averaging": "blocks", "block": 4, "centre": "shared"}
    run = prepared(with_teachers(tmp_path, blocks))
    run_through(run, "average", "aggregate")
    assert read_votes(run.folders).shape == (60, 3)
    statement = read_json(run.folders.statement)
    assert (statement["teachers"], statement["mechanism"]["block"]) == (3, 4)
    assert releases(run) == [from_json(statement["event"])]
    assert read_average_manifest(run.folders)["averages"] == 0


def test_a_run_that_the_account_cannot_pay_in_full_is_refused_before_anything_is_charged(tmp_path, prepared):
    """The budget would cover the averages but not the votes."""
    budget = price(worst_cases(run_with(tmp_path).params)["averages"], 1e-5) + 0.05
    run = prepared(run_with(tmp_path, ledger={"epsilon": budget}))
    with pytest.raises(BudgetError, match="The releases of averages of teachers and answers may cost"):
        run_through(run, "average", "average")
    assert releases(run) == []
    enough = run_with(tmp_path, ledger={"epsilon": budget}, aggregation={"epsilon": 4.5})
    run_through(enough, "average", "aggregate")
    assert len(releases(enough)) == 5


def test_a_budget_beyond_what_the_noises_lattice_allows_is_refused_before_anything_is_charged(tmp_path, prepared):
    run = prepared(run_with(tmp_path, aggregation={"epsilon": 50}))
    with pytest.raises(SettingError, match="too large"):
        run_through(run, "average", "average")
    assert releases(run) == []


def test_other_settings_are_other_releases(tmp_path, prepared):
    prepared(run_with(tmp_path))
    identities = set()
    for teachers in ({}, {"clip": 2.0}, {"budget_share": 0.6}, {"steps": 3}):
        run = run_with(tmp_path, teachers=teachers)
        run_through(run, "average", "average")
        identities |= {entry["release_id"] for entry in read_average_manifest(run.folders)["history"]}
    assert len(identities) == 12


def test_release_answers_needs_the_averages_event(tmp_path, prepared):
    """Votes have the rest of the budget: with less noise, fewer are answered."""
    run = prepared(run_with(tmp_path, aggregation={"sigma": 8}))
    run_through(run, "average", "vote")
    release_answers.fn(run)
    statement = read_json(run.folders.statement)
    assert 0 < statement["answered"] < 60
    assert statement["epsilon"] <= 6


@pytest.mark.parametrize(
    ("teachers", "key", "remedy"),
    [
        ({**PRIVATE, "clip": 0}, "teachers.clip", "greater than 0"),
        ({**PRIVATE, "clip": None}, "clip is missing", "Set teachers.clip"),
        ({**PRIVATE, "budget_share": 0}, "teachers.budget_share", "greater than 0"),
        ({**PRIVATE, "budget_share": 1}, "teachers.budget_share", "less than 1"),
        ({**PRIVATE, "budget_share": None}, "budget_share is missing", "Set teachers.budget_share"),
        ({**PAPER, "clip": 1.0}, "clip=1 has no meaning", "Set teachers.clip=null"),
        ({"kind": "linear", "block": 3}, "block=3 has no meaning", "kind=linear; it belongs to averaged. Remove it"),
        (
            {"kind": "linear", "averaging": "blocks"},
            "averaging='blocks' has no meaning",
            "kind=linear; it belongs to averaged. Remove it",
        ),
        ({**ROUNDS, "averaging": "blocks"}, "block is missing", "Set teachers.block"),
        ({**ROUNDS, "averaging": "blocks", "block": 12}, "teachers.block=12 makes one group", "smaller"),
        ({**PRIVATE, "rounds": 1}, "rounds=1", "teachers.averaging=none"),
        ({**PRIVATE, "statistics": "current"}, "centre=shared", "statistics=original"),
        ({**ROUNDS, "mode": "paper", "learner": "finetune"}, "learner=finetune", "resnet10"),
        ({**ROUNDS, "mode": "paper", "learner": "network", "batch": 1}, "batch=1", "2 or more"),
    ],
)
def test_settings_without_noise_without_a_norm_or_without_sense_are_refused(tmp_path, teachers, key, remedy):
    with pytest.raises(SettingError) as caught:
        with_teachers(tmp_path, teachers)
    assert key in str(caught.value)
    assert remedy in str(caught.value)


def test_averages_without_noise_are_for_public_data_alone(tmp_path):
    own = {
        "data": {"public_benchmark": False},
        "partition": {"kind": "iid"},
        "ledger": {"epsilon": 9, "account": "trial"},
    }
    with pytest.raises(SettingError, match=r"teachers\.mode=paper averages without noise"):
        with_teachers(tmp_path, PAPER, **own)
    with pytest.raises(SettingError, match=r"teachers\.mode=paper averages without noise"):
        with_teachers(tmp_path, PAPER, ledger={"epsilon": 9})
    with_teachers(tmp_path, PRIVATE, **own)


@pytest.mark.parametrize("teachers", [PAPER, PRIVATE], ids=["paper", "private"])
def test_a_party_without_records_stands_still_and_votes_with_the_average(tmp_path, prepared, teachers):
    run = prepared(with_teachers(tmp_path, teachers))
    path = run.folders.partition / "assignment.npy"
    assignment = np.array(read_array(path))
    assignment[assignment == 4] = 5
    path.unlink()
    np.save(path, assignment)
    run_through(run, "average", "vote")
    average = read_start(run.folders).average
    heads = read_tensors(run.folders.teachers / HEADS)
    own = np.concatenate([heads["weight"][4].ravel(), heads["bias"][4]])
    np.testing.assert_array_equal(own, average.value.astype(np.float32))
    assert read_teachers_manifest(run.folders)["untrained"] == []
    assert (heads["weight"][5] != heads["weight"][4]).any()
