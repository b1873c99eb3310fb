"""Stages that a deployment on another machine makes for a run."""

from types import SimpleNamespace

import pytest

from flows import pipeline as flow
from terrine.errors import SettingError, TerrineError
from tests.flows.conftest import set_small


@pytest.fixture
def made(project, monkeypatch):
    """What is made here, and what is asked of deployments, in a run that sends `teach` to one."""
    set_small(project, runner={"elsewhere": {"teach": "stage/gpu"}})
    seen = SimpleNamespace(project=project, here=[], asked=[], completed=True)

    def run_deployment(name, parameters, flow_run_name):
        seen.asked.append((name, parameters, flow_run_name))
        return SimpleNamespace(
            state=SimpleNamespace(is_completed=lambda: seen.completed, name="Crashed", message="no GPU")
        )

    monkeypatch.setattr(flow, "run_deployment", run_deployment)
    monkeypatch.setattr(flow, "_make_here", lambda root, run, stage, place: seen.here.append((stage, place)))
    return seen


def test_a_stage_is_made_by_the_deployment_that_is_named_for_it_and_others_here(made):
    for stage in ("vote", "teach"):
        flow.run_stage_as_flow(made.project, "small", stage)
    assert made.here == [("vote", "small 8/13 vote")]
    (asked,) = made.asked
    assert asked[:2] == ("stage/gpu", {"run": "small", "stage": "teach"})


def test_without_a_server_of_the_users_every_stage_is_made_here(made, monkeypatch):
    monkeypatch.setattr(flow.server, "is_own", lambda: True)
    flow.run_stage_as_flow(made.project, "small", "teach")
    assert made.here == [("teach", "small 7/13 teach")]
    assert not made.asked


def test_a_stage_that_failed_elsewhere_fails_the_run_in_a_sentence(made):
    made.completed = False
    with pytest.raises(TerrineError, match=r"made by the deployment stage/gpu, .*Crashed: no GPU"):
        flow.run_stage_as_flow(made.project, "small", "teach")


def test_a_stage_is_not_made_where_no_run_waits_for_it(made):
    with pytest.raises(SettingError, match="made for a run that waits"):
        flow.stage_for_another.fn("small", "aggregate")
    assert not made.here
