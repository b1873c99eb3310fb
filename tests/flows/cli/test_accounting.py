import json

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from terrine.errors import InputError, SettingError


@pytest.fixture
def votes(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "votes.npy", np.where(rng.random((30, 50)) < 0.9, rng.integers(0, 3, (30, 1)), 1))
    return str(tmp_path / "votes.npy")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_account_prints_json_with_every_kind_of_epsilon(votes):
    result = run(
        *("account", votes, "--mechanism", "confident", "--threshold", 30, "--sigma1", 20, "--sigma2", 10),
        *("--delta", 1e-6, "--queries", 20, "--weighting", "expected", "--conversion", "classical"),
        *("--orders", "reference", "--sanitise", "--order", 4, "--beta", 0.05, "--sigma-ss", 6, "--json"),
    )
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["queries"] == 20
    assert 0 < figures["answered"] < 20
    assert figures["delta"] == 1e-6
    assert figures["sanitised"]["order"] == 4
    assert figures["sanitised"]["beta"] == 0.05
    assert figures["sanitised"]["sigma_ss"] == 6
    assert {"mean", "standard_deviation", "smooth_sensitivity"} <= figures["sanitised"].keys()
    assert figures["data_dependent"]["epsilon"] <= figures["data_independent"]["epsilon"]
    assert figures["exact"]["epsilon"] < figures["data_independent"]["epsilon"]


def test_account_prints_a_table_that_says_what_may_be_published(votes):
    result = run("account", votes, "--sigma", 10, "--sanitise")
    assert result.exit_code == 0
    exact = next(line for line in result.stdout.splitlines() if line.startswith("exact "))
    dependent = next(line for line in result.stdout.splitlines() if line.startswith("data-dependent RDP "))
    assert exact.rstrip().endswith("yes")
    assert dependent.rstrip().endswith("NO")


def test_account_refuses_labels_and_double_noise(votes, tmp_path):
    np.save(tmp_path / "labels.npy", np.arange(10))
    with pytest.raises(InputError, match="labels"):
        run("account", tmp_path / "labels.npy", "--sigma", 10)
    with pytest.raises(SettingError, match="give one"):
        run("account", votes, "--sigma", 10, "--sigma2", 10)


def test_without_votes_the_noise_for_a_budget_is_printed():
    options = ("account", "--epsilon", 2, "--delta", 1e-5, "--answers", 5000)
    plain = run(*options)
    assert plain.exit_code == 0
    assert "sigma = 199.3813" in plain.stdout
    figures = json.loads(run(*options, "--tests", 5000, "--sigma1", 600, "--json").stdout)
    assert figures["sigma"] > 199.39
    assert figures["tests"] == 5000
    with pytest.raises(SettingError, match="--epsilon and --answers"):
        run(*options[:3])
