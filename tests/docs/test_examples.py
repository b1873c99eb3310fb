"""What a reader would type: commands of the pages are understood, and their Python compiles."""

import ast
import functools
import re
import shlex

import pytest
import typer

from benchmarks.tables import REPOSITORY, pages
from flows.cli import app

COMMAND = re.compile(r"^ {4,}(?:\w+\$ +)?(?:\S+ && )*(terrine (?:.*\\\n)*.*)$", re.MULTILINE)
IN_TEXT = re.compile(r"(?<!`)`(terrine [^`\n]+)`")
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
    while isinstance(command, typer.core.TyperGroup) and words:
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    given, _, _ = command.make_parser(context).parse_args(words)
    return given


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_of_a_page_is_one(page):
    for words in commands(page):
        if words[0] == "terrine":
            given = understood(words[1:])
            preset = given.get("preset")
            ours = isinstance(preset, str) and preset.islower() and not preset.startswith("my-")
            assert not ours or (REPOSITORY / "experiments" / f"{preset}.yaml").is_file(), words


@pytest.mark.parametrize("words", ["run --preste x", "ledger shwo", "predict --no-such"])
def test_a_command_that_is_none_is_noticed(words):
    with pytest.raises((AssertionError, Exception), match=r"(?i)no such option|no command"):
        understood(words.split())


@pytest.mark.parametrize("page", [page for page in pages() if FENCED.search(page.read_text("utf-8"))], ids=named)
def test_python_of_a_page_compiles_and_imports_what_is_there(page):
    for code in FENCED.findall(page.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom):
                exec(compile(ast.Module([node], []), named(page), "exec"), {})
