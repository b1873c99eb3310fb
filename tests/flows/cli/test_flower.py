"""The Flower app of docs/flower runs commands, in an environment without Terrine: they must be there."""

import ast
from pathlib import Path

import typer

from flows.cli import app

CLIENT = Path(__file__).resolve().parents[3] / "docs" / "flower" / "parties" / "client_app.py"


def test_each_step_that_the_flower_app_runs_is_a_command_with_these_options():
    calls = [node for node in ast.walk(ast.parse(CLIENT.read_text())) if isinstance(node, ast.Call)]
    runs = [call.args[2:] for call in calls if getattr(call.func, "id", "") == "_run"]
    queried = [[word.value for word in words if isinstance(word, ast.Constant)] for words in runs]
    party = typer.main.get_command(app).commands["party"]
    assert {step for step, *_ in queried} == {"submit", "finish"}
    for step, *options in queried:
        known = {name for option in party.commands[step].params for name in option.opts + option.secondary_opts}
        assert {"--config", *options} <= known
