"""`terrine params` on the command line."""

import pytest
from typer.testing import CliRunner

from flows.cli import app
from terrine.errors import SettingError


def test_a_section_is_listed_with_defaults_units_and_what_a_preset_sets(monkeypatch, pytestconfig):
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["params", "aggregation", "--run", "terrine-digits"], catch_exceptions=False)
    assert "aggregation.sigma" in result.stdout
    assert "votes" in result.stdout
    assert "terrine-digits: 78" in result.stdout
    assert "teachers." not in result.stdout


def test_a_name_that_no_setting_has_is_refused_with_the_sections():
    with pytest.raises(SettingError, match="Sections: seed, device, data"):
        CliRunner().invoke(app, ["params", "aggregatoin"], catch_exceptions=False)


def test_what_a_run_has_yet_to_choose_is_shown_as_auto(monkeypatch, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_text("run: own\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    (tmp_path / "experiments" / "own.yaml").write_text("description: own\npartition: {teachers: auto}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["params", "partition.teachers", "--run", "own"], catch_exceptions=False)
    assert "own: auto" in result.stdout
