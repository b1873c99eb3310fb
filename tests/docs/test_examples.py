"""What a reader would type: commands of the pages are understood, and their Python compiles."""

import argparse
import ast
import functools
import re
import runpy
import shlex
import sys

import pytest
import typer

from benchmarks.reproduce import papers
from benchmarks.tables import REPOSITORY, pages
from flows.cli import app

OURS = r"(?:terrine|python -m benchmarks\.(?:leaderboard|reproduce))"
COMMAND = re.compile(rf"^ {{4,}}(?:\w+\$ +)?(?:\S+ && )*({OURS} (?:.*\\\n)*.*)$", re.MULTILINE)
IN_TEXT = re.compile(rf"(?<!`)`({OURS} [^`\n]+)`")
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def named(page):
    return str(page.relative_to(REPOSITORY))


def commands(page):
    """The command lines of a page, without what a shell makes of them."""
    text = page.read_text(encoding="utf-8")
    for line in (*COMMAND.findall(text), *IN_TEXT.findall(text)):
        # Optional parts are typed without their brackets, `...` stands for more of the same.
        words = shlex.split(line.replace("\\\n", " ").replace("[", " ").replace("]", " "), comments=True)
        for part in " ".join(shlex.quote(word) for word in words).split(" '&&' "):
            typed = [word for word in shlex.split(part) if word not in ("...", "…")]
            # In a sentence an option is named without its value.
            yield [*typed, "X"] if typed[-1].startswith("--") else typed


@functools.cache
def root():
    return typer.main.get_command(app)


def understood(words):
    """Let the command line read what is typed after `terrine`, and do nothing; raises where it has no such option."""
    command = root()
    context = command.context_class(command, info_name="terrine")
    if " ".join(words[:2]) in command.commands:
        words = [" ".join(words[:2]), *words[2:]]
    while isinstance(command, typer.core.TyperGroup) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    given, _, _ = command.make_parser(context).parse_args(words)
    return given


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_of_a_page_is_one(page, monkeypatch):
    for words in commands(page):
        if words[0] == "terrine":
            given = understood(words[1:])
            preset = given.get("preset")
            ours = isinstance(preset, str) and preset.islower() and not preset.startswith("my-")
            assert not ours or (REPOSITORY / "experiments" / f"{preset}.yaml").is_file(), words
        elif words[0] == "python":
            script_understands(words, monkeypatch)


class Understood(Exception):
    """A script has read what was typed, and would begin."""


def script_understands(typed, monkeypatch):
    """Let a script read `python SCRIPT ...` or `python -m MODULE ...`, and end it there."""

    def read(*given, _read=argparse.ArgumentParser.parse_args):
        _read(*given)
        raise Understood

    words = typed[1:]
    if words[0] == "-m":
        words = [words[1].replace(".", "/") + ".py", *words[2:]]
    script, *words = words
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", read)
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    try:
        runpy.run_path(str(REPOSITORY / script), run_name="__main__")
    except Understood:
        return
    assert not words, f"{script} reads nothing of {words}"


ELSEWHERE = sorted({command for paper in papers().values() for command in paper.elsewhere.values()})


@pytest.mark.parametrize("command", ELSEWHERE)
def test_every_command_that_makes_a_table_of_a_paper_is_one(command, monkeypatch):
    program, *words = command.split()
    if program == "terrine":
        understood(words)
    else:
        script_understands([program, *words], monkeypatch)


def test_a_script_that_lacks_an_argument_is_noticed(monkeypatch):
    with pytest.raises(SystemExit):
        script_understands(["python", "benchmarks/accuracy.py"], monkeypatch)


@pytest.mark.parametrize("words", ["run --preste x", "party shwo", "predict --no-such"])
def test_a_command_that_is_none_is_noticed(words):
    with pytest.raises((AssertionError, Exception), match=r"(?i)no such option|no command"):
        understood(words.split())


@pytest.mark.parametrize("page", [page for page in pages() if FENCED.search(page.read_text("utf-8"))], ids=named)
def test_python_of_a_page_compiles_and_imports_what_is_there(page):
    for code in FENCED.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                exec(compile(ast.Module([node], []), named(page), "exec"), {})
