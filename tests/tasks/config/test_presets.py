"""A run's name stands for one set of parameters."""

import shutil

import pytest

from tasks.config.presets import derive, named_run, presets, project_root, resolve
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
        resolve(project, preset.name)
        assert preset.description
        assert "\n" not in preset.description


@pytest.mark.parametrize(
    ("name", "teachers", "threshold", "sigma1", "sigma2", "epsilon"),
    [
        ("diet-pate-mnist", 200, 150, 120, 40, 6),
        ("diet-pate-mnist-small", 200, 150, 120, 40, 6),
        ("diet-pate-cifar10", 50, 50, 30, 15, 10),
        ("diet-pate-tissuemnist", 250, 170, 100, 40, 10),
    ],
)
def test_presets_named_after_the_paper_have_its_numbers(project, name, teachers, threshold, sigma1, sigma2, epsilon):
    params = resolve(project, name)
    mechanism = params.aggregation
    assert params.partition.teachers == teachers
    assert mechanism.mechanism == "confident"
    assert (mechanism.threshold, mechanism.sigma1, mechanism.sigma2) == (threshold, sigma1, sigma2)
    assert (mechanism.epsilon, mechanism.delta) == (epsilon, 1e-5)
    assert params.backbone.kind == "resnet18"
    assert params.teachers.statistics == params.student.statistics == "current"
    assert (params.teachers.epochs, params.teachers.learning_rate) == (50, 1e-3)


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


@pytest.mark.parametrize("name", ["unknown", "../params", ""])
def test_an_unknown_preset_is_refused_with_the_known_ones(project, name):
    with pytest.raises(SettingError, match=r"Known presets: .*terrine-digits"):
        derive(project, name, [])


def test_the_project_is_found_from_a_folder_inside_it(project, monkeypatch):
    monkeypatch.delenv("TERRINE_ROOT", raising=False)
    monkeypatch.chdir(project / "experiments")
    assert project_root() == project.resolve()


def test_outside_a_project_there_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("TERRINE_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="not inside a Terrine project"):
        project_root()


def test_params_yaml_names_a_run_that_exists(pytestconfig):
    resolve(pytestconfig.rootpath, named_run(pytestconfig.rootpath))
