"""A transcription as tasks: a charged iteration is never repeated, and its statement holds."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json
from tasks.transcription import release, teach
from tasks.transcription import session as transcribe
from tasks.transcription.clients import groups, read_clients, read_manifest
from tasks.transcription.report import result
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, BudgetError, InputError, LedgerError, SettingError, TerrineError
from terrine.privacy.accounting.events import RandomisedResponseEvent, RepeatedEvent
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from terrine.privacy.statement import statement_from
from tests.airlock_kits import kit_of
from tests.folder_digest import folder_digest

VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8, "test_fraction": 0.8},
    "partition": {"teachers": 4},
    "transcription": {
        "noise": "replay",
        "epsilon": 10,
        "iterations": 4,
        "batch": 12,
        "federated": True,
        "annotation": {
            "sigma": 8,
            "beta": 1.0,
            "top_k": 10,
            "limit": "clip",
            "step": 1.0,
            "distillation": "classic",
            "gradient_of": "scores",
        },
        "teacher": {"architecture": "cryptonet", "epochs": 1, "batch": 32},
        "student": {
            "architecture": "cryptonet",
            "learning_rate": 0.01,
            "loss": "squared",
            "steps": 2,
            "final_steps": 2,
        },
        "generator": {"width": 4, "latent": 4, "inputs": "fresh", "form": "intended", "activation": 0},
    },
}
ONE = {"transcription": {"federated": False}}
ANSWERS = {"transcription": {"protect": "answers", "annotation": {"sigma": None, "epsilon": 0.1, "top_k": 3}}}
LABELS = {"transcription": {"protect": "labels", "annotation": {"sigma": None, "epsilon": 2.0}, "federated": False}}


def new_run(root, *changes):
    values = VALUES
    for change in changes:
        values = merge(values, change)
    return Run(root, "trial", validate(values))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Projects with everything up to the teachers, by the settings that made them."""
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def prepared(made, tmp_path):
    """A function that returns a run with trained teachers, in a new folder."""
    folder, known = made

    def prepare(*changes, name="project"):
        run = new_run(tmp_path / name, *changes)
        transcription = run.params.transcription
        told = [transcription.federated, transcription.protect, transcription.noise, transcription.annotation.epsilon]
        key = json.dumps([*told, run.params.data.public_benchmark])
        if key not in known:
            known[key] = folder / str(len(known))
            run_through(new_run(known[key], *changes), "dataset", "teach")
        shutil.copytree(known[key], run.root)
        return run

    return prepare


def ledger_of(run):
    settings = run.params.ledger
    return Ledger(run.database(settings.url), run.path(settings.store), load_or_create_key(run.path(settings.key)))


def charges(run):
    rows = ledger_of(run).rows()
    return [sum(row.kind == kind for row in rows) for kind in ("reserve", "commit")]


class Asked:
    """Counts for which iterations clients were asked, and stops the session after some of them."""

    def __init__(self, monkeypatch, stop_after=None):
        self.iterations = []
        ask, learn = transcribe.compute_contributions, transcribe.Session.learn

        def compute_contributions(run, group, iteration, images, probabilities):
            self.iterations.append(iteration)
            return ask(run, group, iteration, images, probabilities)

        def stopping(session):
            if stop_after is not None and session.loop.iteration >= stop_after:
                session.annotation()  # charged and on disk, but not yet used for training
                raise KeyboardInterrupt
            learn(session)

        monkeypatch.setattr(transcribe, "compute_contributions", compute_contributions)
        monkeypatch.setattr(transcribe.Session, "learn", stopping)


def test_a_transcription_writes_what_may_be_published_and_charges_once(prepared):
    run = prepared()
    run_through(run, "transcribe", "evaluate")
    statement = read_json(run.folders.statement)
    statement_from(statement)
    assert statement["unit"] == "record"
    assert statement["teachers"] == 4
    assert statement["queried"] == 48
    assert statement["epsilon"] == pytest.approx(8.3855, abs=1e-3)
    assert statement["mechanism"]["mechanism"] == "annotation"
    assert not statement["private"]  # its noise is replayed
    assert read_array(run.folders.annotations / "annotations.npy").shape == (4, 12, 10)
    assert (run.folders.generator / "sheet.png").is_file()
    assert charges(run) == [1, 1]
    assert 0 <= read_json(run.folders.evaluation)["accuracy"] <= 1
    assert not run.folders.work.exists() or not any(run.folders.work.glob("transcription-*"))
    shown = [" ".join(line.split()) for line in result(run).plain.splitlines()]
    assert "ε exact, per record 8.3855 at δ = 1e-05" in shown
    assert f"ε claimed by the paper {statement['epsilon_claimed']:.4f}" in shown  # which is more
    assert "samples annotated 48 by 4 teacher(s)" in shown


