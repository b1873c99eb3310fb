"""A run's account depends only on the account's or the benchmark's name."""

import shlex

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from tasks.config.params import parse_assignment, validate
from tasks.config.values import merge
from tasks.runtime.accounts import budget_explained, ledger_account, open_account
from tasks.runtime.run import Run
from terrine.errors import BudgetError

BENCHMARK = {"data": {"name": "digits", "size": 8}, "aggregation": {"mechanism": "histogram", "sigma": 5}}
OWN = {**BENCHMARK, "data": {"name": "npz", "path": "people.npz"}, "ledger": {"account": "people", "epsilon": 8}}


def run_with(root, values, changes=None):
    return Run(root, "run", validate(merge(values, changes or {})))


@pytest.mark.parametrize("values", [BENCHMARK, OWN])
@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"edition": "2"}},
        {"data": {"size": 16, "test_fraction": 0.5}},
        {"seed": 1, "partition": {"teachers": 10}},
        {"aggregation": {"sigma": 9, "epsilon": 4}},
    ],
)
def test_editions_and_settings_of_one_dataset_share_an_account_and_no_file_is_looked_at(tmp_path, values, changes):
    """The folder is empty, so the result cannot depend on the data."""
    assert ledger_account(run_with(tmp_path, values, changes)) == ledger_account(run_with(tmp_path, values))


def test_accounts_of_other_people_and_other_benchmarks_are_others(tmp_path):
    runs = [
        run_with(tmp_path, BENCHMARK),
        run_with(tmp_path, BENCHMARK, {"data": {"name": "mnist"}}),
        run_with(tmp_path, OWN),
        run_with(tmp_path, OWN, {"ledger": {"account": "digits"}}),
    ]
    assert len({ledger_account(run) for run in runs}) == 4


@pytest.mark.parametrize(("values", "mode"), [(BENCHMARK, "replay"), (OWN, "release")])
def test_replayed_noise_is_for_accounts_of_public_data_alone(tmp_path, values, mode):
    ledger, account = open_account(run_with(tmp_path, values))
    assert ledger.budget(account).mode == mode


@pytest.mark.parametrize(
    "mechanism",
    [
        {"mechanism": "histogram", "sigma": 5},
        {"mechanism": "confident", "threshold": 5, "sigma1": 900, "sigma2": 5},
    ],
)
def test_an_account_that_does_not_pay_says_its_name_and_commands_that_work_as_printed(tmp_path, monkeypatch, mechanism):
    def queried(*changes):
        for change in [{}, *map(parse_assignment, changes)]:
            values.update(merge(values, change))
        (tmp_path / "experiments" / "own.yaml").write_text(yaml.safe_dump(values | {"description": "own"}))
        run = run_with(tmp_path, values)
        settings = run.params.aggregation
        worst = settings.worst_case(run.params.queries.count, settings.epsilon, settings.delta)
        with budget_explained(run):
            ledger, account = open_account(run)
            ledger.account(account).check_all([worst], "secure")
        return ledger, account, worst

    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_text("run: own\n")
    monkeypatch.setenv("TERRINE_ROOT", str(tmp_path))
    values = {
        "data": OWN["data"],
        "queries": {"count": 200},
        "aggregation": {**mechanism, "epsilon": 6, "delta": 1e-6},
        "ledger": {"account": "our people", "epsilon": 8},
    }
    ledger, account, worst = queried()
    ledger.release(
        dataset=account,
        release_id="first",
        run="first",
        worst_case=worst,
        delta=1e-6,
        noise_kind="secure",
        draw=lambda: ({}, worst),
    )
    with pytest.raises(BudgetError, match=r"Account our people: .*Spent or reserved so far") as refused:
        queried()
    lines = str(refused.value).replace("\\\n", " ").splitlines()
    (raise_budget,) = (shlex.split(line) for line in lines if line.startswith("  terrine"))
    assert all(len(line) <= 80 for line in str(refused.value).splitlines() if line.startswith("  "))
    before = {**values}
    queried(next(line for line in lines if line.startswith("This fits")).split()[3].rstrip("."))

    values.update(before)
    done = CliRunner().invoke(app, raise_budget[1:])
    assert done.exit_code == 0, done.output
    assert "our people over all runs is now" in done.output
    queried(f"ledger.epsilon={raise_budget[3]}")
