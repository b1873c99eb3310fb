"""The pipeline of transcriptions: its zones, its stages, its two doors, and that it keeps apart from the other one."""

import re
import shutil

import pytest
import yaml

from tasks.runtime.store import Folders, read_json
from tasks.versioning import STAGES, TRANSCRIPTION, changed_stages
from terrine.errors import BudgetError, SettingError, TerrineError
from tests.flows.conftest import command
from tests.flows.test_zones import (  # noqa: F401  the test holds for both pipelines
    paths,
    test_stages_read_their_settings_at_home_and_what_anybody_may_read_of_them_is_made_beside,
    zones,
)

TINY = {
    "description": "digits, for tests",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 4},
    "tracking": {"register_student": False},
    "runner": {"kind": "threads"},
    "transcription": {
        "iterations": 2,
        "batch": 8,
        "federated": True,
        "per_task": 2,
        "annotation": {"sigma": 6, "beta": 1.0, "limit": "clip", "distillation": "classic", "gradient_of": "scores"},
        "teacher": {"architecture": "cryptonet", "epochs": 1},
        "student": {"architecture": "cryptonet", "learning_rate": 0.01},
        "generator": {"width": 4, "latent": 4, "inputs": "fresh"},
    },
}


@pytest.fixture(scope="module")
def stages(pytestconfig):
    content = yaml.safe_load((pytestconfig.rootpath / "transcribe" / "dvc.yaml").read_text())
    return {name: stage["do"] for name, stage in content["stages"].items()}


@pytest.fixture
def tiny(project, pytestconfig):
    """The small project with a transcription beside its run."""
    shutil.copytree(pytestconfig.rootpath / "transcribe", project / "transcribe")
    (project / "transcribe" / "params.yaml").write_text("runs: []\n")
    (project / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return project


def test_only_transcribe_and_evaluate_read_private_and_write_release(stages):
    crossing = {
        name
        for name, stage in stages.items()
        if "private" in zones(stage.get("deps")) and zones(stage["outs"]) & {"release", "public"}
    }
    assert crossing == {"transcribe", "evaluate"}


def test_every_artefact_lies_in_a_zone_and_private_ones_are_never_pushed(stages):
    for stage in stages.values():
        assert stage["wdir"] == ".."
        for entry in stage["outs"]:
            path = entry if isinstance(entry, str) else next(iter(entry))
            assert re.match(r"data/(private|public|release)/\$\{item\}/", path), path
            if path.startswith("data/private/"):
                assert entry[path]["push"] is False, path


def test_public_beginnings_depend_on_nothing_private(stages):
    assert not paths(stages["start"].get("deps"))


def test_the_flow_walks_the_stages_of_its_pipeline_file_in_order(stages):
    from flows.transcription_stages import STAGES as KNOWN

    assert list(stages) == list(TRANSCRIPTION.stages) == ["parameters", *KNOWN]
    for name, stage in stages.items():
        assert stage["cmd"] == f"python -m flows transcription {name} --run ${{item}}"


def test_a_fresh_clone_has_no_transcription_to_make(pytestconfig):
    from tasks.config.presets import selected_transcription

    assert selected_transcription(pytestconfig.rootpath) is None
    assert yaml.safe_load((pytestconfig.rootpath / "transcribe" / "params.yaml").read_text()) == {"runs": []}


@pytest.mark.slow
def test_two_doors_lead_to_one_result_and_the_other_pipeline_is_left_alone(tiny, prefect_server):
    from flows.transcribe import transcription

    assert transcription("tiny") == "tiny"
    statement = read_json(Folders(tiny, "tiny").statement)
    assert statement["private"]
    assert statement["teachers"] == 4
    assert changed_stages(tiny, "tiny", TRANSCRIPTION) == []
    assert "up to date" in command(tiny, "dvc", "repro", "transcribe/dvc.yaml")
    assert "nothing to do" in command(tiny, "terrine", "transcribe")
    # The run of the main pipeline was never begun, and is what `dvc repro` alone would make.
    assert changed_stages(tiny, "small") == list(STAGES)
    assert not Folders(tiny, "small").private.exists()
    command(tiny, "dvc", "repro", "--force", "--single-item", "transcribe/dvc.yaml:transcribe@tiny")
    assert read_json(Folders(tiny, "tiny").statement) == statement


def test_each_command_makes_its_own_kind_of_run(tiny):
    from flows.cli import run
    from flows.cli.audit import audit_run
    from flows.cli.reproduce import reproduce
    from flows.stages import run_stage
    from flows.transcribe import chosen_run
    from tasks.runtime.run import write_parameters
    from tasks.tools.sweep import candidates_of

    selected = (tiny / "params.yaml").read_text()
    for make in (
        lambda: run(preset="tiny", set_=None, seed=None),
        lambda: reproduce(["tiny"], seeds=1, set_=None),
        lambda: candidates_of(tiny, "tiny", [], ["transcription.annotation.step=0.5,1"]),
        lambda: run_stage(tiny, "tiny", "parameters"),
    ):
        with pytest.raises(TerrineError, match="terrine transcribe --preset tiny"):
            make()
    assert (tiny / "params.yaml").read_text() == selected
    write_parameters(tiny, "tiny")
    with pytest.raises(SettingError, match="tiny is a transcription: terrine audit is for mechanisms"):
        audit_run("tiny")
    with pytest.raises(SettingError, match="made by `terrine run`"):
        chosen_run(tiny, "small", [])
    with pytest.raises(SettingError, match="name one with --preset"):
        chosen_run(tiny, None, [])


def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_made(tiny):
    from flows.transcribe import chosen_run

    with pytest.raises(BudgetError, match=r"annotation\.sigma to"):
        chosen_run(tiny, "tiny", ["transcription.annotation.sigma=1"])
    assert not (tiny / "data").exists()
