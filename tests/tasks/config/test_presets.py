"""A run's name stands for one set of parameters."""

import re
import shutil

import pytest

from tasks.config.presets import (
    FOLDERS,
    derive,
    parameter_file,
    presets,
    presets_by_group,
    project_root,
    read_preset,
    resolve,
    with_assignments,
)
from tasks.config.values import read_yaml
from terrine.errors import SettingError


@pytest.fixture
def project(tmp_path, pytestconfig):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(pytestconfig.rootpath / name, tmp_path)
    shutil.copytree(pytestconfig.rootpath / "experiments", tmp_path / "experiments")
    return tmp_path


def test_every_preset_is_valid_and_says_in_one_line_what_it_is(project):
    known = presets(project)
    assert len(known) >= 8
    for preset in known:
        if preset.name == "your-own-table":  # the operator declares the columns
            with pytest.raises(SettingError, match=r"data\.columns is missing"):
                resolve(project, preset.name)
        else:
            resolve(project, preset.name)
        assert preset.description
        assert "\n" not in preset.description


def test_a_preset_without_copies_does_not_inherit_a_penalty_that_was_chosen_for_copies(project):
    for preset in presets(project):
        own = read_yaml(parameter_file(project, preset.name))
        assert own.get("teachers", {}).get("copies") != 0 or "ridge" in own["teachers"], preset.name


def test_overrides_make_a_run_with_a_name_of_its_own_that_can_be_resolved_again(project):
    name = derive(project, "terrine-digits", ["aggregation.epsilon=3", "seed=5"])
    assert name.startswith("terrine-digits-")
    params = resolve(project, name)
    assert (params.aggregation.epsilon, params.seed) == (3, 5)
    assert derive(project, "terrine-digits", ["seed=5", "aggregation.epsilon=3"]) == name
    assert derive(project, "terrine-digits", ["seed=6"]) != name
    assert name not in [preset.name for preset in presets(project)]


def test_overrides_of_a_derived_run_add_to_its_own(project):
    first = derive(project, "terrine-digits", ["seed=5"])
    second = derive(project, first, ["aggregation.epsilon=3"])
    assert second == derive(project, "terrine-digits", ["seed=5", "aggregation.epsilon=3"])


def test_an_impossible_override_leaves_no_file_behind(project):
    before = sorted((project / "experiments").iterdir())
    with pytest.raises(SettingError):
        derive(project, "terrine-digits", ["aggregation.sigma=-1"])
    assert sorted((project / "experiments").iterdir()) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("terine-digits", "'terine-digits'. Did you mean terrine-digits"),
        ("nothing-like-it", "'nothing-like-it'. `terrine presets`"),
        ("../params", "There is no"),
        ("", "There is no"),
    ],
)
def test_an_unknown_preset_is_refused_and_asked_about(project, name, said):
    with pytest.raises(SettingError, match=re.escape(said)):
        derive(project, name, [])


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("sigma=5", "Did you mean aggregation.sigma (standard deviation of the noise on each count) or"),
        (
            "epsilon=4",
            "Did you mean aggregation.epsilon (ε of the run), evaluation.epsilon (ε of releasing the "
            "accuracy with noise), ledger.epsilon (budget of the account over all runs) or transcription.epsilon "
            "(ε of the run)?",
        ),
        ("per_task=2", "Did you mean teachers.per_task"),
        ("aggregation.sigmma=5", "Did you mean aggregation.sigma"),
        ("agregation.epsilon=5", "Did you mean aggregation.epsilon"),
        ("aggregation.mechanism=gmax", "Did you mean gnmax"),
        ("data.name=minst", "Did you mean mnist"),
    ],
)
def test_a_setting_that_is_mistyped_is_asked_about_by_its_full_name(project, assignment, said):
    with pytest.raises(SettingError, match=re.escape(said)):
        derive(project, "terrine-digits", [assignment])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_preset_whose_run_would_lie_in_a_folder_of_the_projects_own_is_refused(project, name):
    (project / "experiments" / f"{name}.yaml").write_text("base: terrine-digits\n")
    with pytest.raises(SettingError, match=f"data/private/{name}, which is reserved"):
        derive(project, name, [])


@pytest.mark.parametrize("assignment", ["release.approval=none", "release.approvers=[aaaa]"])
def test_an_approval_that_params_yaml_requires_cannot_be_changed_by_an_assignment(project, assignment):
    path = project / "params.yaml"
    text = path.read_text()
    assert "approval: none" in text
    path.write_text(text.replace("approval: none", "approval: required"))
    chosen = read_preset(project, "terrine-mnist")
    assert with_assignments(project, chosen, ["seed=1"])[1].release.approval == "required"
    with pytest.raises(SettingError, match=r"neither --set nor a preset can change release"):
        with_assignments(project, chosen, [assignment])


def test_presets_are_grouped_by_what_they_are_for_and_those_that_nobody_knows_are_the_users(project):
    (project / "experiments" / "my-clinic.yaml").write_text("description: mine\n")
    derive(project, "terrine-digits", ["seed=5"])
    groups = dict(presets_by_group(project))
    assert [preset.name for preset in groups["Your presets"]] == ["my-clinic"]
    assert sum(map(len, groups.values())) == len(presets(project))
    assert {preset.name for preset in groups["Terrine's own"]} > {"terrine-digits", "terrine-mnist"}


def test_the_project_is_found_from_a_folder_inside_it(project, monkeypatch):
    monkeypatch.delenv("TERRINE_ROOT", raising=False)
    monkeypatch.chdir(project / "experiments")
    assert project_root() == project.resolve()


def test_outside_a_project_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("TERRINE_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="not inside a Terrine project"):
        project_root()


def test_moments_of_a_preset_fall_away_with_its_backbone_and_are_refused_where_they_are_asked_for(pytestconfig):
    root, chosen = pytestconfig.rootpath, read_preset(pytestconfig.rootpath, "your-own-images")
    another = ["backbone.kind=resnet10", "pretraining.images.count=100", "pretraining.images.sources={stylegan: 1}"]
    _, params = with_assignments(root, chosen, another)
    assert (params.backbone.kind, params.privacy.moments) == ("resnet10", 0)
    assert with_assignments(root, chosen, ["backbone.projection=50"])[1].privacy.moments > 0
    with pytest.raises(SettingError, match=r"Set privacy\.moments=0"):
        with_assignments(root, chosen, [*another, "privacy.moments=0.1"])


def test_a_choice_of_a_preset_falls_away_with_the_kind_that_offers_it_and_is_refused_where_asked_for(pytestconfig):
    root, chosen = pytestconfig.rootpath, read_preset(pytestconfig.rootpath, "terrine-mnist")
    assert with_assignments(root, chosen, [])[1].teachers.statistics == "halfway"
    assert with_assignments(root, chosen, ["teachers.kind=scratch"])[1].teachers.statistics == "current"
    assert with_assignments(root, chosen, ["teachers.statistics=original"])[1].teachers.statistics == "original"
    with pytest.raises(SettingError, match=r"teachers\.statistics='halfway'"):
        with_assignments(root, chosen, ["teachers.kind=scratch", "teachers.statistics=halfway"])
    with pytest.raises(SettingError, match=r"teachers\.statistics='running'"):
        with_assignments(root, chosen, ["teachers.statistics=running"])
