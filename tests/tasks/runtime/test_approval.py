"""Approval of releases before their noise is drawn: what it covers, and how it is attacked."""

import contextlib
import re
import shutil
import sqlite3
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flows.stages import run_through
from tasks.config.params import merge_overrides, validate
from tasks.pipeline import aggregate
from tasks.pipeline.approvals import expect_sums, propose_accuracy, propose_answers
from tasks.reports.statement_page import correct_guesses
from tasks.runtime.accounts import ledger_before, open_account, site_key, site_signing_key
from tasks.runtime.approval import (
    ReleaseRefused,
    decide,
    describe_request,
    describe_state,
    pending,
    refuse_uncovered,
    require_approval,
)
from tasks.runtime.decisions import DECISION, REQUEST, ApprovalNeeded, subject
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, write_array, write_json
from tasks.serving.verification import verify_statement
from terrine.deployment.signature import fingerprint, sign_approval
from terrine.errors import ArtefactError, BudgetError, InputError, LedgerError, SettingError
from terrine.privacy.statement import read_statement

STEWARD, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SIGNED = ("public_key", "signature")
VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "partition": {"teachers": 20},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1, "dead_leaves": 1}},
    "backbone": {"projection": 30},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2},
    "release": {"approval": "required", "approvers": [fingerprint(STEWARD.public_key())]},
}


def run_with(root, name="small", **sections):
    return Run(root, name, validate(merge_overrides(VALUES, sections)))


@pytest.fixture(scope="module")
def voted_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    run_through(run_with(root), "dataset", "vote")
    return root


@pytest.fixture
def run(voted_once, tmp_path):
    """A run whose votes are on disk."""
    shutil.copytree(voted_once, tmp_path, dirs_exist_ok=True)
    return run_with(tmp_path)


def ask(run):
    require_approval(run, propose_answers(run))


def asked(run):
    with pytest.raises(ApprovalNeeded) as needed:
        ask(run)
    return str(needed.value)


def approve(run, key=STEWARD, **about):
    return decide(run, key, "approved", **{"role": "data steward", "name": "Ada", "why": "fit for use"} | about)


def release(run):
    aggregate.release_answers.fn(run)


def charged(run):
    ledger, account = open_account(run)
    return len(ledger.events(account))


def rows_of(run, *kinds):
    ledger = ledger_before(run)
    return [] if ledger is None else ledger.recorded(*kinds)


def test_a_release_is_asked_for_approved_drawn_once_and_stated(run):
    told = asked(run)
    assert "ε = 1.9" in told
    assert "terrine release approve small" in told
    assert "signal" in told
    with pytest.raises(ApprovalNeeded, match="is not approved"):
        release(run)
    assert charged(run) == 0
    approval = approve(run)
    assert approve(run) == approval
    ask(run)
    release(run)
    release(run)
    assert charged(run) == 1
    stated = read_statement(run.folders.statement)["approval"]
    assert (stated["role"], stated["signer"]) == ("data steward", "person")
    [check] = [check for check in verify_statement(run.folders.release) if check.what == "approval"]
    assert check.holds
    assert fingerprint(STEWARD.public_key()) in check.detail
    published = run.folders.statement.read_text() + (run.folders.release / "statement.html").read_text()
    assert "data steward" in published
    assert "Ada" not in published
    assert "fit for use" not in published
    for decision in ("refused", "approved"):
        with pytest.raises(InputError, match="drawn already"):
            decide(run, STEWARD, decision, role="data steward")
    assert [row.kind for row in rows_of(run, REQUEST, DECISION)] == [REQUEST, DECISION]


def test_nothing_is_asked_without_the_setting(run):
    free = run_with(run.root, release={"approval": "none"})
    ask(free)
    release(free)
    assert read_statement(run.folders.statement)["approval"] is None
    assert rows_of(free, REQUEST, DECISION) == []
    ask(run)  # the release exists, and repeating it needs no approval


def change_a_vote(run):
    votes = read_array(run.folders.votes / "votes.npy")
    votes[3, 7] = (votes[3, 7] + 1) % 10
    write_array(run.folders.votes / "votes.npy", votes)


