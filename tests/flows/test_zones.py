"""Private artefacts stay in the private zone: proven from the pipeline files and the code."""

import ast
import re

import pytest
import yaml

from tasks.config.params import Params
from tasks.pipeline.graph import HEAD, MAIN
from tasks.runtime.stage_graph import load
from tasks.runtime.step import Step
from tasks.transcription.graph import TRANSCRIPTION

ZONES = ("private", "public", "release")
PIPELINES = {"main": MAIN, "transcription": TRANSCRIPTION}
MAY_CROSS = {
    "main": {
        "aggregate": {"answers", "privacy.json", "statement.html"},
        "evaluate": {"accuracy.json", "metrics.json", "plots"},  # an accuracy with noise; what was released, as tables
    },
    "transcription": {
        "transcribe": {"annotations", "generator", "student", "privacy.json", "statement.html"},
        "evaluate": {"metrics.json"},
    },
}
"""The stages that read private and write elsewhere, and what they may write there."""
PUBLIC = ("features", "images", "released")


@pytest.fixture(params=PIPELINES)
def kind(request):
    return request.param


@pytest.fixture
def stages(kind):
    """The stages of a pipeline as DVC reads them."""
    return yaml.safe_load(PIPELINES[kind].dvc_yaml(""))["stages"]


def paths(entries):
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries or []]


def zones(entries):
    found = {re.match(r"data/(\w+)/", path) for path in paths(entries)}
    return {match[1] for match in found if match}


def artefacts(stage):
    """Return the artefacts that a stage reads."""
    return [path for path in stage.get("deps", []) if "/code/" not in path]


def test_dvc_yaml_is_what_the_graph_says(pytestconfig):
    assert (pytestconfig.rootpath / "dvc.yaml").read_text() == MAIN.dvc_yaml(HEAD)


def test_every_artefact_lies_in_a_zone_under_the_runs_name(stages):
    for stage in stages.values():
        for path in paths(stage["outs"]):
            assert re.match(rf"data/({'|'.join(ZONES)})/\$\{{run\}}/", path), path


def test_stages_read_their_settings_at_home_and_what_anybody_may_read_of_them_is_made_beside(stages, kind):
    """The settings name files and accounts: the full ones are private, and their redacted copy is read by no stage."""
    full, redacted = "data/private/${run}/parameters.yaml", "data/public/${run}/parameters.yaml"
    code, chosen = "data/private/${run}/code", "data/private/${run}/chosen.yaml"
    assert set(paths(stages["parameters"]["outs"])) == {full, redacted, code, chosen}
    assert stages["parameters"]["params"] == [{"params.yaml": None}]
    for name, stage in list(stages.items())[1:]:
        read = [entry for entry in stage["params"] if isinstance(entry, str)]
        assert read == PIPELINES[kind][name].settings.split()
        assert {path for entry in stage["params"] if isinstance(entry, dict) for path in entry} <= {chosen}
        assert f"{code}/{name}" in stage["deps"]
        assert redacted not in stage["deps"], name


def test_any_other_run_has_the_same_stages_with_paths_from_its_folder(kind):
    text = PIPELINES[kind].dvc_yaml("", "clinic-a")
    assert "${" not in text
    own, default = (yaml.safe_load(each) for each in (text, PIPELINES[kind].dvc_yaml("").replace("${run}", "clinic-a")))
    for name, stage in own["stages"].items():
        assert stage.pop("wdir") == "../.."
        params = {path: keys for entry in stage.pop("params") for path, keys in entry.items()}
        read = params.pop("runs/clinic-a/params.yaml")
        expected = default["stages"][name].pop("params")
        assert [*(read or ()), *[{path: keys} for path, keys in params.items()]] == expected or name == "parameters"
        assert stage == default["stages"][name]
    for path in (*own["metrics"], own["artifacts"]["student"]["path"]):
        assert path.startswith("../../data/release/clinic-a/")


def test_params_yaml_has_all_that_dvc_compares(pytestconfig):
    values = yaml.safe_load((pytestconfig.rootpath / "params.yaml").read_text())
    assert values.keys() == {"run", "description", *Params.model_fields}
    for stage in MAIN.stages:
        for key in stage.settings.split():
            section, _, name = key.partition(".")
            assert not name or name in values[section], key


def test_only_what_has_noise_is_made_of_private_artefacts_and_released(stages, kind):
    crossing = {
        name: {path.rpartition("/")[2] for path in left}
        for name, stage in stages.items()
        if "private" in zones(artefacts(stage))
        and (left := [path for path in paths(stage["outs"]) if not path.startswith("data/private/")])
    }
    assert crossing == MAY_CROSS[kind]


def test_what_depends_on_private_data_only_through_others_is_private_or_released(stages):
    """Taint: a public artefact never depends on a private one, not even through several stages."""
    producer = {path: name for name, stage in stages.items() for path in paths(stage["outs"])}

    def tainted(name):
        deps = artefacts(stages[name])
        if any(path.startswith("data/private/") for path in deps):
            return True
        return any(tainted(producer[path]) for path in deps if path in producer and path.startswith("data/public/"))

    for name, stage in stages.items():
        if "public" in zones(stage["outs"]):
            assert not tainted(name), name


def test_private_artefacts_are_never_pushed(stages):
    for stage in stages.values():
        for entry in stage["outs"]:
            path = entry if isinstance(entry, str) else next(iter(entry))
            pushed = isinstance(entry, str) or entry[path].get("push", True) is not False
            if path.startswith("data/private/"):
                assert not pushed, path


def test_the_student_task_names_no_private_path(pytestconfig):
    """The folders a student may touch are public or release; a private one in its code fails here."""
    private = {"private", "dataset", "partition", "teachers", "votes", "accounting", "work", "timings", "report"}
    for name in (
        "pipeline/student",
        "pipeline/synthesize",
        "artefacts/features",
        "artefacts/images",
        "artefacts/released",
    ):
        tree = ast.parse((pytestconfig.rootpath / "tasks" / f"{name}.py").read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute | ast.Name)
            and getattr(node.value, "attr", getattr(node.value, "id", "")) == "folders"
        }
        assert used.isdisjoint(private), (name, used & private)


def test_a_stage_comes_after_what_it_needs_and_its_tasks_exist(kind):
    made = set()
    for stage in PIPELINES[kind].stages[1:]:
        assert made >= set(stage.needs.split()), stage.name
        made |= set(stage.makes.split())
        assert all(isinstance(load(task), Step) for task in stage.tasks.split()), stage.name
