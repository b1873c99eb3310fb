"""A dataset that is added as CONTRIBUTING.md says is private until somebody says, in code, that anyone may read it."""

from dataclasses import replace

import pytest

import tasks.config.params
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.pipeline.dataset import prepare_dataset
from tasks.runtime.run import Run
from tasks.runtime.store import read_json
from terrine.data import digits, registry
from terrine.data.public import PUBLIC_BENCHMARKS
from terrine.errors import SettingError

VALUES = {"data": {"name": "clinic", "size": 8}, "aggregation": {"mechanism": "histogram", "sigma": 20}}
BUDGET = {"ledger": {"account": "clinic-2026", "epsilon": 8}}


@pytest.fixture(autouse=True)
def clinic(monkeypatch):
    """Register a source, `clinic`, that says nothing about who may read it: the default of `Dataset`."""
    source = replace(digits.load(size=8), name="clinic", public_benchmark=False)
    known = registry.load
    monkeypatch.setattr(registry, "load", lambda name, **how: source if name == "clinic" else known(name, **how))


@pytest.mark.parametrize(
    ("ledger", "missing"),
    [({}, "ledger.epsilon"), ({"epsilon": 8}, "ledger.account"), ({"account": "clinic-2026"}, "ledger.epsilon")],
)
def test_a_run_on_it_without_account_and_budget_is_refused(ledger, missing):
    with pytest.raises(SettingError, match=f"{missing} is missing: data.name=clinic is not a known public benchmark"):
        validate(merge(VALUES, {"ledger": ledger}))


def test_with_both_it_is_prepared_and_its_figures_stay_at_home(tmp_path):
    run = Run(tmp_path, "trial", validate(merge(VALUES, BUDGET)))
    prepare_dataset.fn(run)
    assert read_json(run.folders.dataset / "manifest.json")["public_benchmark"] is False
    assert run.params.tracking.private_metrics is False


def test_parameters_cannot_call_it_public(tmp_path):
    with pytest.raises(SettingError, match=r"public_benchmark=true does not go with data\.name=clinic"):
        validate(merge(VALUES, {"data": {"public_benchmark": True}}))


def test_a_name_on_the_list_whose_source_does_not_say_so_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks.config.params, "PUBLIC_BENCHMARKS", (*PUBLIC_BENCHMARKS, "clinic"))
    run = Run(tmp_path, "trial", validate(VALUES))
    assert run.params.data.public_benchmark
    with pytest.raises(SettingError, match="does not say that anyone may read it"):
        prepare_dataset.fn(run)
    assert not list(tmp_path.iterdir())


def test_every_name_on_the_list_is_a_dataset_and_the_sources_of_own_data_are_not():
    assert set(PUBLIC_BENCHMARKS) < set(registry.names())
    assert not {"npz", "folder", "table"} & set(PUBLIC_BENCHMARKS)
