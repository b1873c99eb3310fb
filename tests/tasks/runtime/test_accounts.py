"""Whose budget a run draws on: a function of the account's name alone, or of the benchmark's."""

import pytest

from tasks.config.params import validate
from tasks.config.values import merge
from tasks.runtime.accounts import ledger_account, open_account
from tasks.runtime.run import Run

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
    """Nothing is in the folder, so whatever the data are cannot have a say."""
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
