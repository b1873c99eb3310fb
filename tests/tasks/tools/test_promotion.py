"""A student becomes the champion where its statement verifies and the ledger agrees, and nowhere else."""

import shutil

import numpy as np
import pandas as pd
import pytest

from tasks.config.params import validate
from tasks.reports.statement_page import render_technical_page
from tasks.runtime.accounts import open_account, site_signing_key
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json, write_table
from tasks.serving import pages
from tasks.tools.promotion import check_ledger, promote
from terrine.deployment.manifest import check_seal
from terrine.errors import ArtefactError, LedgerError, SettingError
from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
from tests.student_folders import make_statement, make_student

ANSWERS = RepeatedEvent(vote_answer(40.0), 100)
LABELS = np.zeros(100, dtype=np.int64)


def released(root, noise="secure"):
    """A run of which the ledger and the release zone have what a pipeline would leave of it, signed."""
    run = Run(root, "clinic", validate({"data": {"public_benchmark": True}, "ledger": {"account": "clinic"}}))
    ledger, account = open_account(run)
    ledger.release(
        dataset=account,
        release_id="01",
        run=run.name,
        worst_case=ANSWERS,
        delta=1e-5,
        noise_kind=noise,
        draw=lambda: ({"labels": LABELS, "answered": np.ones(100, dtype=bool)}, ANSWERS),
    )
    folders = run.folders
    content = make_statement(make_student(folders.student, "small_cnn"), dataset=account, noise=noise)
    write_json(folders.statement, content)
    classes = check_seal(folders.student)["class_names"]
    (folders.release / "statement.html").write_text(render_technical_page(content, classes))
    write_table(folders.answers / "answers.parquet", pd.DataFrame({"label": LABELS}))
    in_batches = {"statistics": "current", "accuracy": 0.75}
    write_json(folders.evaluation, {"accuracy": 0.5, "in_batches": in_batches, "per_class": []})
    sign(run)
    return run


def sign(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "render_pdf", lambda html: b"%PDF")
        pages.write_pages(run.folders.release, ["en"], site_signing_key(run))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return released(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made.root, tmp_path / "project")
    return Run(tmp_path / "project", made.name, made.params)


def statement(run):
    return read_json(run.folders.statement)


def test_the_ledger_that_released_it_agrees(run):
    check_ledger(run, statement(run))


def test_a_ledger_that_knows_another_release_account_noise_or_price_does_not(run, tmp_path):
    content = statement(run)
    for change, said in (
        ({"release_id": "02"}, "has not committed"),
        ({"dataset": "23"}, "another account"),
        ({"noise": "replay"}, "other noise"),
    ):
        with pytest.raises(LedgerError, match=said):
            check_ledger(run, content | change)
    with pytest.raises(LedgerError, match="no ledger here"):
        check_ledger(Run(tmp_path / "elsewhere", run.name, run.params), content)
    cheaper = content | {"event": {"event": "repeated", "of": content["event"]["of"], "count": 99}}
    with pytest.raises(LedgerError, match="charged more"):
        check_ledger(run, cheaper)


def test_a_release_that_is_reserved_and_not_committed_is_not_in_the_ledger(run):
    ledger, account = open_account(run)
    with pytest.raises(ZeroDivisionError):
        ledger.release(
            dataset=account, release_id="02", run="clinic", worst_case=ANSWERS, delta=1e-5, noise_kind="secure",
            draw=lambda: 1 / 0,
        )  # fmt: skip
    with pytest.raises(LedgerError, match="has not committed"):
        check_ledger(run, statement(run) | {"release_id": "02"})
    with pytest.raises(LedgerError, match="not committed"):
        ledger.stored("02")


def test_a_damaged_ledger_and_other_answers_than_it_keeps_are_found(run):
    write_table(run.folders.answers / "answers.parquet", pd.DataFrame({"label": LABELS + 1}))
    with pytest.raises(LedgerError, match="not those that the ledger keeps"):
        check_ledger(run, statement(run))
    stored = next(run.path(run.params.ledger.store).glob("*.npz"))
    stored.chmod(0o600)
    stored.write_bytes(stored.read_bytes()[:-9])
    with pytest.raises(LedgerError, match="changed by hand or cut short"):
        check_ledger(run, statement(run))


def test_what_is_not_signed_or_does_not_verify_is_refused(run):
    page = run.folders.release / "statement-en.html"
    page.write_text(page.read_text() + " ")
    with pytest.raises(ArtefactError, match=r"statement-en\.html: It differs from the signed one"):
        promote(run)
    (run.path(run.params.ledger.key).with_name("signing.pem")).unlink()
    with pytest.raises(ArtefactError, match=r"signature: It was signed with the key"):
        promote(run)
    (run.folders.release / "signature.json").unlink()
    with pytest.raises(ArtefactError, match="terrine statement clinic --sign"):
        promote(run)


def test_a_run_that_is_not_private_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"clinic is not promoted\. NOT PRIVATE"):
        promote(released(tmp_path, noise="replay"))


def test_a_run_that_the_ledger_does_not_know_is_refused(run):
    content = statement(run)
    ledger = run.path(run.params.ledger.store).parent
    key = (ledger / "key").read_bytes()
    signing = (ledger / "signing.pem").read_bytes()
    shutil.rmtree(ledger)
    ledger.mkdir(mode=0o700)
    for name, kept in (("key", key), ("signing.pem", signing)):
        (ledger / name).write_bytes(kept)
        (ledger / name).chmod(0o600)
    open_account(run)
    assert content["private"]
    with pytest.raises(LedgerError, match="has not committed"):
        promote(run)
