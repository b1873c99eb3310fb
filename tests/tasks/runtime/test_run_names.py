"""Runs that people name."""

import re
import shlex
import subprocess

import pytest
import yaml

from tasks.config.presets import derive, presets, read_preset, reproduce_command, resolve, runs
from tasks.pipeline.graph import MAIN
from tasks.runtime.parameters import write_parameters
from tasks.runtime.run import open_run
from tasks.runtime.run_names import name_run, states
from tasks.runtime.store import Folders
from tasks.runtime.versioning import select
from terrine.errors import ArtefactError, SettingError

OWN = ["data.path=/secure/scans", "ledger.account=SecretClinic"]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "experiments").mkdir()
    preset = {
        "description": "a template",
        "data": {"name": "folder", "path": "images", "size": 8, "channels": 1},
        "aggregation": {"mechanism": "histogram", "sigma": 25, "epsilon": 4},
        "ledger": {"account": "own", "epsilon": 8},
    }
    (tmp_path / "experiments" / "own.yaml").write_text(yaml.safe_dump(preset))
    (tmp_path / "experiments" / "other.yaml").write_text(yaml.safe_dump(preset))
    (tmp_path / "params.yaml").write_text("run: own\n")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / ".gitignore").write_text("/tmp\n")
    return tmp_path


def release(project, name):
    Folders(project, name).release.mkdir(parents=True)


def test_a_named_run_goes_on_by_its_name_alone_and_by_the_whole_command(project):
    assert name_run(project, "clinic-a", "own", OWN) == "clinic-a"
    text = (project / "experiments" / "clinic-a.yaml").read_text()
    for preset, assignments in ((None, []), ("own", OWN), ("clinic-a", []), ("clinic-a", OWN[:1])):
        assert name_run(project, "clinic-a", preset, assignments) == "clinic-a"
    assert (project / "experiments" / "clinic-a.yaml").read_text() == text
    assert str(resolve(project, "clinic-a").data.path) == "/secure/scans"
    assert "SecretClinic" not in read_preset(project, "clinic-a").description
    assert [preset.name for preset in presets(project)] == ["other", "own"]


def test_a_named_run_is_made_again_by_the_command_that_its_report_shows(project):
    name_run(project, "clinic-a", "own", [*OWN, "queries.sources={dead_leaves: 2}"])
    words = shlex.split(reproduce_command(project, "clinic-a", local=True))
    before = (project / "experiments" / "clinic-a.yaml").read_text()
    (project / "experiments" / "clinic-a.yaml").unlink()
    assert words[:6] == ["terrine", "run", "clinic-a", "--preset", "own", "--set"]
    name_run(project, words[2], words[4], words[6::2])
    assert yaml.safe_load((project / "experiments" / "clinic-a.yaml").read_text()) == yaml.safe_load(before)