def change_manifest(folder, **values):
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | values)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (change_a_vote, "the votes"),
        (lambda run: change_manifest(run.folders.dataset, fingerprint="another"), "the records"),
        (lambda run: change_manifest(run.folders.partition, hash="another"), "the partition"),
        ({"aggregation": {"sigma": 21}}, "aggregation.sigma"),
        ({"data": {"edition": "2"}}, "edition (1 → 2)"),
        ({"about": {"purpose": "triage"}}, "about.purpose"),
        ({"ledger": {"epsilon": 5}}, "budget"),
        ({"ledger": {"account": "others", "epsilon": 5}}, "the account"),
        ({"evaluation": {"epsilon": 1}}, "evaluation.epsilon"),
        ({"aggregation": {"delta": 1e-6}}, "delta"),
    ],
)
def test_an_approval_holds_for_nothing_else(run, change, told):
    asked(run)
    approve(run)
    changed = run_with(run.root, **change) if isinstance(change, dict) else run
    if not isinstance(change, dict):
        change(run)
    if changed.params.ledger.epsilon and not changed.params.ledger.account:
        ledger, account = open_account(run)
        ledger.set_budget(account, 5)
    message = asked(changed)
    assert "approved on" in message
    assert told in message.partition("since then changed")[2].splitlines()[0]


def test_what_was_changed_back_needs_no_second_approval_and_each_statement_names_its_own(run):
    asked(run)
    approve(run, role="first")
    votes = read_array(run.folders.votes / "votes.npy").copy()
    change_a_vote(run)
    asked(run)
    approve(run, role="second")
    write_array(run.folders.votes / "votes.npy", votes)
    ask(run)
    release(run)
    assert read_statement(run.folders.statement)["approval"]["role"] == "first"


def test_a_refusal_for_another_purpose_does_not_end_an_approval_nor_the_reverse(run):
    asked(run)
    approve(run)
    other = run_with(run.root, about={"purpose": "advertising"})
    with pytest.raises(ApprovalNeeded):
        release(other)
    asked(other)
    decide(other, STEWARD, "refused", role="data steward", why="not this purpose")
    with pytest.raises(ApprovalNeeded):
        release(other)
    ask(run)
    release(run)
    assert charged(run) == 1


def test_no_statement_quotes_an_approval_of_another_purpose(run):
    asked(run)
    approve(run)
    release(run)
    release(run_with(run.root, about={"purpose": "advertising"}))
    assert read_statement(run.folders.statement)["approval"] is None
    release(run)
    assert read_statement(run.folders.statement)["approval"]["role"] == "data steward"
    assert charged(run) == 1


RESTORED = r"about\.purpose changed after the approval[\s\S]*--set about\.purpose=null"


def test_nothing_is_signed_that_states_another_purpose_than_the_approval(run):
    asked(run)
    approve(run)
    release(run)
    identity, said = read_json(run.folders.statement)["release_id"], read_json(run.folders.statement)
    refuse_uncovered(run, identity, said)
    other = run_with(run.root, about={"purpose": "advertising"})
    with pytest.raises(InputError, match=RESTORED):
        refuse_uncovered(other, identity, said)  # the settings changed
    release(other)
    with pytest.raises(InputError, match=RESTORED):
        refuse_uncovered(other, identity, read_json(run.folders.statement))
    for forged in (
        read_json(run.folders.statement),  # the settings were restored, but not the statement
        said | {"facts": read_json(run.folders.statement)["facts"] | {"about": {"purpose": "advertising"}}},
        said | {"approval": None},
        said | {"approval": said["approval"] | {"role": "director"}},
    ):
        with pytest.raises(InputError, match="states something else"):
            refuse_uncovered(run, identity, forged)
    # An approval or a decision for the other purpose comes too late, even if someone writes it into the ledger.
    ledger, account = open_account(run)
    [asked_for] = rows_of(run, REQUEST)
    row = ledger.record(REQUEST, account, asked_for.content | {"about": other.params.about.model_dump()})
    key, content = site_key(run), {name: value for name, value in said["approval"].items() if name not in SIGNED}
    late = sign_approval(STEWARD, content | {"subject": subject(key, row.content, "", "")})
    forge(run, late, row.position)
    with pytest.raises(InputError, match=RESTORED):
        refuse_uncovered(other, identity, read_json(run.folders.statement))
    refuse_uncovered(run, identity, said)
    # Without the rows, or without the ledger, there is no approval.
    (run.root / "data" / "private" / "ledger" / "ledger.db").unlink()
    with pytest.raises((InputError, LedgerError)):
        refuse_uncovered(run, identity, said)