def test_its_student_is_served_like_any_other(prepared):
    run = prepared()
    run_through(run, "transcribe", "transcribe")
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    for statistics in ("current", "single", "frozen"):
        answers = StudentModel.load(run.folders.student, statistics).predict(images)
        assert answers.shape == (5, 10)
        np.testing.assert_allclose(answers.sum(1), 1, rtol=1e-5)


def test_its_kit_is_verified_with_the_charge_of_its_annotations(prepared, tmp_path):
    run = prepared({"transcription": {"noise": "secure"}})
    run_through(run, "transcribe", "evaluate")
    kit, statement = kit_of(run, tmp_path / "kit"), read_json(run.folders.statement)
    [charged] = read_json(kit / "ledger.json")["releases_of_this_run"]
    assert charged["event"] == statement["event"]
    assert not {"annotations", "generator"} & {path.name for path in kit.iterdir()}


@pytest.mark.parametrize("stop_after", [0, 2])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_an_interrupted_run_asks_for_the_rest_alone_and_is_charged_once(prepared, monkeypatch, stop_after, checkpoint):
    whole, run = prepared(name="whole"), prepared(name="broken")
    run_through(whole, "transcribe", "transcribe")
    monkeypatch.setattr(transcribe, "CHECKPOINT_SECONDS", 0.0 if checkpoint else 1e9)
    with monkeypatch.context() as patch:
        first = Asked(patch, stop_after)
        with pytest.raises(KeyboardInterrupt):
            run_through(run, "transcribe", "transcribe")
    assert first.iterations == list(range(stop_after + 1))
    assert charges(run) == [1, 0]
    assert not run.folders.student.exists()
    paid = {path.name: path.read_bytes() for path in run.folders.work.glob("transcription-*/annotation-*.npy")}
    assert len(paid) == stop_after + 1
    with monkeypatch.context() as patch:
        second = Asked(patch)
        run_through(run, "transcribe", "transcribe")
    assert second.iterations == list(range(stop_after + 1, 4))
    assert charges(run) == [1, 1]
    # The keys differ, so identities do; what was released and learned is the same to the last bit.
    assert folder_digest(run.folders.student) == folder_digest(whole.folders.student)
    assert folder_digest(run.folders.generator) == folder_digest(whole.folders.generator)


