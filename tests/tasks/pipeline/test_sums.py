"""Runs whose records are summed: through all stages to a student that answers single images, charged exactly once."""

import shutil

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts import features
from tasks.auditing.mechanisms import audit
from tasks.config.params import merge_overrides, validate
from tasks.pipeline import mlflow_logging, sums
from tasks.pipeline.figures.tables import write_metrics, write_plots
from tasks.pipeline.report import write_report
from tasks.reports import comparison
from tasks.reports.comparison import compared
from tasks.reports.summary import for_anybody, result
from tasks.runtime.accounts import open_account
from tasks.runtime.release_identity import release_digest
from tasks.runtime.releases import record_audit
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_tensors, write_text
from tasks.tools import ledger as ledger_table
from terrine.aggregation.records import Records
from terrine.aggregation.sums import mu_left
from terrine.deployment.model import StudentModel
from terrine.errors import SettingError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise

VALUES = {
    "data": {"name": "digits", "size": 16},
    "partition": {"teachers": 7},
    "queries": {"count": 200, "batch": 50, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "backbone": {"kind": "scattering", "projection": 40},
    "aggregation": {"mechanism": "moments", "epsilon": 8},
    "student": {"kind": "sums"},
    "device": "cpu",
}


def run_of(root, changes=None):
    return Run(root, "sums", validate(merge_overrides(VALUES, changes or {})))


@pytest.mark.parametrize(
    "changes", [{"aggregation": {"mechanism": "gradients", "rounds": 8}}, {"privacy": {"moments": 0.1}}]
)
def test_a_run_says_what_it_released_and_its_student_answers_each_image_by_itself(tmp_path, changes, monkeypatch):
    run = run_of(tmp_path, changes)
    run_through(run, "dataset", "evaluate")
    said = read_json(run.folders.statement)
    sums = read_tensors(run.folders.answers / "sums.safetensors")
    length = len(sums["second"])
    numbers = length * (length + 1) // 2 + sums["labels"].size + (sums["gradients"].size if "gradients" in sums else 0)
    assert said["mechanism"]["numbers"] == numbers
    assert f"This covers {numbers:,} noisy sums over all records" in said["summary"]
    assert not any(word in said["neighbouring"] + said["trust_model_text"] for word in ("teacher", "vote"))
    assert said["private"]
    assert said["epsilon"] == pytest.approx(8, abs=1e-4)
    assert said["epsilon_added"] < 0.75 * said["epsilon"] <= 6
    ledger, account = open_account(run)
    assert len(ledger.events(account)) == 1 + ("privacy" in changes)
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    monkeypatch.setattr(ledger_table, "open_run", lambda root, name: run)
    kinds = [release["kind"] for release in ledger_table.overview(ledger, {})[0]["releases"]]
    assert kinds == [*["moments"][: "privacy" in changes], f"{run.params.aggregation.mechanism} of records"]
    assert read_json(run.folders.evaluation)["accuracy"] > 0.75
    student = StudentModel.load(run.folders.student)
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 16, 16), dtype=np.uint8)
    assert student.statistics == "original"
    assert (student.predict(images)[4] == student.predict(images[4:5])[0]).all()
    write_text(tmp_path / "experiments" / "sums.yaml", "description: sums\n")
    write_report.fn(run)
    page = run.folders.report.read_text()
    assert "nobody voted" in page
    errors = read_json(run.folders.private / "errors.json")
    assert errors["without_noise"]["with_noise"] == pytest.approx(read_json(run.folders.evaluation)["accuracy"])
    assert f"{100 * errors['without_noise']['accuracy']:.2f} % without noise" in " ".join(page.split())
    assert page.count("a misclassified image of") == len(errors["wrong"]) > 0
    for strange in ("How the teachers voted", "Records per teacher", "never saw some class", "Labels of the teachers"):
        assert strange not in page
    monkeypatch.setattr(comparison, "open_run", lambda root, name: run)
    (row,) = compared(tmp_path, [run.name])
    assert (row.teachers, row.answered, row.queries) == (None, None, None)
    assert row.epsilon_added == said["epsilon_added"]
    assert mlflow_logging._metrics(run, said)["epsilon_added"] == said["epsilon_added"]
    write_metrics.fn(run)
    assert read_json(run.folders.metrics)["epsilon_added"] == said["epsilon_added"]
    assert "answered" not in read_json(run.folders.metrics)
    write_plots.fn(run)
    assert (run.folders.plots / "classes.csv").read_text().splitlines() == ["class,answers"]
    assert for_anybody(run)["noisy sums released"] == f"{numbers:,}"
    assert "teachers" not in for_anybody(run)
    assert "added up over all records" in run.folders.statement.with_name("statement.html").read_text()
    assert "one record only added or removed" in run.folders.statement.with_name("statement.html").read_text()
    assert {"noisy sums released", "ε if a record is only added or removed"} <= {
        line.strip().rsplit("  ", 1)[0].strip() for line in result(run).plain.splitlines()
    }


@pytest.mark.parametrize("mechanism", [{"mechanism": "moments"}, {"mechanism": "gradients", "rounds": 3, "clip": 0.5}])
def test_a_run_draws_the_noise_that_its_ledger_charges(tmp_path, monkeypatch, mechanism):
    plain, drawn = ReplayNoise.gaussian, []

    def noted(self, shape, sigma):
        drawn.append(sigma)
        return plain(self, shape, sigma)

    monkeypatch.setattr(ReplayNoise, "gaussian", noted)
    run = run_of(tmp_path, {"aggregation": {**mechanism, "noise": "replay"}})
    run_through(run, "dataset", "aggregate")
    ledger, account = open_account(run)
    (charged,) = ledger.events(account)
    moments, gradients = drawn[0], drawn[-3:] if "rounds" in mechanism else []
    spent = 4.5 / moments**2 + sum(1 / sigma**2 for sigma in gradients)
    assert spent == pytest.approx(mu_squared(charged))


