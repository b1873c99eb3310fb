"""Brackets from any source are printed unchanged."""

import io
import sys
from pathlib import Path

import pytest
from rich.padding import Padding
from rich.table import Table

from flows.cli import main
from flows.printing import printer
from flows.terminal import StageLines

ROOT = Path(__file__).resolve().parents[2]
WORDS = "x[/red]=1 [bold]name[/bold] [a] :warning:"


def test_lines_tables_and_warnings_show_brackets_as_they_are():
    shown = io.StringIO()
    console = printer(shown, soft_wrap=True)
    table = Table(WORDS, title=WORDS)
    table.add_row(WORDS)
    console.print(WORDS, style="red")
    console.print(Padding(WORDS, (0, 0, 0, 2)))
    console.print(table, soft_wrap=True, width=200)
    lines = StageLines(console)
    with lines:
        lines.begin([WORDS], WORDS)
        lines.end(made=True)
    assert shown.getvalue().count(WORDS) == 6


@pytest.mark.parametrize(
    "arguments",
    [["run", "--set", "x[/red]=1"], ["run", "--[/red]"], ["predict", "--folder", "[/red]", "[/\udcff]"]],
    ids=["setting", "option", "file"],
)
def test_an_error_about_brackets_is_a_sentence(tmp_path, monkeypatch, capfd, arguments):
    for name in ("params.yaml", "dvc.yaml", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["terrine", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (1, 2)
    assert "[/red]" in capfd.readouterr().err
