"""Approvals in whole runs: DVC's stages, the command line, the form of a Prefect server, and kill -9 in between."""

import os
import signal
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flows import approval_form
from flows import pipeline as flow
from flows.approval_form import ReleaseDecision
from flows.cli import app, main
from flows.site_policy import check_overrides
from flows.stages import run_stage
from tasks.config.presets import resolve
from tasks.runtime.accounts import open_account
from tasks.runtime.approval import ReleaseRefused
from tasks.runtime.decisions import DECISION, ApprovalNeeded
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.deployment.signature import fingerprint, signing_key
from terrine.errors import SettingError
from tests.flows.conftest import forked, set_small
from tests.processes import arm

REQUIRED = {"release": {"approval": "required"}}


@pytest.fixture
def waiting(finished):
    """A finished project whose settings changed: the votes exist, and another release needs an approval."""
    set_small(finished, aggregation={"sigma": 7}, **REQUIRED)
    run_stage(finished, "small", "parameters")
    return finished


def run_in(root):
    return Run(root, "small", resolve(root, "small"))


def charges(root):
    ledger, account = open_account(run_in(root))
    return len(ledger.events(account))


def terrine(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize("override", ["release.approval=none", "release.approvers=[]", "release={approval: none}"])
def test_a_deployment_never_overrides_an_approval(tmp_path, override):
    (tmp_path / "site.yaml").write_text("overridable: [release, seed]\n")
    with pytest.raises(SettingError, match="may not override release"):
        check_overrides(tmp_path, [override])


def test_a_command_that_waits_for_an_approval_ends_with_status_3():
    def waits():
        raise ApprovalNeeded("waits")

    with pytest.raises(SystemExit) as end:
        main(waits)
    assert end.value.code == 3


@pytest.mark.slow
def test_killed_between_approval_and_release_a_run_completes_once_without_another_approval(waiting):
    before = charges(waiting)
    with pytest.raises(ApprovalNeeded, match="terrine release approve small"):
        run_stage(waiting, "small", "aggregate")
    assert "none yet" in terrine("release", "show", "small").output
    assert terrine("release", "approve", "small", "--role", "data steward").exit_code == 0
    assert charges(waiting) == before

    def release_until_killed(module, name, when):
        arm(module, name, when, 1)
        run_stage(waiting, "small", "aggregate")

    for place in (
        ("tasks.pipeline.aggregate", "check_releases", "before"),
        ("terrine.aggregation.release", "answer_in_rounds", "before"),
        ("terrine.aggregation.release", "answer_in_rounds", "after"),
    ):
        child = forked(lambda place=place: release_until_killed(*place))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    run_stage(waiting, "small", "aggregate")
    assert charges(waiting) == before + 1
    stated = read_json(run_in(waiting).folders.statement)["approval"]
    assert (stated["role"], stated["signer"]) == ("data steward", "site")
    run_stage(waiting, "small", "student")
    assert terrine("statement", "small", "--sign", "--language", "en").exit_code == 0
    set_small(waiting, aggregation={"sigma": 7}, about={"purpose": "selling advertisements"}, **REQUIRED)
    for name in ("parameters", "aggregate"):
        run_stage(waiting, "small", name)
    refused = CliRunner().invoke(app, ["statement", "small", "--sign"])
    assert "about.purpose changed after the approval" in str(refused.exception)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_a_deployments_run_is_suspended_and_continues_or_ends_as_the_form_says(waiting, monkeypatch):
    asked = []

    def submit(decision):
        def suspend(wait_for_input, key):
            asked.append((key, wait_for_input._description))
            return wait_for_input(decision=decision, role="data steward", name="Ada", why="first look")

        monkeypatch.setattr(approval_form, "suspend_flow_run", suspend)

    monkeypatch.setattr(flow, "deployment", SimpleNamespace(id="id of a deployment"))
    before = charges(waiting)
    submit("refuse")
    with pytest.raises(ReleaseRefused, match="by the role 'data steward'"):
        flow.pipeline("small", selects=False)
    assert charges(waiting) == before
    with pytest.raises(ReleaseRefused):  # without another form
        flow.pipeline("small", selects=False)
    [(first, description)] = asked
    assert "ε = " in description
    assert "digits" not in description
    set_small(waiting, aggregation={"sigma": 9}, **REQUIRED)
    submit("approve")
    assert flow.pipeline("small", selects=False) == "small"
    assert len(asked) == 2
    assert asked[1][0] != first
    assert charges(waiting) == before + 1
    ledger, _ = open_account(run_in(waiting))
    assert [row.content["name"] for row in ledger.recorded(DECISION)] == ["Ada", "Ada"]


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_without_a_form_that_counts_a_run_ends_with_the_commands(waiting, monkeypatch):
    with pytest.raises(ApprovalNeeded, match="terrine release approve small"):
        flow.pipeline("small", selects=False)  # not started by a deployment
    set_small(waiting, aggregation={"sigma": 7}, release={"approval": "required", "approvers": ["ab" * 16]})
    monkeypatch.setattr(flow, "deployment", SimpleNamespace(id="id of a deployment"))
    monkeypatch.setattr(approval_form, "suspend_flow_run", lambda **_: pytest.fail("the site's key does not count"))
    with pytest.raises(ApprovalNeeded, match="terrine release approve small"):
        flow.pipeline("small", selects=False)
    refused = CliRunner().invoke(app, ["release", "approve", "small"])
    assert isinstance(refused.exception, SettingError)
    made = terrine("release", "approve", "small", "--key", str(waiting / "steward.pem"))
    own = fingerprint(signing_key(waiting / "steward.pem").public_key())
    assert (made.exit_code, "Nothing is decided yet" in made.output, own in made.output) == (3, True, True)


def test_the_form_has_the_fields_of_a_decision():
    with pytest.raises(ValueError, match="role"):
        ReleaseDecision(decision="approve", role="")
    with pytest.raises(ValueError, match="decision"):
        ReleaseDecision(decision="perhaps", role="data steward")
