"""Stages that a deployment on another machine runs for a run."""

import logging
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.states import Completed, Crashed, Failed, Running

from flows import pipeline as flow
from terrine.errors import SettingError, TerrineError
from tests.flows.conftest import set_small


@pytest.fixture
def made(project, monkeypatch):
    """Local stages and requests to deployments of a run that sends `teach` to one."""
    set_small(project, runner={"elsewhere": {"teach": "stage/gpu"}})
    seen = SimpleNamespace(project=project, here=[], requested=[])
    monkeypatch.setattr(flow, "run_remotely", lambda *requested: seen.requested.append(requested))
    monkeypatch.setattr(flow, "_run_here", lambda root, run, stage: seen.here.append(stage))
    return seen


def test_a_stage_runs_at_the_deployment_that_is_named_for_it_and_others_here(made):
    for stage in ("vote", "teach"):
        flow._run_stage(made.project, "small", stage)
    assert made.here == ["vote"]
    assert made.requested == [("stage/gpu", "small", "teach")]


def test_without_a_server_of_the_users_every_stage_runs_here(made, monkeypatch):
    monkeypatch.setattr(flow.server, "is_temporary", lambda: True)
    flow._run_stage(made.project, "small", "teach")
    assert made.here == ["teach"]
    assert not made.requested


def test_a_deployment_without_a_run_that_waits_for_it_runs_no_stage(made, monkeypatch):
    monkeypatch.setattr(flow, "deployment", SimpleNamespace(id="id of a deployment"))
    with pytest.raises(SettingError, match="must be started by a parent run"):
        flow.stage_flow.fn("small", "aggregate")
    assert not made.here


class Machine:
    """Another machine: whenever the run waits, the next of `acts` happens, a state or an exception in the run."""

    def __init__(self, name):
        self.name, self.acts = name, iter(())

    def sleep(self, pause):
        act = next(self.acts)
        if isinstance(act, BaseException):
            raise act
        with get_client(sync_client=True) as client:
            (newest,) = [run for run in self.runs() if not run.state.is_final()]
            client.set_flow_run_state(newest.id, act, force=True)

    def runs(self):
        with get_client(sync_client=True) as client:
            return client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[self.name])))

    def makes(self, *acts):
        """Have a stage run while this happens; return the states in which its flow runs ended."""
        self.acts = iter(acts)
        flow.run_remotely(f"{self.name}/gpu", "small", "teach")
        return self.ended()

    def ended(self):
        return sorted(run.state.name for run in self.runs())


@pytest.fixture
def machine(prefect_server, monkeypatch):
    """Another machine, with a deployment on the server."""
    with get_client(sync_client=True) as client:
        other = Machine(f"stage-{uuid4().hex}")
        client.create_deployment(client.create_flow_from_name(other.name), name="gpu")
    monkeypatch.setattr(flow, "time", SimpleNamespace(sleep=other.sleep))
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("elsewhere"))
    return other


def test_a_stage_that_crashes_there_is_started_again(machine, caplog):
    assert machine.makes(Running(), Crashed(), Running(), Completed()) == ["Completed", "Crashed"]
    assert "started again" in caplog.text


@pytest.mark.parametrize(
    ("acts", "message", "ended"),
    [
        ([Running(), Crashed(message="evicted")] * 3, "ended as Crashed: evicted", ["Crashed"] * 3),
        ([Running(), Failed(message="no such file")], "ended as Failed: no such file", ["Failed"]),
    ],
    ids=["crashed three times", "failed"],
)
def test_a_stage_that_fails_there_fails_the_run_in_a_sentence(machine, acts, message, ended):
    with pytest.raises(TerrineError, match=message):
        machine.makes(*acts)
    assert machine.ended() == ended


def test_a_run_that_is_stopped_cancels_the_other_machine(machine):
    with pytest.raises(KeyboardInterrupt):
        machine.makes(Running(), KeyboardInterrupt())
    assert machine.ended() == ["Cancelling"]


def test_a_deployment_that_the_server_does_not_have_is_named(machine):
    with pytest.raises(SettingError, match=r"no deployment stage/typo for the stage teach.*prefect deploy"):
        flow.run_remotely("stage/typo", "small", "teach")
