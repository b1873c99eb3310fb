"""A budget that is spent cannot be had again by another name, place, key, size or copy of the same records."""

import shutil

import numpy as np
import pytest

from tasks.artefacts.records import load_dataset
from tasks.config.params import parse_assignment, validate
from tasks.config.values import merge
from tasks.pipeline.dataset import prepare_dataset, write_prepared
from tasks.runtime.accounts import open_account, release_at_price
from tasks.runtime.parameters import _count
from tasks.runtime.releases import identity_in_ledger
from tasks.runtime.run import Run
from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import GaussianEvent
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.noise import SecureNoise

OWN = {
    "data": {"name": "npz", "path": "people.npz", "size": 8},
    "aggregation": {"mechanism": "histogram", "sigma": 5, "epsilon": 2},
    "ledger": {"account": "A", "epsilon": 2},
}
ALL = GaussianEvent(mu_of(2, 1e-5) * 0.99, 1.0)


@pytest.fixture
def project(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (300, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "people.npz", images=images, labels=np.arange(300) % 3, ids=np.arange(300))
    return tmp_path


def run_with(root, *assignments, name="run"):
    values = OWN
    for assignment in assignments:
        values = merge(values, parse_assignment(assignment))
    return Run(root, name, validate(values))


def release(run):
    write_prepared(run, load_dataset(run))
    return release_at_price(run, identity_in_ledger(run, "answers"), ALL, SecureNoise(), lambda: {"sums": np.zeros(1)})


OTHERS = {
    "another account": ["ledger.account=B"],
    "another database": ["ledger.url=sqlite:///other.db", "ledger.store=other"],
    "another key and place": ["ledger.url=sqlite:///other.db", "ledger.store=other", "ledger.key=other-key"],
    "another account there": ["ledger.url=sqlite:///other.db", "ledger.store=other", "ledger.account=B"],
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    "same", [["data.size=12"], ["data.channels=3", "data.test_fraction=0.5"], ["data.path=copy.npz"]]
)
def test_another_name_or_ledger_is_refused_for_the_same_records(other, same, project):
    release(run_with(project))
    with np.load(project / "people.npz") as file:
        # One record less, others' labels, and groups.
        kept = {name: file[name][1:] for name in file.files}
    np.savez(project / "copy.npz", **kept | {"labels": kept["labels"][::-1], "groups": np.arange(299) // 2})
    second = run_with(project, *OTHERS[other], *same, "data.edition=2", name="other")
    before = sorted(project.rglob("*.db"))
    with pytest.raises(LedgerError, match="of these records were part of releases"):
        prepare_dataset.fn(second)  # before training
    assert sorted(project.rglob("*.db")) == before
    with pytest.raises(LedgerError, match="of these records were part of releases"):
        release(second)
    prepare_dataset.fn(run_with(project, *same, "data.edition=2", name="third"))
    with pytest.raises(BudgetError):  # which their own account would not pay for either
        release(run_with(project, *same, "data.edition=2", name="third"))


def test_the_ledger_cannot_be_begun_anew_either(project):
    first = run_with(project)
    release(first)
    shutil.rmtree(project / "data" / "private" / "ledger")
    with pytest.raises(LedgerError, match="another ledger of this site"):
        release(run_with(project, "ledger.account=B"))


def test_units_are_not_counted_under_a_second_account(project):
    """They are counted before the stage `dataset` has read anything."""
    _count(run_with(project), 240)
    other = run_with(project, "ledger.account=B", name="other")
    with pytest.raises(LedgerError, match="under another account"):
        _count(other, 240)
    ledger, account = open_account(other)
    assert ledger.events(account) == []


def test_a_site_may_be_several_projects(project, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TERRINE_SITE", str(tmp_path_factory.mktemp("machine") / "site"))
    release(run_with(project))
    clone = tmp_path_factory.mktemp("clone")
    shutil.copy(project / "people.npz", clone)
    with pytest.raises(LedgerError, match="another ledger of this site"):
        release(run_with(clone))


def test_public_benchmarks_have_no_budget_and_are_refused_nowhere(project):
    values = {"data": {"name": "digits", "size": 8}, "aggregation": OWN["aggregation"]}
    for number, ledger in enumerate([{}, {"url": "sqlite:///other.db", "store": "other"}]):
        release(Run(project, f"run{number}", validate(values | {"ledger": ledger})))
