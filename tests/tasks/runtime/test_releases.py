"""The list of a run's releases, which its account must cover before the first."""

import numpy as np
import pytest

from tasks.config.params import validate
from tasks.config.values import merge
from tasks.runtime.accounts import open_account, release_at_price
from tasks.runtime.releases import check_releases, identity_in_ledger, list_releases, make_noise
from tasks.runtime.run import Run
from terrine.errors import BudgetError
from terrine.planning import noise_of_count
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.task import Task

VALUES = {
    "data": {"name": "npz", "path": "people.npz", "size": 8, "channels": 1},
    "aggregation": {"mechanism": "histogram", "sigma": 20, "epsilon": 2},
    "ledger": {"account": "people", "epsilon": 2},
}
TASK = Task("1", "classes", ("healthy", "ill"))
MOMENTS, ACCURACY = {"privacy": {"moments": 0.05}}, {"evaluation": {"epsilon": 0.5}}
COUNTED = {"privacy": {"units": 1234, "counted": 9.0}}
AVERAGED = {"teachers": {"kind": "averaged", "clip": 1.0, "budget_share": 0.5, "statistics": "original"}}


@pytest.fixture
def run_with(tmp_path):
    def run_with(*changes):
        values = VALUES
        for change in changes:
            values = merge(values, change)
        return Run(tmp_path, "run", validate(values))

    return run_with


def charge(run, release):
    def draw():
        return {"sums": np.zeros(1)}

    return release_at_price(run, release.identity, release.worst_case, make_noise(run, release.kind), draw)


def charged(run):
    ledger, account = open_account(run)
    return ledger.events(account)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ([], ["answers"]),
        ([COUNTED, MOMENTS, ACCURACY], ["units", "moments", "answers", "accuracy"]),
        ([AVERAGED], ["averages", "answers"]),
    ],
)
def test_the_list_has_every_release_in_its_order_and_all_but_an_accuracy_within_the_runs_budget(
    run_with, changes, kinds
):
    releases = list_releases(run_with(*changes), task=TASK)
    assert [release.kind for release in releases] == kinds
    assert len({release.identity for release in releases}) == len(kinds)
    within = [release.worst_case for release in releases if release.kind != "accuracy"]
    assert 1.9 < price(compose(*within), 1e-5) <= 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([MOMENTS, {"ledger": {"epsilon": 1.9}}], "releases of moments and answers may"),
        ([ACCURACY], "releases of answers and an accuracy may"),
        ([COUNTED, MOMENTS, ACCURACY], "releases of a count of units, moments, answers and an accuracy may"),
        ([AVERAGED, ACCURACY], "releases of averages of teachers, answers and an accuracy may"),
    ],
)
def test_an_account_that_pays_for_a_part_alone_refuses_the_whole_by_name_before_any_is_charged(
    run_with, changes, named
):
    run = run_with(*changes)
    with pytest.raises(BudgetError, match=rf"Account people: The {named}.*nothing was charged"):
        check_releases(run, task=TASK)
    assert charged(run) == []
    check_releases(run_with(*changes, {"ledger": {"account": "others", "epsilon": 2.6}}), task=TASK)


def test_what_was_released_before_is_free_and_what_is_left_has_to_fit_alone(run_with):
    run = run_with(MOMENTS)
    moments, answers = list_releases(run, task=TASK)
    charge(run, moments)
    check_releases(run, task=TASK)
    # Another penalty of the teachers: other answers, the same moments.
    other = run_with(MOMENTS, {"teachers": {"ridge": 0.2}})
    assert list_releases(other, task=TASK)[0] == moments
    check_releases(other, task=TASK)
    charge(run, answers)
    check_releases(run, task=TASK)
    with pytest.raises(BudgetError, match="The release of answers may cost"):
        check_releases(other, task=TASK)


def test_a_count_of_units_has_one_identity_before_and_after_it_was_made(run_with):
    def identity(**privacy):
        return identity_in_ledger(run_with({"privacy": privacy}), "units")

    assert identity() == identity(units=1234, counted=noise_of_count(2, 1e-5))
    assert identity() != identity(units=1234, counted=9.0)
