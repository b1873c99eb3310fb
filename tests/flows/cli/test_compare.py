"""Finished runs beside each other on the command line: for people, and as tables for other programs."""

import io
import json
from dataclasses import replace

import pandas
import pytest
import typer
from typer.testing import CliRunner

from flows.cli.compare import compare
from tasks.reports import comparison
from tests.tasks.reports.test_comparison import ROW

ROWS = [
    replace(ROW, run="a-run-with-quite-a-long-name", settings={"seed": 1}),
    replace(ROW, run="b", epsilon=2.0, accuracy=0.75, settings={"seed": 1, "student.l2": 0.3}),
    replace(ROW, run="c", epsilon=3.0, accuracy=None),
]


@pytest.fixture
def printed(monkeypatch):
    app = typer.Typer()
    app.command()(compare)
    monkeypatch.setattr(comparison, "compared", lambda root, names: ROWS)

    def run(*arguments, **environment):
        return CliRunner().invoke(app, list(arguments), env=environment)

    return run


def test_every_run_has_its_line_and_what_it_differs_in(printed):
    for lines in (printed().output.splitlines(), printed(COLUMNS="80").output.splitlines()):
        assert lines[1].split()[:5] == ["a-run-with-quite-a-long-name", "1.0000", "1e-5", "50.00", "%"]
        assert "b differs in student.l2=0.3" in lines
        assert any(line.startswith("private: ε does not cover accuracies") for line in lines)


def test_as_csv_and_json_each_setting_that_differs_is_a_column(printed):
    table = pandas.read_csv(io.StringIO(printed("--csv").output))
    records = json.loads(printed("--json").output)
    assert table["run"].tolist() == [record["run"] for record in records] == [row.run for row in ROWS]
    assert table["student.l2"].fillna("").tolist() == ["", 0.3, ""]
    assert [record["accuracy"] for record in records] == [0.5, 0.75, None]
    assert "settings" not in table
    refused = printed("--csv", "--json")
    assert "exclude each other: give one" in str(refused.exception)


def test_the_page_is_written_where_it_is_asked_for(printed, tmp_path):
    page = tmp_path / "runs.html"
    assert printed("--html", str(page)).output == f"Wrote {page}: 3 runs.\n"
    assert "a-run-with-quite-a-long-name" in page.read_text()