def test_secure_noise_that_was_paid_for_is_kept_over_an_interruption(prepared, monkeypatch):
    """Without a seed nothing could be drawn again: the annotations on disk must be those that are released."""
    run = prepared({"transcription": {"noise": "secure"}})
    with monkeypatch.context() as patch:
        Asked(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run_through(run, "transcribe", "transcribe")
    paid = [read_array(path) for path in sorted(run.folders.work.glob("transcription-*/annotation-*.npy"))]
    run_through(run, "transcribe", "transcribe")
    np.testing.assert_array_equal(read_array(run.folders.annotations / "annotations.npy")[:3], np.stack(paid))
    assert read_json(run.folders.statement)["private"]


def test_a_release_made_again_asks_nobody_and_costs_nothing(prepared, monkeypatch):
    run = prepared({"transcription": {"noise": "secure"}})
    run_through(run, "transcribe", "transcribe")
    before = {name: folder_digest(run.folders.release / name) for name in ("annotations", "student", "generator")}
    statement = read_json(run.folders.statement)
    shutil.rmtree(run.folders.release)
    queried = Asked(monkeypatch)
    run_through(run, "transcribe", "transcribe")
    assert queried.iterations == []
    assert {name: folder_digest(run.folders.release / name) for name in before} == before
    assert read_json(run.folders.statement) == statement
    assert charges(run) == [1, 1]


def test_a_lost_draw_leaves_nothing_in_what_is_published(prepared, monkeypatch):
    """The same release under another name may be finished first; then its annotations are the ones that were paid."""
    first = prepared({"transcription": {"noise": "secure"}})
    second = Run(first.root, "twin", first.params)
    for zone in ("public", "private"):
        shutil.copytree(first.root / "data" / zone / first.name, first.root / "data" / zone / second.name)
    monkeypatch.setattr(transcribe, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        Asked(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run_through(first, "transcribe", "transcribe")
    assert list(first.folders.work.glob("transcription-*/state.safetensors"))
    run_through(second, "transcribe", "transcribe")
    run_through(first, "transcribe", "transcribe")
    assert charges(first) == [1, 1]
    for name in ("annotations", "student", "generator"):
        assert folder_digest(first.folders.release / name) == folder_digest(second.folders.release / name)


def test_a_checkpoint_of_a_loop_that_remembered_less_is_not_gone_on_from(prepared, monkeypatch):
    """Final steps decide nothing about the questions, but what the loop keeps: they may come after an interruption."""
    steps = {"transcription": {"student": {"steps": 1, "final_steps": 0}}}
    whole, run = prepared(name="whole"), prepared(steps, name="broken")
    monkeypatch.setattr(transcribe, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        Asked(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            run_through(run, "transcribe", "transcribe")
    more = {"transcription": {"student": {"steps": 1, "final_steps": 5}}}
    for each in (whole, run):
        run_through(Run(each.root, each.name, new_run(each.root, more).params), "transcribe", "transcribe")
        assert charges(each) == [1, 1]
    assert folder_digest(run.folders.student) == folder_digest(whole.folders.student)


def test_what_decides_nothing_about_the_questions_makes_no_second_release(prepared, monkeypatch):
    run = prepared({"transcription": {"noise": "secure"}})
    run_through(run, "transcribe", "transcribe")
    before = {name: folder_digest(run.folders.release / name) for name in ("annotations", "student")}
    other = {"noise": "secure", "per_task": 3, "epsilon": 12, "student": {"final_steps": 9}}
    again = Run(run.root, run.name, new_run(run.root, {"transcription": other}).params)
    queried = Asked(monkeypatch)
    run_through(again, "teach", "transcribe")  # the clients lie in other files now
    assert queried.iterations == []
    assert charges(run) == [1, 1]
    assert folder_digest(run.folders.annotations) == before["annotations"]
    assert folder_digest(run.folders.student) != before["student"]


@pytest.mark.parametrize("changes", [{}, ANSWERS], ids=["data", "answers"])
def test_clients_in_tasks_of_their_own_say_what_they_say_together(prepared, changes):
    """Gradients of groups add up exactly; answers are drawn per group, so only their shape is compared."""
    together, apart = prepared(changes, name="together"), prepared(changes, name="apart")
    apart = Run(apart.root, apart.name, new_run(apart.root, changes, {"transcription": {"per_task": 3}}).params)
    shutil.rmtree(apart.folders.teachers)
    run_through(apart, "teach", "transcribe")
    run_through(together, "transcribe", "transcribe")
    annotations = [read_array(run.folders.annotations / "annotations.npy") for run in (together, apart)]
    if changes:
        assert annotations[0].shape == annotations[1].shape
        np.testing.assert_allclose(annotations[1].sum(-1), 1, rtol=1e-6)
    else:
        np.testing.assert_array_equal(*annotations)
        assert folder_digest(together.folders.student) == folder_digest(apart.folders.student)


@pytest.mark.parametrize("architecture", ["linear", "cryptonet", "small_cnn"])
@pytest.mark.parametrize("left", [0, 1])
def test_a_client_with_too_few_records_says_that_all_classes_are_equally_likely_and_moves_nobody(
    tmp_path, architecture, left
):
    student = {"student": {"architecture": "scattering"}} if architecture == "linear" else {}
    teacher = {"teacher": {"architecture": architecture, "epochs": 1, "batch": 32}}
    run = new_run(tmp_path, {"transcription": {"per_task": 3, **teacher, **student}})
    run_through(run, "dataset", "teach")
    images = torch.from_numpy(np.array(read_dataset(run.folders).test_images[:6]))
    before = [read_clients(run, group).probabilities(images) for group in groups(run)]
    path = run.folders.partition / "assignment.npy"
    assignment = np.array(read_array(path))
    assert set(assignment) == set(range(4))
    # Move client 2's records, all but `left`, to client 99, which is never queried.
    own = np.flatnonzero(assignment == 2)[left:]
    assignment[own] = 99
    path.unlink()
    np.save(path, assignment)
    run_through(run, "teach", "teach")
    after = [read_clients(run, group).probabilities(images) for group in groups(run)]
    trained = left == 1 and architecture == "cryptonet"  # without batch normalisation one record is enough
    assert (torch.unique(after[0][2]).tolist() == [pytest.approx(0.1)]) != trained
    assert torch.equal(before[0][:2], after[0][:2])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0][2], after[0][2])


def test_answers_cost_one_event_for_every_sample(prepared):
    run = prepared(ANSWERS)
    run_through(run, "transcribe", "transcribe")
    statement = read_json(run.folders.statement)
    event = RepeatedEvent(RandomisedResponseEvent(0.1, 3), 48)
    assert statement["epsilon"] == pytest.approx(price(event, 1e-5), abs=1e-3)
    assert statement["epsilon_claimed"] == 0.1
    annotations = read_array(run.folders.annotations / "annotations.npy")
    # Means of four one-hot answers, one for each client.
    np.testing.assert_allclose(annotations * 4, np.rint(annotations * 4), atol=1e-6)


def test_labels_are_randomised_once_before_anybody_learns_from_them(prepared):
    run = prepared(LABELS)
    truth = read_array(run.folders.dataset / "train_labels.npy")
    told = read_array(run.folders.labels / "labels.npy")
    kept = float((told == truth).mean())
    expected = math.exp(2) / (math.exp(2) + 9)
    assert abs(kept - expected) < 5 * math.sqrt(expected * (1 - expected) / len(truth))
    run_through(run, "transcribe", "transcribe")
    statement = read_json(run.folders.statement)
    statement_from(statement)
    assert (statement["unit"], statement["epsilon"], statement["epsilon_claimed"]) == ("label", 2.0, None)
    assert "Only labels are protected; the records themselves are not." in statement_summary(run, private=True)
    assert charges(run) == [1, 1]
    run_through(run, "labels", "labels")
    np.testing.assert_array_equal(read_array(run.folders.labels / "labels.npy"), told)
    assert charges(run) == [1, 1]
    # Whole records have a separate account, without charges.
    assert release.ledger_account(run) not in ledger_of(run).datasets()


def test_two_records_that_nothing_but_their_labels_tells_apart_are_refused_and_nothing_is_charged(
    tmp_path, monkeypatch
):
    run = new_run(tmp_path, LABELS)
    run_through(run, "dataset", "partition")
    found = read_dataset(run.folders)
    names, images = found.record_names.copy(), np.array(found.train_images)
    names[6] = names[5]
    monkeypatch.setattr(teach, "read_dataset", lambda folders: replace(found, train_names=names, train_images=images))
    teach._check_distinguishable(teach.read_dataset(run.folders))
    images[6] = images[5]
    with pytest.raises(SettingError, match=r"Records 5 and 6 .* Remove or rename one of the files"):
        run_through(run, "labels", "labels")
    assert not run.path(run.params.ledger.store).exists()


def test_a_label_that_was_said_of_many_records_at_once_is_told_once(tmp_path, monkeypatch):
    """If each of a file's thirty frames were randomised separately, their majority would reveal the label."""
    run = new_run(tmp_path, LABELS)
    run_through(run, "dataset", "partition")
    found = read_dataset(run.folders)
    name = np.arange(found.records) // 30
    labels = found.train_labels[name * 30]
    monkeypatch.setattr(
        teach, "read_dataset", lambda folders: replace(found, train_names=name[::-1], train_labels=labels[::-1])
    )
    monkeypatch.setattr(type(run.params.data), "one_label_a_name", True)
    run_through(run, "labels", "labels")
    told = read_array(run.folders.labels / "labels.npy")[::-1]
    assert all(len(np.unique(told[name == number])) == 1 for number in np.unique(name))
    kept = (told == labels)[::30]
    assert 0.1 < 1 - kept.mean() < 0.9


def statement_summary(run, *, private):
    from dataclasses import replace

    from terrine.privacy.statement import summarise

    statement = statement_from(read_json(run.folders.statement))
    return summarise(replace(statement, noise="secure") if private else statement)


@pytest.mark.parametrize(
    "changes",
    [
        {"transcription": {"noise": "none", "annotation": {"sigma": 0}, "federated": False}},
        {"transcription": {"generator": {"discriminator": "teacher"}, "federated": False}},
    ],
    ids=["without noise", "teacher as discriminator"],
)
def test_what_guarantees_nothing_says_so(prepared, changes):
    run = prepared(changes)
    run_through(run, "transcribe", "transcribe")
    statement = read_json(run.folders.statement)
    assert not statement["private"]
    assert statement["epsilon"] is None
    assert "NOT PRIVATE" in statement["warning"]
    assert "NOT PRIVATE" in run.folders.statement.with_name("statement.html").read_text()


def test_a_budget_over_all_runs_refuses_before_anything_is_drawn(prepared):
    private = {
        "data": {"public_benchmark": False},
        "ledger": {"epsilon": 5.0, "account": "trial"},
        "transcription": {"noise": "secure"},
    }
    run = prepared(private)
    with pytest.raises(BudgetError, match="past its budget"):
        run_through(run, "transcribe", "transcribe")
    assert charges(run) == [0, 0]
    assert not list(run.folders.work.glob("transcription-*/annotation-*"))


def test_replayed_noise_is_refused_for_data_that_are_not_public(prepared):
    from terrine.errors import LedgerError

    private = {
        "data": {"public_benchmark": False},
        "ledger": {"epsilon": 20.0, "account": "trial"},
    }
    with pytest.raises(LedgerError, match="Replayed noise"):
        run_through(prepared(private), "transcribe", "transcribe")


@pytest.mark.parametrize(
    ("before", "changes", "what"),
    [
        ((), ({"seed": 7},), "partition"),
        ((), ONE, "partition"),
        (ONE, ({"transcription": {"teacher": {"epochs": 2}}},), "teachers"),
        # Clients that learnt from the true labels would answer about them without any noise.
        (ONE, LABELS, "teachers"),
        (LABELS, {"transcription": {"annotation": {"epsilon": 0.5}}}, "labels"),
    ],
    ids=["seed", "one", "epochs", "labels", "other labels"],
)
def test_clients_of_other_settings_answer_in_no_stage_that_is_run_alone(prepared, before, changes, what):
    before, changes = (given if isinstance(given, tuple) else (given,) for given in (before, changes))
    made = prepared(*before)
    run = new_run(made.root, *before, *changes)
    if run.params.transcription.protect == "labels":
        learnt = made.root / "learnt"
        shutil.copytree(run.folders.labels, learnt)
        run_through(run, "labels", "labels")
        if what == "labels":
            shutil.rmtree(run.folders.labels)
            learnt.rename(run.folders.labels)
    with pytest.raises(ArtefactError, match=rf"The {what} of trial were made with other settings.*was released"):
        run_through(run, "transcribe", "transcribe")
    assert not run.folders.annotations.exists()


def test_errors_come_before_any_work(tmp_path):
    run = new_run(tmp_path, {"transcription": {"annotation": {"top_k": 11}}})
    run_through(run, "dataset", "dataset")
    with pytest.raises(SettingError, match="top_k=11, but the data have 10 classes"):
        run_through(run, "partition", "partition")
    run = new_run(tmp_path, {"transcription": {"annotation": {"sigma": 1}}})
    with pytest.raises(BudgetError, match=r"annotation\.sigma to"):
        run_through(run, "partition", "partition")
    run = new_run(tmp_path, LABELS, {"transcription": {"annotation": {"epsilon": 12.0}}})
    with pytest.raises(BudgetError):
        run_through(run, "labels", "labels")
    assert charges(run) == [0, 0]
    run = new_run(tmp_path, {"transcription": {"teacher": {"architecture": "resnet9000"}}})
    with pytest.raises(SettingError, match=r"transcription\.teacher\.architecture=resnet9000 is unknown. Take one of"):
        run_through(run, "partition", "partition")
    run = new_run(tmp_path, ONE, {"transcription": {"teacher": {"file": "gone.pt", "public": True}}})
    with pytest.raises(InputError, match=r"Point transcription\.teacher\.file at"):
        run_through(run, "partition", "partition")
    from terrine.models.architecture import build_backbone
    from terrine.teachers.network_training import Classifier

    backbone = build_backbone("cryptonet", channels=1, size=8, seed=0)
    torch.save(Classifier(backbone.network, backbone.feature_dim, 7, 0).state_dict(), tmp_path / "seven.pt")
    run = new_run(tmp_path, {"transcription": {"federated": False, "teacher": {"file": "seven.pt", "public": True}}})
    with pytest.raises(InputError, match=r"does not fit .* for 10 classes"):
        run_through(run, "partition", "partition")
    assert not run.folders.partition.exists()


def test_a_teacher_from_a_file_is_transcribed(tmp_path):
    from terrine.models.architecture import build_backbone
    from terrine.teachers.network_training import Classifier

    backbone = build_backbone("cryptonet", channels=1, size=8, seed=0)
    tmp_path.joinpath("project").mkdir()
    torch.save(Classifier(backbone.network, backbone.feature_dim, 10, 0).state_dict(), tmp_path / "project/ten.pt")
    run = new_run(tmp_path / "project", ONE, {"transcription": {"teacher": {"file": "ten.pt", "public": True}}})
    run_through(run, "dataset", "transcribe")
    assert read_manifest(run)["source"] == "file"
    assert read_json(run.folders.statement)["teachers"] == 1
    teach.check_before_work(run)
    assert run.folders.teachers.is_dir()
    torch.save(Classifier(backbone.network, backbone.feature_dim, 10, 1).state_dict(), tmp_path / "project/ten.pt")
    teach.check_before_work(run)
    assert not run.folders.teachers.exists()


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("torchvision:vit_b_16", "takes no images of 8 × 8 pixels"),
        ("timm:vit_tiny_patch16_224", "takes no images of 8 × 8 pixels"),
        ("torchvision:ssd300_vgg16", "no such model that classifies"),
    ],
)
def test_an_architecture_that_cannot_look_at_the_images_is_refused_before_any_work(tmp_path, architecture, message):
    file = {"file": "never-read.pt", "architecture": architecture, "public": True}
    run = new_run(tmp_path, ONE, {"transcription": {"teacher": file}})
    run_through(run, "dataset", "dataset")
    with pytest.raises(SettingError, match=message):
        run_through(run, "partition", "partition")


def test_the_stages_of_the_main_pipeline_do_not_take_a_transcription(prepared):
    run = prepared()
    with pytest.raises(TerrineError, match=r"no stage 'vote', only parameters, dataset, partition, labels,"):
        run_through(run, "vote", "aggregate")
    assert not ledger_of(run).rows()


PRIVATE = {
    "data": {"public_benchmark": False},
    "ledger": {"epsilon": 200.0, "account": "people"},
    "tracking": {"private_metrics": False},
    "transcription": {"noise": "secure"},
}


@pytest.mark.parametrize("first", ["labels", "records"])
def test_on_one_budget_labels_and_whole_records_exclude_one_another(prepared, first):
    def released(changes, name, start):
        run = prepared(changes, PRIVATE, name=name)
        # One ledger for both.
        for part in ("key", "releases", "ledger.db"):
            own = run.root / "data/private/ledger" / part
            other = start and start.root / "data/private/ledger" / part
            if other:
                shutil.rmtree(own, ignore_errors=True) if own.is_dir() else own.unlink(missing_ok=True)
                (shutil.copytree if other.is_dir() else shutil.copy)(other, own)
        return run

    order = [LABELS, {}] if first == "labels" else [{}, LABELS]
    start = released(order[0], "first", None)
    release.open_account(start)
    later = released(order[1], "second", start)
    with pytest.raises(LedgerError, match="do not add up"):
        release.open_account(later)


def test_a_record_more_with_one_client_moves_no_other(tmp_path):
    from tasks.artefacts.records import read_dataset

    linear = {
        "transcription": {
            "teacher": {"architecture": "linear"},
            "student": {"architecture": "scattering", "projection": 8, "invariance": False},
        }
    }
    run = new_run(tmp_path, linear)
    run_through(run, "dataset", "start")
    dataset = read_dataset(run.folders)
    # Clients large enough for several batches, whose cut would move with the records before them.
    many = 3 * teach.TEST_BATCH
    images = np.resize(dataset.train_images, (3 * many, *dataset.train_images.shape[1:]))
    labels = np.resize(dataset.train_labels, 3 * many)
    assignment = np.repeat(np.arange(3), many)

    def heads(*, more):
        extra = [0] if more else []
        grown = replace(dataset, train_images=np.concatenate([images, images[extra]]))
        whose = np.append(assignment, np.zeros(len(extra), np.int64))
        told = np.append(labels, labels[extra])
        found = teach._linear_heads(run, grown, told, whose, range(3), torch.device("cpu"))
        return found["weight"]

    before, after = heads(more=False), heads(more=True)
    assert np.abs(after[0] - before[0]).max() > 0
    np.testing.assert_allclose(after[1:], before[1:], atol=1e-6)