def test_a_release_that_was_drawn_without_an_approval_is_not_signed_later(run):
    free = run_with(run.root, release={"approval": "none"})
    release(free)
    said = read_json(run.folders.statement)
    refuse_uncovered(free, said["release_id"], said)
    with pytest.raises(InputError, match="drawn without an approval"):
        refuse_uncovered(run, said["release_id"], said)


def test_an_approval_of_another_purpose_that_was_then_refused_covers_nothing(run):
    asked(run)
    approve(run)
    other = run_with(run.root, about={"purpose": "advertising"})
    asked(other)
    approve(other)
    decide(other, STEWARD, "refused", role="data steward", why="on second thoughts")
    release(run)
    said = read_json(run.folders.statement)
    refuse_uncovered(run, said["release_id"], said)
    with pytest.raises(InputError, match=r"about\.purpose changed"):
        refuse_uncovered(other, said["release_id"])


def test_nobody_is_asked_for_more_than_the_budget(run):
    poor = run_with(run.root, ledger={"account": "poor", "epsilon": 1})
    with pytest.raises(BudgetError, match=r"past its budget of ε=1[\s\S]*This fits"):
        ask(poor)
    assert rows_of(run, REQUEST) == []
    asked(run)
    ledger, account = open_account(run)
    ledger.set_budget(account, 1)
    row = ledger.record(REQUEST, account, rows_of(run, REQUEST)[0].content | {"budget": 1})
    balance = dict(describe_request(run, ledger, row.content))["balance"]
    assert "MORE THAN THE BUDGET" in balance


def test_a_request_states_in_words_what_is_released_and_how_little_it_protects(run):
    told = asked(run_with(run.root, about={"one_per_person": True}))
    assert "answers, for the classes 0, 1, 2" in told
    assert "one record per person: yes" in told
    approve(run)
    release(run_with(run.root, about={"one_per_person": True}))
    guesses = correct_guesses(read_json(run.folders.statement))
    assert f"at most {guesses:g} of 100 guesses" in told


def test_votes_that_change_between_check_and_draw_are_refused_by_the_ledger(run):
    asked(run)
    approve(run)
    ask(run)
    change_a_vote(run)
    with pytest.raises(ApprovalNeeded, match="is not approved"):
        release(run)
    assert charged(run) == 0


def test_a_refusal_stays_until_the_settings_change_or_it_is_approved(run):
    asked(run)
    decide(run, STEWARD, "refused", role="data steward", why="no purpose")
    for _ in range(2):
        with pytest.raises(ReleaseRefused, match=r"refused on .* by the role 'data steward'"):
            ask(run)
    with pytest.raises(ApprovalNeeded):
        release(run)
    assert "was refused" in describe_state(run)
    other = run_with(run.root, about={"purpose": "triage"})
    asked(other)
    assert pending(run)[1].content["about"]["purpose"] == "triage"
    with pytest.raises(ReleaseRefused):
        ask(run)
    assert pending(run)[1].content["about"]["purpose"] is None
    assert charged(run) == 0
    approve(run)
    ask(run)
    asked(other)


def test_a_refusal_of_more_neither_forbids_the_rest_nor_leaves_it_approved(run):
    asked(run)
    approve(run)
    more = run_with(run.root, evaluation={"epsilon": 1})
    asked(more)
    decide(more, STEWARD, "refused", role="data steward", why="no accuracy")
    asked(run)
    with pytest.raises(ApprovalNeeded):
        release(run)
    approve(run)
    ask(run)
    with pytest.raises(ReleaseRefused):
        ask(more)
    release(run)
    assert charged(run) == 1


def test_the_last_decision_counts(run):
    asked(run)
    approve(run)
    decide(run, STEWARD, "refused", role="data steward", why="on second thoughts")
    with pytest.raises(ReleaseRefused):
        ask(run)
    with pytest.raises(ApprovalNeeded):
        release(run)
    approve(run)
    release(run)
    assert charged(run) == 1


def test_only_listed_keys_may_approve_and_by_default_only_the_sites(run):
    asked(run)
    for key in (OTHER, site_signing_key(run), None):
        with pytest.raises(SettingError, match=r"may not approve .* release\.approvers"):
            approve(run, key)
    approve(run)
    dismissed = run_with(run.root, release={"approvers": [fingerprint(OTHER.public_key())]})
    asked(dismissed)
    default = run_with(run.root, release={"approvers": []})
    asked(default)
    with pytest.raises(SettingError):
        approve(default)
    assert approve(default, None).signer == "site"
    ask(default)


