"""Stages that a deployment on another machine makes for a run."""

import logging
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.states import Completed, Crashed, Failed, Pending, Running

from flows import elsewhere
from flows import pipeline as flow
from terrine.errors import SettingError, TerrineError
from tests.flows.conftest import set_small


@pytest.fixture
def made(project, monkeypatch):
    """What is made here, and what is asked of deployments, in a run that sends `teach` to one."""
    set_small(project, runner={"elsewhere": {"teach": "stage/gpu"}})
    seen = SimpleNamespace(project=project, here=[], asked=[])
    monkeypatch.setattr(flow, "make_elsewhere", lambda *asked: seen.asked.append(asked))
    monkeypatch.setattr(flow, "_make_here", lambda root, run, stage, place: seen.here.append((stage, place)))
    return seen


def test_a_stage_is_made_by_the_deployment_that_is_named_for_it_and_others_here(made):
    for stage in ("vote", "teach"):
        flow.run_stage_as_flow(made.project, "small", stage)
    assert made.here == [("vote", "small 8/13 vote")]
    ((*asked, name),) = made.asked
    assert asked == ["stage/gpu", "small", "teach"]
    assert name.endswith("7/13 teach")


def test_without_a_server_of_the_users_every_stage_is_made_here(made, monkeypatch):
    monkeypatch.setattr(flow.server, "is_own", lambda: True)
    flow.run_stage_as_flow(made.project, "small", "teach")
    assert made.here == [("teach", "small 7/13 teach")]
    assert not made.asked


def test_a_stage_is_not_made_where_no_run_waits_for_it(made):
    with pytest.raises(SettingError, match="made for a run that waits"):
        flow.stage_for_another.fn("small", "aggregate")
    assert not made.here


class Machine:
    """Another machine: at each look that the run takes at its flow run, 400 seconds after the one before, the next of
    `acts` happens: a new state, a heartbeat, an exception in the run itself, or nothing."""

    def __init__(self, name):
        self.name, self.acts, self.now, self.beats = name, iter(()), 0.0, 0

    def sleep(self, pause):
        self.now += 400
        act = next(self.acts)
        if isinstance(act, BaseException):
            raise act
        if act == "beat":
            self.beats += 1
        elif act is not None:
            with get_client(sync_client=True) as client:
                (newest,) = [run for run in self.runs() if not run.state.is_final()]
                client.set_flow_run_state(newest.id, act, force=True)

    def runs(self):
        with get_client(sync_client=True) as client:
            return client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[self.name])))

    def makes(self, *acts):
        """Have a stage made while this happens; return the states in which its flow runs ended."""
        self.acts = iter(acts)
        elsewhere.make_elsewhere(f"{self.name}/gpu", "small", "teach", "7/13 teach")
        return self.ended()

    def ended(self):
        return sorted(run.state.name for run in self.runs())


@pytest.fixture
def machine(prefect_server, monkeypatch):
    """Another machine, with a deployment on the server."""
    with get_client(sync_client=True) as client:
        other = Machine(f"stage-{uuid4().hex}")
        client.create_deployment(client.create_flow_from_name(other.name), name="gpu")
    monkeypatch.setattr(elsewhere, "time", SimpleNamespace(sleep=other.sleep, monotonic=lambda: other.now))
    monkeypatch.setattr(elsewhere, "_last_heartbeat", lambda client, identity: other.beats)
    monkeypatch.setattr(elsewhere, "get_run_logger", lambda: logging.getLogger("elsewhere"))
    return other


def test_a_machine_that_works_for_long_is_waited_for_as_long_as_it_is_heard_of(machine):
    assert machine.makes(Pending(), None, Running(), "beat", None, "beat", None, "beat", Completed()) == ["Completed"]


def test_a_queue_is_waited_for_and_said(machine, caplog):
    assert machine.makes(*[None] * 7, Running(), Completed()) == ["Completed"]
    assert "waits for a worker" in caplog.text


@pytest.mark.parametrize("state", [Pending(), Running()], ids=["as it begins", "as it works"])
def test_a_machine_that_dies_in_silence_is_crashed_and_its_stage_handed_over_again(machine, state, caplog):
    assert machine.makes(state, None, None, None, Running(), Completed()) == ["Completed", "Crashed"]
    assert "handed over again" in caplog.text


def test_a_stage_whose_makers_crash_is_handed_over_three_times_and_fails_in_a_sentence(machine):
    with pytest.raises(TerrineError, match=r"made by the deployment stage-.*Crashed: evicted"):
        machine.makes(*[Running(), Crashed(message="evicted")] * 3)
    assert machine.ended() == ["Crashed"] * 3


def test_a_stage_that_failed_there_fails_the_run_at_once(machine):
    with pytest.raises(TerrineError, match=r"ended as Failed: no such file"):
        machine.makes(Running(), Failed(message="no such file"))
    assert machine.ended() == ["Failed"]


@pytest.mark.parametrize(("state", "ended"), [(None, "Cancelled"), (Running(), "Cancelling")])
def test_a_run_that_is_stopped_calls_the_other_machine_off(machine, state, ended):
    with pytest.raises(KeyboardInterrupt):
        machine.makes(state, KeyboardInterrupt())
    assert machine.ended() == [ended]


def test_a_deployment_that_nobody_knows_is_named(machine):
    with pytest.raises(SettingError, match=r"stage/typo make teach.*prefect deploy"):
        elsewhere.make_elsewhere("stage/typo", "small", "teach", "7/13 teach")
