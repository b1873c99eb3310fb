"""Every command names a run in the same way."""

import pytest
import typer
from typer.testing import CliRunner

from flows.cli import app
from terrine.errors import TerrineError

GROUPS = typer.main.get_command(app).commands
COMMANDS = {name: command for name, command in GROUPS.items() if name not in ("party", "release")}
COMMANDS |= {f"release {name}": command for name, command in GROUPS["release"].commands.items()}
NEEDED = {"release refuse": ["--why", "no purpose"]}
WITH_OBJECTS = {"predict": ["images"], "export": ["out"], "stage": ["dataset"], "params": []}
WITHOUT_RUNS = {"init", "sweep", "presets", "ledger", "account", "verify", "images", "statement import"}


def _options(command):
    return {option for parameter in command.params for option in parameter.opts}


def test_the_tables_name_every_command():
    by_option = {name for name, command in COMMANDS.items() if "--run" in _options(command)}
    assert by_option | WITHOUT_RUNS == set(COMMANDS)
    assert not by_option & WITHOUT_RUNS
    assert not any("--name" in _options(command) for command in COMMANDS.values())


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_RUNS))
def test_a_run_is_named_by_the_option_and_alone_if_there_are_no_other_arguments(project, monkeypatch, name):
    """No run exists, so each spelling leads to the same error with the run's name."""
    monkeypatch.chdir(project)
    spellings = [["--run", "no-such-run"]] + ([["no-such-run"]] if name not in WITH_OBJECTS else [])
    told = [
        _refused([*name.split(), *NEEDED.get(name, []), *WITH_OBJECTS.get(name, []), *spelling])
        for spelling in spellings
    ]
    assert "no-such-run" in told[0]
    assert set(told) == {told[0]}


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT_RUNS - set(WITH_OBJECTS) - {"compare"}))
def test_two_names_are_refused(project, monkeypatch, name):
    monkeypatch.chdir(project)
    assert (
        _refused([*name.split(), *NEEDED.get(name, []), "one", "--run", "other"])
        == "one and --run other name two runs: give one."
    )


def test_a_setting_in_place_of_a_name_is_recognised(project, monkeypatch):
    monkeypatch.chdir(project)
    for command in ("check", "run"):
        told = _refused([command, "--preset", "your-own-images", "aggregation.epsilon=4"])
        assert told.endswith("Did you mean --set aggregation.epsilon=4?")


def _refused(arguments):
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, TerrineError), result.output
    return str(result.exception)