def test_what_a_named_run_says_of_the_site_is_not_offered_to_git(project):
    def status():
        command = ["git", "-C", str(project), "status", "--porcelain", "-uall"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    subprocess.run(["git", "init", "-q", str(project)], check=True)
    before = status()
    for name in ("clinic-a", "clinic-b"):
        name_run(project, name, "own", OWN)
    assert status() == before
    select(project, "clinic-a", MAIN)
    assert status() == before


def test_settings_may_change_until_the_release_and_then_only_those_that_it_does_not_hang_on(project):
    name_run(project, "clinic-a", "own", OWN)
    name_run(project, "clinic-a", None, ["aggregation.epsilon=3"])
    release(project, "clinic-a")
    name_run(project, "clinic-a", None, ["student.l2=0.5", "ledger.epsilon=9", "aggregation.epsilon=3"])
    params = resolve(project, "clinic-a")
    assert (params.aggregation.epsilon, params.student.l2, params.ledger.epsilon) == (3, 0.5, 9)
    for change in ("aggregation.epsilon=4", "seed=1", "ledger.account=others", "data.edition='2'"):
        with pytest.raises(SettingError, match="has released"):
            name_run(project, "clinic-a", None, [change])
    assert resolve(project, "clinic-a") == params


def test_a_preset_that_is_named_again_says_what_the_run_is_by_now(project):
    def corrected(**sections):
        path = project / "experiments" / "own.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | sections))

    name_run(project, "clinic-a", "own", [*OWN, "student.l2=0.5", "privacy.unit=group"])
    corrected(aggregation={"mechanism": "histogram", "sigma": 30, "epsilon": 2})
    assert resolve(project, name_run(project, "clinic-a", None, [])).aggregation.epsilon == 4
    params = resolve(project, name_run(project, "clinic-a", "own", [*OWN, "student.l2=0.4"]))
    assert (params.aggregation.epsilon, params.student.l2, params.privacy.unit) == (2, 0.4, "record")
    release(project, "clinic-a")
    assert resolve(project, name_run(project, "clinic-a", "own", OWN)).student.l2 != 0.4
    name_run(project, "clinic-a", None, ["student.l2=0.4"])
    corrected(seed=7)
    with pytest.raises(SettingError, match=r"With seed=7, no student\.l2 it would be .*terrine run clinic-a\. Or"):
        name_run(project, "clinic-a", "own", OWN)
    with pytest.raises(SettingError, match=r"With data\.path=images, ledger\.account=own, "):
        name_run(project, "clinic-a", "own", [])
    assert resolve(project, "clinic-a").seed != 7


def test_the_command_for_settings_that_are_refused_begins_another_run_with_them(project):
    name_run(project, "clinic-a", "own", OWN)
    release(project, "clinic-a")
    with pytest.raises(SettingError, match="has released") as refused:
        name_run(project, "clinic-a", None, ["aggregation.epsilon=3", "queries.sources={stylegan: 1}"])
    words = shlex.split(str(refused.value).partition(":\n")[2].replace("\\\n", " "))
    assert name_run(project, words[2], words[4], words[6::2]) == "clinic-a-2"
    assert read_preset(project, "clinic-a-2").made_from == "own"
    old, new = resolve(project, "clinic-a"), resolve(project, "clinic-a-2")
    assert (new.aggregation.epsilon, new.data.path) == (3, old.data.path)


@pytest.mark.parametrize(
    ("name", "preset", "said"),
    [
        ("Clinic A", "own", "lower-case letters"),
        ("../clinic", "own", "lower-case letters"),
        ("-clinic", "own", "lower-case letters"),
        ("ledger", "own", "not one of ledger"),
        ("clinic-0123abcd", "own", "derived run"),
        ("other", "own", "is a preset"),
        ("clinic-a", "other", "made from own, not from other"),
        ("clinic-b", None, "There are no runs yet. To create it"),
    ],
)
def test_a_name_that_stands_for_something_else_is_refused_and_nothing_is_written(project, name, preset, said):
    name_run(project, "clinic-a", "own", OWN)
    before = sorted((project / "experiments").iterdir())
    with pytest.raises(SettingError, match=re.escape(said)):
        name_run(project, name, preset, [])
    assert sorted((project / "experiments").iterdir()) == before


def test_a_run_that_nobody_knows_is_refused_with_those_that_there_are(project):
    name_run(project, "clinic-a", "own", OWN)
    derived = derive(project, "own", ["seed=5"])
    write_parameters(project, derived)
    assert states(project) == [(derived, "begun")]
    folders = Folders(project, derived)
    for file, state in (
        (folders.statement, "has released, not complete"),
        (folders.report, "has released, not complete"),
        (folders.evaluation, "complete"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        assert dict(states(project))[derived] == state
    folders.statement.unlink()
    assert dict(states(project))[derived] == "begun"
    assert runs(project) == [derived]  # clinic-a was not started
    with pytest.raises(ArtefactError, match=f"Did you mean {derived}.* Existing runs: {derived}"):
        open_run(project, derived[:-1])
    with pytest.raises(ArtefactError, match=r"own has not been started\. Start it with: terrine run own"):
        open_run(project, "own")
