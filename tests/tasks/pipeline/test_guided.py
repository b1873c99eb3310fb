"""Guided queries as a stage: made in rounds, voted on in private, released once, and learned from by the student."""

import shutil

import numpy as np
import pytest

from flows.stages import run_through
from tasks.config.params import lay_over, validate
from tasks.config.queries import Queries
from tasks.pipeline import aggregate, pretrain, report, student, synthesize, teach, vote
from tasks.pipeline.guided import queries
from tasks.pipeline.guided import votes as guided_votes
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, read_table, read_tensors, write_array
from terrine.aggregation.votes import histograms_of
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest
from terrine.models.backbone import features_in_batches
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.students.answers import histogram_answers
from terrine.students.guided import RADIUS, guide
from terrine.students.linear import fit
from terrine.students.selection import RULES
from terrine.teachers.linear import LinearHeads
from terrine.teachers.linear import vote as linear_vote
from tests.folder_digest import folder_digest

POOL = 60
VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 20},
    "queries": {
        "count": POOL,
        "batch": 12,
        "sources": {"gaussian": 1, "dead_leaves": 1},
        "select": "guided",
        "rounds": 3,
    },
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2, "noise": "replay"},
    "device": "cpu",
}
INTERACTIVE = {"mechanism": "interactive", "threshold": 8, "sigma1": 30, "sigma2": 15} | {
    "surprise": 8,
    "confidence": 0.5,
    "epsilon": 9,
}
NETWORKS = {"teachers": {"kind": "scratch", "epochs": 1, "per_task": 3}, "partition": {"teachers": 3}}


def run_with(root, **sections):
    return Run(root, "small", validate(lay_over(VALUES, sections)))


