"""Output of a run: stages, warnings and one sentence for an error; the rest is in its log."""

import logging
import os
import re
import subprocess
import sys

import pytest

from flows.printing import LoggedError
from flows.terminal import SHOWN, quiet
from terrine.errors import InputError

STAGES = ("parameters", "dataset", "report")


def test_stages_and_our_warnings_are_shown_and_everything_else_is_in_the_log(tmp_path, capfd):
    with quiet(tmp_path, "small") as console:
        for stage in STAGES:
            SHOWN.get().begin(STAGES, stage)
            SHOWN.get().end(made=stage != "dataset")
        logging.getLogger("tasks.pipeline.teach").warning("%d teachers have no records.", 3)
        os.write(1, b"from below\n")
        subprocess.run([sys.executable, "-c", "import sys; print('from a child', file=sys.stderr)"], check=True)
        console.print("shown")
    os.write(1, b"and after\n")
    shown, error = capfd.readouterr()
    assert re.sub(r"\d+\.\d s", "S", shown).splitlines() == [
        "1/3 parameters    S",
        "2/3 dataset     unchanged",
        "3/3 report        S",
        "Warning: 3 teachers have no records.",
        "shown",
        "and after",
    ]
    assert error == ""
    log = (tmp_path / "data" / "private" / "small" / "run.log").read_text()
    assert "from below\n" in log
    assert "from a child\n" in log
    assert SHOWN.get() is None


def test_an_error_is_not_printed_where_it_is_raised_and_names_the_log(tmp_path, capfd):
    with pytest.raises(InputError, match="no folder") as caught, quiet(tmp_path, "small"):
        raise InputError("There is no folder.")
    assert caught.value.__notes__ == ["The log: data/private/small/run.log"]
    last_line = r"^ValueError: matrix \[3, 4\] is singular\n"
    with pytest.raises(LoggedError, match=last_line) as caught, quiet(tmp_path, "small"):
        raise ValueError("matrix [3, 4] is singular")
    assert caught.value.__notes__ == ["This is a defect. Its traceback: data/private/small/run.log"]
    assert capfd.readouterr() == ("", "")
    assert "Traceback (most recent call last)" in (tmp_path / "data/private/small/run.log").read_text()


def test_an_error_on_the_command_line_is_one_sentence_with_its_brackets(monkeypatch, capsys):
    from flows import cli

    def fail():
        error = InputError("Install terrine[ray].")
        error.add_note("The log: run.log")
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert capsys.readouterr() == ("", "Error: Install terrine[ray].\nThe log: run.log\n")
