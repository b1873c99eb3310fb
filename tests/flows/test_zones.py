"""What is private stays in the private zone: proven from dvc.yaml and from the code."""

import ast
import re

import pytest
import yaml

ZONES = ("private", "public", "release")
MAY_CROSS = {"aggregate", "evaluate"}


@pytest.fixture(scope="module")
def stages(pytestconfig):
    content = yaml.safe_load((pytestconfig.rootpath / "dvc.yaml").read_text())
    return {name: stage["do"] for name, stage in content["stages"].items()}


def paths(entries):
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries or []]


def zones(entries):
    found = {re.match(r"data/(\w+)/", path) for path in paths(entries)}
    return {match[1] for match in found if match}


def test_every_artefact_lies_in_a_zone_under_the_runs_name(stages):
    for stage in stages.values():
        for path in paths(stage["outs"]):
            assert re.match(rf"data/({'|'.join(ZONES)})/\$\{{item\}}/", path), path


def test_stages_read_their_settings_at_home_and_what_anybody_may_read_of_them_is_made_beside(stages):
    """The settings name files and accounts: the full ones are private, and their redacted copy is read by no stage."""
    full, redacted = "data/private/${item}/parameters.yaml", "data/public/${item}/parameters.yaml"
    assert set(paths(stages["parameters"]["outs"])) == {full, redacted}
    for name, stage in stages.items():
        read = {path for entry in stage["params"] if isinstance(entry, dict) for path in entry}
        assert read == (set() if name == "parameters" else {full}), name
        assert redacted not in paths(stage.get("deps")), name


def test_only_aggregate_and_evaluate_read_private_and_write_release(stages):
    crossing = {
        name
        for name, stage in stages.items()
        if "private" in zones(stage.get("deps")) and zones(stage["outs"]) & {"release", "public"}
    }
    assert crossing == MAY_CROSS


def test_what_depends_on_private_data_only_through_others_is_private_or_released(stages):
    """Taint: a public artefact never depends on a private one, not even through several stages."""
    producer = {path: name for name, stage in stages.items() for path in paths(stage["outs"])}

    def tainted(name):
        deps = paths(stages[name].get("deps"))
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
    for name in ("student", "guided/queries", "features", "synthesize"):
        tree = ast.parse((pytestconfig.rootpath / "tasks" / "pipeline" / f"{name}.py").read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute | ast.Name)
            and getattr(node.value, "attr", getattr(node.value, "id", "")) == "folders"
        }
        assert used.isdisjoint(private), (name, used & private)


def test_the_pipeline_walks_the_stages_of_dvc_yaml_in_order(stages):
    from tasks.versioning import STAGES

    assert list(stages) == list(STAGES)
    for name, stage in stages.items():
        assert stage["cmd"] == f"python -m flows stage {name} --run ${{item}}"
