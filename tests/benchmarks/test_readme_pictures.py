"""The pictures of README.md show today's page and commands that exist."""

import shlex

import typer
from PIL import Image

from benchmarks.readme_pictures import COMMANDS, PAGE, PICTURES, RECORDING, TERMINAL, digest, shown_part
from flows.cli import app
from terrine.privacy.statement import read_statement

AGAIN = "Draw it again: python -m benchmarks.readme_pictures"


def test_the_picture_of_the_statement_page_is_of_todays_page():
    with Image.open(PAGE) as picture:
        assert picture.info["digest"] == digest(shown_part()), AGAIN
    assert PAGE.stat().st_size < 150_000
    assert read_statement(PICTURES / "privacy.json")["private"]


def test_the_recording_is_of_what_the_commands_printed():
    text, drawn = TERMINAL.read_text(encoding="utf-8"), RECORDING.read_text(encoding="utf-8")
    assert f"terrine-{digest(text)}" in drawn, AGAIN
    assert "url(http" not in drawn
    assert "@font-face" not in drawn
    assert RECORDING.stat().st_size < 150_000
    shown = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    assert tuple(shown) == COMMANDS, f"{AGAIN} --record"
    assert {shlex.split(command)[1] for command in shown} <= typer.main.get_command(app).commands.keys()


def test_the_readme_shows_both():
    readme = (PICTURES.parents[1] / "README.md").read_text(encoding="utf-8")
    for picture in (PAGE, RECORDING):
        assert f"](docs/pictures/{picture.name})" in readme