def voted_project(root, **sections):
    run = run_with(root, **sections)
    run_through(run, "dataset", "vote")


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A folder in which all stages up to the votes have run."""
    root = tmp_path_factory.mktemp("project")
    voted_project(root)
    return root


@pytest.fixture
def project(voted, tmp_path):
    """A copy of it for one test."""
    shutil.copytree(voted, tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="module")
def answered(voted, tmp_path_factory):
    """A folder in which the plain run has released its answers, too."""
    root = tmp_path_factory.mktemp("answered") / "project"
    shutil.copytree(voted, root)
    released(run_with(root))
    return root


@pytest.fixture
def answered_project(answered, tmp_path):
    """A copy of it for one test, and the run there."""
    shutil.copytree(answered, tmp_path / "project")
    return run_with(tmp_path / "project")


def released(run):
    aggregate.release_answers.fn(run)
    folders = run.folders
    return read_table(folders.answers / "answers.parquet"), read_json(folders.answers / "manifest.json")


@pytest.fixture
def no_noise(monkeypatch):
    """Let what is released show what was voted."""
    monkeypatch.setattr(ReplayNoise, "gaussian", lambda self, shape, sigma: np.zeros(shape))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "aggregation",
    [
        {},
        {"epsilon": 9},
        {"mechanism": "gnmax"},
        {"mechanism": "confident", "threshold": 8, "sigma1": 30, "sigma2": 15, "epsilon": 9},
        INTERACTIVE,
    ],
    ids=["histogram", "a budget for the whole pool", "gnmax", "confident", "interactive"],
)
def test_guided_queries_are_released_with_what_was_answered_about_them(project, aggregation):
    run = run_with(project, aggregation=aggregation)
    answers, manifest = released(run)
    statement = read_json(run.folders.statement)
    images = read_array(run.folders.answers / "guided.npy")
    pool = synthesize.read_queries(run.folders)
    made = len(images)
    asked = (answers["round"] >= 0).to_numpy()
    assert 0 < made == len(answers) - POOL
    assert asked[POOL:].all()
    assert set(answers["round"][asked]) == {0, 1, 2}
    assert set(answers["round"][POOL:]) == {1, 2}
    assert asked.sum() == statement["asked"] == manifest["asked"] <= POOL
    if run.params.aggregation.mechanism in ("histogram", "gnmax"):
        assert (asked.sum() == POOL) == (aggregation == {"epsilon": 9})
    assert statement["queries"] == manifest["queries"] == len(answers)
    assert statement["mechanism"]["select"] == "guided"
    assert statement["public_inputs"][-1]["digest"] == file_digest(run.folders.answers / "guided.npy")
    assert statement["epsilon"] <= run.params.aggregation.epsilon
    assert statement["epsilon"] == pytest.approx(price(from_json(statement["event"]), 1e-5), abs=2e-4)
    # Each is near an image that was not asked itself, and no two are of the same.
    starts = answers["start"].to_numpy()
    assert (starts[:POOL] == aggregate.UNGUIDED).all()
    assert len(set(starts[POOL:])) == made
    assert not asked[starts[POOL:]].any()
    change = (images.astype(float) - pool.images[starts[POOL:]]) / 255
    assert (np.sqrt((change**2).mean(axis=(1, 2, 3))) <= RADIUS + 1e-9).all()
    assert np.abs(change).max(axis=(1, 2, 3)).min() > 0
    # Batches cover them, each of one source.
    kind = np.concatenate([np.full(len(b), k) for b, k in zip(pool.batches, pool.sources, strict=True)])
    numbers = [n for b in manifest["guided"]["batches"] for n in range(b["first"], b["first"] + b["count"])]
    assert numbers == list(range(POOL, POOL + made))
    for batch in manifest["guided"]["batches"]:
        assert 2 <= batch["count"] <= 12
        for number in range(batch["first"], batch["first"] + batch["count"]):
            assert batch["kind"] == f"guided {kind[starts[number]]}"


def test_the_teachers_vote_on_guided_images_in_the_batches_they_are_released_in(project, no_noise):
    run = run_with(project)
    answers, manifest = released(run)
    every = queries.read_all_queries(run.folders)
    features = features_in_batches(pretrain.read_backbone(run.folders), every.images, every.batches, "current")
    votes = linear_vote(LinearHeads(**read_tensors(run.folders.teachers / teach.HEADS)), features)
    expected = np.stack([np.bincount(row, minlength=10) for row in votes])
    asked = (answers["round"] >= 0).to_numpy()
    noisy = answers[[f"count_{number}" for number in range(10)]].to_numpy()
    np.testing.assert_allclose(noisy[asked], expected[asked], atol=1e-9)
    np.testing.assert_array_equal(read_array(run.folders.accounting / "histograms.npy"), expected)
    np.testing.assert_array_equal(read_array(run.folders.accounting / "guided_votes.npy"), votes[POOL:])
    assert manifest["teachers"] == votes.shape[1]
    assert not list(run.folders.work.glob("guided-votes*"))


def test_a_round_is_guided_by_all_that_was_released_before_it_and_by_nothing_else(answered_project):
    run = answered_project
    answers = read_table(run.folders.answers / "answers.parquet")
    every = queries.read_all_queries(run.folders)
    backbone = pretrain.read_backbone(run.folders)
    features = features_in_batches(backbone, every.images, every.batches, "current")
    noisy = answers[[f"count_{number}" for number in range(10)]].to_numpy()
    turn, start = answers["round"].to_numpy(), answers["start"].to_numpy()
    for number in (1, 2):
        before = np.flatnonzero((turn >= 0) & (turn < number))
        head = fit(features[before], histogram_answers(noisy[before], 20, 20.0), seed=0)
        used = [*before[before < POOL], *start[before[before >= POOL]]]
        unasked = np.setdiff1d(np.arange(POOL), used)
        count = int((turn == number).sum())
        pool = queries.read_queries(run.folders)
        expected = guide(backbone, head, pool, unasked, count, statistics="current", most=12)
        np.testing.assert_array_equal(every.images[turn == number], expected.images)
        np.testing.assert_array_equal(start[turn == number], expected.starts)


def test_the_same_release_again_is_the_same_to_the_last_byte_and_costs_nothing(answered_project):
    run = answered_project
    answers, accounting = contents(run.folders.answers), contents(run.folders.accounting)
    ledger, account = aggregate.open_account(run)
    events = len(ledger.events(account))
    shutil.rmtree(run.folders.release)
    shutil.rmtree(run.folders.accounting)
    released(run)
    assert contents(run.folders.answers) == answers
    assert contents(run.folders.accounting) == accounting
    assert len(ledger.events(account)) == events


def test_guided_images_are_decided_by_seed_and_released_answers_alone(answered, project):
    expected = contents(run_with(answered).folders.answers)["guided.npy"]
    for sigma, same in ((20, True), (21, False)):
        run = run_with(project, aggregation={"sigma": sigma})
        released(run)
        assert (contents(run.folders.answers)["guided.npy"] == expected) == same


@pytest.mark.parametrize("where", ["before the first gradient", "while teachers vote", "after the commit"])
def test_a_crash_leaves_one_charge_and_the_next_run_completes_the_release(answered_project, monkeypatch, where):
    expected = contents(answered_project.folders.answers)
    run = run_with(answered_project.root, aggregation={"sigma": 20.5})
    ledger, account = aggregate.open_account(run)
    before = len(ledger.events(account))

    def die(*_, **__):
        raise KeyboardInterrupt

    target = {
        "before the first gradient": (queries, "guide"),
        "while teachers vote": (guided_votes, "_cast"),
        "after the commit": (aggregate, "write_answers"),
    }[where]
    monkeypatch.setattr(*target, die)
    with pytest.raises(KeyboardInterrupt):
        released(run)
    assert contents(run.folders.answers) == expected, "an unfinished release replaced a finished one"
    monkeypatch.undo()
    if where == "after the commit":
        monkeypatch.setattr(queries, "guide", die)  # what was committed is not made again
    answers, _ = released(run)
    assert len(ledger.events(account)) == before + 1
    assert set(answers["round"]) == {-1, 0, 1, 2}
    again, _ = released(run)
    assert again.equals(answers)


def test_without_the_teachers_nothing_is_reserved(project):
    run = run_with(project)
    ledger, account = aggregate.open_account(run)
    (run.folders.teachers / teach.HEADS).unlink()
    with pytest.raises(ArtefactError, match="'teach'"):
        released(run)
    assert ledger.events(account) == []


@pytest.mark.parametrize("kind", ["linear", "fixmatch"])
def test_the_student_learns_from_guided_queries_without_the_private_zone(project, kind):
    fast = {"steps": 4, "train_batch": 16, "views": 1, "unlabelled_ratio": 1} if kind != "linear" else {"l2": 0.3}
    run = run_with(project, student={"kind": kind, **fast})
    answers, _ = released(run)
    shutil.rmtree(run.root / "data" / "private")
    (run.root / "data" / "private").touch()  # whoever tries to read or write below it fails
    pool = student.student_pool(run)
    assert len(pool.images) == len(answers)
    np.testing.assert_array_equal(pool.images[POOL:], read_array(run.folders.answers / "guided.npy"))
    assert sorted(set(pool.sources)) == ["dead_leaves", "gaussian", "guided dead_leaves", "guided gaussian"]
    public = folder_digest(run.root / "data" / "public")
    student.train_student.fn(run)
    _, head, _ = student.read_student(run.folders)
    assert head.classes == 10
    assert not list(run.folders.release.glob("student-work-*"))
    if kind == "linear":
        assert folder_digest(run.root / "data" / "public") == public, "what hangs on answers is no public input"
        backbone = pretrain.read_backbone(run.folders)
        features = features_in_batches(backbone, pool.images, pool.batches, "current")
        rows, own_answers, _ = student.read_answers(run)
        assert (rows >= POOL).any()
        np.testing.assert_array_equal(head.weight, fit(features[rows], own_answers, 0.3, seed=0).weight)


def test_guided_images_that_were_changed_are_refused(answered_project):
    run = answered_project
    images = read_array(run.folders.answers / "guided.npy")
    images[0, 0, 0, 0] ^= 1
    write_array(run.folders.answers / "guided.npy", images)
    with pytest.raises(ArtefactError, match="changed"):
        student.student_pool(run)


def test_a_contact_sheet_shows_guided_queries_as_sources_of_their_own(answered_project):
    run = answered_project
    answers = read_table(run.folders.answers / "answers.parquet")
    manifest = read_json(run.folders.answers / "manifest.json")
    sheets = {sheet.kind: sheet for sheet in report.sheets(run, answers, manifest)}
    assert set(sheets) == {"dead_leaves", "gaussian", "guided dead_leaves", "guided gaussian"}
    own = [sheets[kind] for kind in sheets if kind.startswith("guided")]
    assert sum(sheet.queries for sheet in own) == sum(sheet.asked for sheet in own) == len(answers) - POOL
    assert all(picture.query >= POOL for sheet in own for picture in sheet.pictures)


def test_teachers_that_look_at_images_vote_on_guided_ones(tmp_path, no_noise):
    voted_project(tmp_path, **NETWORKS)
    run = run_with(tmp_path, **NETWORKS)
    answers, manifest = released(run)
    images = read_array(run.folders.answers / "guided.npy")
    batches = [np.arange(b["first"], b["first"] + b["count"]) - POOL for b in manifest["guided"]["batches"]]
    states = teach.read_states(run.folders, range(3))
    expected = teach.teacher_kind(run).vote(states, vote.Queries(images, batches), device="cpu")
    np.testing.assert_array_equal(read_array(run.folders.accounting / "guided_votes.npy"), expected)
    noisy = answers[[f"count_{number}" for number in range(10)]].to_numpy()[POOL:]
    np.testing.assert_allclose(noisy, histograms_of(expected, 10), atol=1e-9)


def test_guided_queries_need_images_and_a_second_round(tmp_path):
    with pytest.raises(SettingError, match=r"queries\.rounds"):
        run_with(tmp_path, queries={"rounds": 1})
    own_table = {"name": "table", "path": "x.csv", "target": "y", "public_fraction": 0.2, "public_benchmark": False}
    with pytest.raises(SettingError, match="moves the pixels of images"):
        run_with(tmp_path, data=own_table, backbone={"kind": "columns"}, teachers={"statistics": "original"})


def test_the_parameters_know_every_rule():
    known = set(Queries.model_fields["select"].annotation.__args__)
    assert known == {*RULES, "guided"}
