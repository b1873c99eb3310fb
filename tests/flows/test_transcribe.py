"""Transcriptions: the same commands as for other runs, and errors from commands that do not support them."""

import pytest
import yaml

from benchmarks.crash.project import TRANSCRIBED
from flows.cli.run import run
from tasks.pipeline.graph import MAIN
from tasks.runtime.store import Folders, read_json
from tasks.runtime.versioning import changed_stages
from tasks.transcription.graph import TRANSCRIPTION
from terrine.errors import BudgetError, SettingError, TerrineError
from tests.command_line import terrine
from tests.flows.conftest import dvc

TINY = TRANSCRIBED | {"runner": {"kind": "threads"}}


@pytest.fixture
def tiny(project):
    """The small project with a transcription beside its run."""
    (project / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return project


@pytest.mark.slow
def test_two_doors_lead_to_one_result_and_the_run_of_params_yaml_is_left_alone(tiny, prefect_server):
    from flows.pipeline import pipeline

    assert pipeline("tiny") == "tiny"
    statement = read_json(Folders(tiny, "tiny").statement)
    assert statement["private"]
    assert statement["teachers"] == 4
    assert changed_stages(tiny, "tiny", TRANSCRIPTION) == []
    with open(tiny / "runs" / ".gitignore", "a") as ignored:
        ignored.write("!/tiny/\n")
    assert "up to date" in dvc(tiny, "repro", "runs/tiny/dvc.yaml")
    assert "nothing to do" in terrine("run")
    dvc(tiny, "repro", "--force", "--single-item", "runs/tiny/dvc.yaml:transcribe")
    assert read_json(Folders(tiny, "tiny").statement) == statement
    # The run of the main pipeline was never begun, and is what `dvc repro` alone would make.
    assert changed_stages(tiny, "small", MAIN) == MAIN.names
    assert not Folders(tiny, "small").private.exists()


def test_a_command_that_is_not_for_transcriptions_says_so(tiny):
    from flows.cli.audit import audit_run
    from tasks.runtime.parameters import write_parameters
    from tasks.tools.sweep import make_candidates

    with pytest.raises(TerrineError, match="terrine run tiny"):
        make_candidates(tiny, "tiny", [], ["transcription.annotation.step=0.5,1"])
    write_parameters(tiny, "tiny")
    with pytest.raises(SettingError, match="Run tiny is a transcription"):
        audit_run("tiny")


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_made(tiny):
    with pytest.raises(BudgetError, match=r"annotation\.sigma to"):
        run(preset="tiny", set_=["transcription.annotation.sigma=1"], seed=None)
    assert not (tiny / "data").exists()
    assert not (tiny / "runs").exists()