def forge(run, approval, request, **body):
    """Append a decision as a holder of the ledger's key can."""
    ledger, account = open_account(run)
    ledger.record(DECISION, account, {"request": request, "approval": vars(approval), "name": "", "why": "", **body})


def test_no_signature_counts_for_what_it_was_not_given_for(run):
    asked(run)
    first, [request] = approve(run), rows_of(run, REQUEST)
    genuine = rows_of(run, DECISION)[0].content
    other = run_with(run.root, about={"purpose": "triage"})
    asked(other)
    position = rows_of(run, REQUEST)[-1].position
    named = {"name": genuine["name"], "why": genuine["why"]}
    forge(run, first, position, **named)  # replayed for another request
    forge(run, replace(first, subject="0" * 64), position, **named)
    forge(run, replace(first, role="director"), request.position, **named)
    forge(run, first, request.position, name="Eve", why="fit for use")
    forge(run, first, 999, **named)
    mine = sign_approval(
        OTHER, {name: value for name, value in vars(first).items() if name not in ("public_key", "signature")}
    )
    forge(run, mine, position, **named)
    ledger, account = open_account(run)
    ledger.record(DECISION, account, {"request": position, "approval": {"role": "director"}, **named})
    asked(other)
    with pytest.raises(ApprovalNeeded, match="is not approved"):
        aggregate.release_answers.fn(run_with(run.root, aggregation={"sigma": 22}))
    assert pending(other)[2] is None
    assert charged(run) == 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {} SET body = replace(body, 'refused', 'approved') WHERE kind = 'decision'",
        "DELETE FROM {} WHERE kind = 'decision'",
    ],
)
def test_rows_that_are_changed_or_deleted_stop_the_ledger(run, change):
    asked(run)
    decide(run, STEWARD, "refused", role="data steward")
    with contextlib.closing(sqlite3.connect(run.root / "data" / "private" / "ledger" / "ledger.db")) as database:
        [table] = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchone()
        assert database.execute(change.format(table)).rowcount == 1
        database.commit()
    with pytest.raises(LedgerError):
        ask(run)


def test_an_accuracy_is_approved_with_the_answers_and_only_about_these_records(run):
    both = run_with(run.root, evaluation={"epsilon": 1})
    assert "accuracy" in asked(both)
    approve(both)
    release(both)
    require_approval(both, propose_accuracy(both))
    change_manifest(both.folders.dataset, fingerprint="another")
    with pytest.raises(ApprovalNeeded, match="the records"):
        require_approval(both, propose_accuracy(both))


def test_a_request_states_from_how_many_units_sums_are_useful(run):
    sums = {"aggregation": {"mechanism": "gradients", "epsilon": 2}, "student": {"kind": "sums"}}
    enough = int(re.search(r"at least (\d+) records", expect_sums(run_with(run.root, **sums)))[1])
    for units, weak in ((enough - 1, True), (enough, False)):
        assert ("too weak" in expect_sums(run_with(run.root, privacy={"units": units}, **sums))) == weak


def test_a_statement_whose_approval_was_changed_is_rejected(run):
    asked(run)
    approve(run)
    release(run)
    statement = read_json(run.folders.statement)
    for change in ({"role": "director"}, {"signed": "2020-01-01T00:00:00+00:00"}, {"public_key": "no key"}):
        write_json(run.folders.statement, statement | {"approval": statement["approval"] | change})
        checks = {check.what: check for check in verify_statement(run.folders.release)}
        assert checks["approval"].holds is False
    other = statement["approval"] | {"releases": ["0" * 64]}
    write_json(run.folders.statement, statement | {"approval": other})
    with pytest.raises(ArtefactError, match="about another release"):
        read_statement(run.folders.statement)


def test_settings_that_cannot_be_approved_are_refused(tmp_path):
    with pytest.raises(SettingError, match="fingerprint of a key"):
        run_with(tmp_path, release={"approvers": ["steward"]})
    with pytest.raises(SettingError, match=r"does not go with aggregation\.where=parties"):
        run_with(tmp_path, aggregation={"where": "parties"})
    written = run_with(tmp_path, release={"approvers": ["AB" * 16]}).params.release.approvers
    assert written == (" ".join(["abab"] * 8),)


def test_a_role_is_needed_and_a_run_that_asked_for_nothing_is_named(run):
    with pytest.raises(InputError, match="waits for no approval"):
        approve(run)
    assert "must approve" in describe_state(run)
    asked(run)
    with pytest.raises(InputError, match="role is empty"):
        approve(run, role=" ")