def check_vectors_are_kept(run, monkeypatch):
    """Cut short, the pass over the records goes on where it was, and its vectors are those of one pass."""
    made, whole = [], sums.load_summed_records(run).vectors[:]
    shutil.rmtree(run.folders.work)
    plain = features.features_one_by_one

    def counted(backbone, images, then, order):
        made.append(order[0])
        if len(made) == 3:
            raise KeyboardInterrupt
        return plain(backbone, images, then, order)

    with monkeypatch.context() as patch:
        patch.setattr(features, "features_one_by_one", counted)
        patch.setattr(features, "_ROWS", 512)
        with pytest.raises(KeyboardInterrupt):
            sums.load_summed_records(run)
        assert (sums.load_summed_records(run).vectors == whole).all()
    assert made == [0, 512, 1024, 1024]


def test_a_crash_between_rounds_leaves_the_reservation_and_repeats_no_release(tmp_path, monkeypatch):
    run = run_of(tmp_path, {"aggregation": {"mechanism": "gradients", "rounds": 3}})
    run_through(run, "dataset", "vote")
    check_vectors_are_kept(run, monkeypatch)
    plain, rounds = Records.gradients, []

    def dies(self, *arguments):
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(Records, "gradients", dies)
    with pytest.raises(KeyboardInterrupt):
        run_through(run, "aggregate", "aggregate")
    assert not run.folders.statement.exists()
    ledger, account = open_account(run)
    reserved = ledger.events(account)
    run_through(run, "aggregate", "aggregate")
    assert len(rounds) == 2 + 3 + 3  # the last three without noise, for the report
    released = (run.folders.answers / "sums.safetensors").read_bytes()
    (exact,) = run.folders.accounting.glob("exact-head-*")
    before = exact.read_bytes()
    run_through(run, "aggregate", "aggregate")
    assert len(rounds) == 2 + 3 + 3
    assert exact.read_bytes() == before
    assert (run.folders.answers / "sums.safetensors").read_bytes() == released
    assert ledger.events(account) == reserved == [from_json(read_json(run.folders.statement)["event"])]


def test_whoever_sees_progress_does_not_see_how_many_records_there_are(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(features, "_ROWS", 512)
    monkeypatch.setattr(sums, "progress_reporter", lambda run, key: lambda share, text: said.append((share, text)))
    run_through(run_of(tmp_path), "dataset", "aggregate")
    assert said == [(0.3, "features"), (0.7, "features"), (1.0, "features")]


def test_sums_that_their_noise_drowns_are_refused_before_anything_is_charged(tmp_path):
    few = {
        "data": {"public_benchmark": False},
        "queries": {"count": 50, "batch": 25},
        "aggregation": {"epsilon": 0.02},
        "ledger": {"account": "clinic", "epsilon": 8},
    }
    run = run_of(tmp_path, few)
    with pytest.raises(SettingError, match=r"records are too few for 10 classes at ε = 0\.02: .* ε = \d"):
        run_through(run, "dataset", "aggregate")
    ledger, account = open_account(run)
    assert not ledger.events(account)
    run_through(run_of(tmp_path, few | {"privacy": {"anyway": True}}), "aggregate", "aggregate")
    assert len(ledger.events(account)) == 1


def test_who_would_have_taught_and_what_student_comes_of_it_are_no_part_of_the_release(tmp_path):
    plain = release_digest(run_of(tmp_path).params)
    assert release_digest(run_of(tmp_path, {"partition": {"teachers": 9}, "teachers": {"ridge": 1.0}}).params) == plain
    assert release_digest(run_of(tmp_path, {"backbone": {"projection": 50}}).params) != plain
    assert release_digest(run_of(tmp_path, {"aggregation": {"epsilon": 2}}).params) != plain


GRADIENTS = {"aggregation": {"mechanism": "gradients"}}
VOTES = {"aggregation": {"mechanism": "histogram", "sigma": 9}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"student": {"statistics": "current"}}, "one record would change the features of its whole batch"),
        ({**GRADIENTS, "student": {"kind": "linear"}}, "Remove student.kind"),
        ({**VOTES, "student": {"kind": "sums"}}, "each chooses the other"),
        ({"teachers": {"kind": "averaged", "clip": 1.0, "budget_share": 0.5}}, "no teacher is trained"),
        ({"transcription": {"annotation": {"sigma": 10}}}, "a transcription releases annotations"),
        ({"queries": {"rounds": 2}}, "no query is asked"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(tmp_path, changes, words):
    with pytest.raises(SettingError, match=words):
        run_of(tmp_path, changes)


def test_a_statement_quotes_the_audit_of_its_own_mechanism_at_its_own_budget_and_no_other(tmp_path):
    run = run_of(tmp_path)
    run_through(run, "dataset", "pretrain")
    found = audit(run.params.aggregation, noise=ReplayNoise(0), runs=20, mu=mu_left(8.0, 1e-5))
    record_audit(run, found)
    run_through(run, "partition", "aggregate")
    assert read_json(run.folders.statement)["audit_epsilon"] == pytest.approx(found["epsilon"], abs=1e-3)
    record_audit(run, found | {"mu": mu_left(2.0, 1e-5)})
    run_through(run, "aggregate", "aggregate")
    assert read_json(run.folders.statement)["audit_epsilon"] is None
