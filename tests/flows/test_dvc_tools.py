"""A run as DVC's own commands show it: metrics, plots, the model, experiments."""

import csv
import json
import shutil

import pytest
import yaml

from flows.cli import app
from tasks.config.presets import derive
from tasks.pipeline.graph import MAIN
from tasks.runtime.stage_graph import VAULT
from tasks.runtime.store import Folders, read_json
from terrine.errors import SettingError
from tests.command_line import terrine
from tests.conftest import REPOSITORY
from tests.flows.conftest import command, dvc, make_project, set_small


@pytest.fixture
def in_git(finished):
    """The finished project with everything committed that git does not ignore."""
    shutil.copy(REPOSITORY / ".gitignore", finished)
    for words in (["config", "user.name", "Ada"], ["config", "user.email", "ada@example.org"], ["add", "--all"]):
        command(finished, "git", *words)
    command(finished, "git", "commit", "--quiet", "--message", "a finished run")
    return finished


@pytest.mark.slow
def test_metrics_plots_and_the_model_are_the_runs(finished):
    folders = Folders(finished, "small")
    statement, evaluation = read_json(folders.statement), read_json(folders.evaluation)
    (shown,) = json.loads(dvc(finished, "metrics", "show", "--json")).values()
    (figures,) = [file["data"] for file in shown["data"].values()]
    assert figures == {
        "accuracy": evaluation["accuracy"],
        "accuracy_in_batches": evaluation["in_batches"]["accuracy"],
        **{name: evaluation["measures"][name]["value"] for name in ("auc", "balanced_accuracy")},
        "answered": statement["answered"],
        "epsilon": statement["epsilon"],
        "epsilon_guaranteed": statement["epsilon_guaranteed"],
        "epsilon_added": statement["epsilon_guaranteed"],
    }
    plots = json.loads(dvc(finished, "plots", "show", "--json"))
    names = {path.rpartition("/")[2]: plot for path, plot in plots["data"].items()}
    assert names.keys() == {"spending.csv", "classes.csv", "training.csv"}
    assert len(names["classes.csv"][0]["content"]["data"]["values"]) == len(statement["answered_per_class"])
    assert "errors" not in plots
    assert names["spending.csv"][0]["content"]["title"]["text"] == "small: ε against answered queries"
    model = yaml.safe_load((finished / "dvc.yaml").read_text())["artifacts"]["student"]
    assert model["path"] == "data/release/${run}/student"


@pytest.mark.slow
def test_what_is_plotted_ends_where_the_statement_is(finished):
    folders = Folders(finished, "small")
    statement = read_json(folders.statement)

    def rows(name):
        with open(folders.plots / name, encoding="utf-8") as file:
            return list(csv.DictReader(file))

    spent = [(int(row["answered"]), float(row["epsilon"])) for row in rows("spending.csv")]
    assert spent == sorted(spent)
    assert spent[-1] == (statement["answered"], statement["epsilon"])
    assert [int(row["answers"]) for row in rows("classes.csv")] == statement["answered_per_class"]


@pytest.mark.slow
def test_an_experiment_is_charged_once_shown_beside_the_run_and_commits_nothing_private(in_git):
    other = derive(in_git, "small", ["student.l2=0.7"])
    for more in (["--set", "student.l2=0.7"], []):
        terrine("run", "--preset", "small", "--no-server", *more)
    kept = sorted(path for path in in_git.glob(f"data/*/{other}/**/*"))
    words = ("exp", "run", "--name", "half", "-S", "aggregation.epsilon=4")
    dvc(in_git, *words, "evaluate")
    (account,) = json.loads(terrine("ledger", "--json"))
    assert len(account["releases"]) == 2
    shown = json.loads(dvc(in_git, "exp", "show", "--json"))
    (run,) = [each for each in shown if each["rev"] != "workspace"]
    (experiment,) = [each["revs"][0]["data"] for each in run["experiments"]]
    found = [
        (
            each["metrics"]["data/release/small/metrics.json"]["data"]["epsilon"],
            each["params"]["params.yaml"]["data"]["aggregation"]["epsilon"],
        )
        for each in (run["data"], experiment)
    ]
    assert [queried for _, queried in found] == [8, 4]
    assert all(0 < spent <= queried for spent, queried in found)
    (commit,) = command(in_git, "git", "for-each-ref", "--format=%(objectname)", "refs/exps/*/*/half").split()
    files = command(in_git, "git", "ls-tree", "-r", "--name-only", commit).split()
    assert "params.yaml" in files
    made = [file for file in files if file.startswith(("data/", "runs/"))]
    assert made
    assert all(file.startswith(("data/release/small/metrics.json", "data/release/small/plots/")) for file in made)
    # A checkout of DVC's removes what it laid out and no dvc.yaml names any more: no other run's artefacts.
    assert kept == sorted(path for path in in_git.glob(f"data/*/{other}/**/*"))


def test_no_run_is_kept_in_a_cache_that_would_be_pushed_with_its_settings():
    """DVC's cache of runs holds settings, digests and sizes of private files; what persists is not in it."""
    for stage in yaml.safe_load(MAIN.dvc_yaml(""))["stages"].values():
        assert all(options["persist"] for out in stage["outs"] for options in out.values())


def test_private_artefacts_go_to_a_remote_of_their_own_and_only_where_one_is_named(project):
    from tasks.config.presets import derive
    from tasks.runtime.versioning import select

    def options():
        run = derive(project, "small", ["seed=3"])
        select(project, run, MAIN)
        stages = yaml.safe_load((project / "runs" / run / "dvc.yaml").read_text())["stages"].values()
        outs = [out for stage in stages for each in stage["outs"] for out in each.items()]
        return [(path.split("/")[1], how.items() - {("persist", True), ("cache", False)}) for path, how in outs]

    set_small(project)
    assert all(how == ({("push", False)} if zone == "private" else set()) for zone, how in options())
    dvc(project, "remote", "add", VAULT, "s3://vault/terrine")
    assert all(how == ({("remote", VAULT)} if zone == "private" else set()) for zone, how in options())


def test_a_copy_without_the_ledger_makes_no_stage(project, monkeypatch):
    copy = make_project(project / ".dvc" / "tmp" / "exps" / "tmp1")
    monkeypatch.setenv("TERRINE_ROOT", str(copy))
    with pytest.raises(SettingError, match="copy the project without its ledger"):
        app(["stage", "parameters", "--run", "small"], standalone_mode=False)
    assert not (copy / "data").exists()
