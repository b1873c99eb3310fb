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
    with pytest.raises(SettingError, match="begin with seed, device, data"):
        CliRunner().invoke(app, ["params", "aggregatoin"], catch_exceptions=False)


def test_what_a_run_has_yet_to_choose_is_shown_as_auto(monkeypatch, pytestconfig):
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(
        app, ["params", "aggregation.mechanism", "--run", "your-own-images"], catch_exceptions=False
    )
    assert "your-own-images: auto" in result.stdout
