"""`auto`: chosen once, from a count with noise that is paid for, and refused before anything is paid."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tasks.config.presets import derive
from tasks.runtime.accounts import open_account
from tasks.runtime.parameters import resolve_auto, write_parameters
from tasks.runtime.releases import counting_cost, moments_cost
from tasks.runtime.run import Run
from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.accounting.pricing import price

PRESET = {
    "description": "own arrays",
    "data": {"name": "npz", "path": "cells.npz", "size": 8, "channels": 1},
    "partition": {"teachers": "auto"},
    "queries": {"count": "auto"},
    "aggregation": {"sigma": "auto", "epsilon": 4},
    "ledger": {"account": "cells", "epsilon": 8},
}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "params.yaml").write_text("run: own\n")
    (tmp_path / "experiments" / "own.yaml").write_text(yaml.safe_dump(PRESET))
    _save(tmp_path, 1500)
    return tmp_path


def _save(root: Path, records: int, groups: int | None = None) -> None:
    labels = np.arange(records) % 4
    more = {} if groups is None else {"groups": np.arange(records) % groups}
    np.savez(root / "cells.npz", images=np.zeros((records, 8, 8), np.uint8), labels=labels, **more)


def _spent(root: Path, params) -> list:
    ledger, name = open_account(Run(root, "own", params))
    return ledger.events(name)


def test_numbers_take_the_place_of_auto_and_what_counting_cost_is_charged_once(project):
    params = resolve_auto(project, "own")
    sides = params.partition.teachers, params.queries.count
    assert abs(params.privacy.units - 1200) < 100
    assert 0 < params.privacy.counted < 20
    assert sides[0] < params.privacy.units / 3
    again = resolve_auto(project, "own")
    assert again == params
    assert _spent(project, params) == [counting_cost(params)]
    shutil.rmtree(project / "data" / "private" / "own")  # chosen again from the count in the ledger
    assert resolve_auto(project, "own") == params
    assert _spent(project, params) == [counting_cost(params)]


def test_a_count_with_noise_that_was_not_made_is_refused(project):
    """A statement would publish the exact number of people as a noisy one."""
    params = write_parameters(project, "own").params
    for counted in (params.privacy.counted, 50.0):
        own = [f"privacy.units={params.privacy.units + 1}", f"privacy.counted={counted}"]
        with pytest.raises(SettingError, match="the account has no such noisy count"):
            write_parameters(project, derive(project, "own", own))


def test_a_count_that_is_declared_as_if_it_were_public_is_refused(project):
    """Its cost would be missing from every statement."""
    params = write_parameters(project, "own").params
    units, sigma = params.privacy.units, params.privacy.counted
    for epsilon in (4, 3):
        copied = [f"privacy.units={units}", f"aggregation.epsilon={epsilon}"]
        with pytest.raises(SettingError, match=f"privacy.units={units} is the account's noisy count of units"):
            write_parameters(project, derive(project, "own", copied))
        other = derive(project, "own", [f"privacy.units={units + 1}", f"aggregation.epsilon={epsilon}"])
        assert write_parameters(project, other).params.privacy.counted == 0
        charged = write_parameters(project, derive(project, "own", [*copied, f"privacy.counted={sigma!r}"])).params
        assert counting_cost(charged) == counting_cost(params)


def test_units_are_counted_with_noise_of_each_accounts_own(project):
    counts = [resolve_auto(project, derive(project, "own", [f"ledger.account=a{n}"])).privacy.units for n in range(5)]
    assert len(set(counts)) > 1  # of noise with a deviation of 8.6, all alike one time in 200,000


@pytest.mark.parametrize("share", [0, 0.05])
def test_count_moments_and_answers_fit_the_runs_budget(project, share):
    params = resolve_auto(project, derive(project, "own", [f"privacy.moments={share}"]))
    before, mechanism = compose(counting_cost(params), moments_cost(params)), params.aggregation
    assert mu_squared(moments_cost(params)) == pytest.approx(share * mu_of(4, 1e-5) ** 2)
    assert mechanism.certain(params.queries.count, 4, 1e-5, before) == params.queries.count
    whole = price(compose(before, mechanism.worst_case(params.queries.count, 4, 1e-5, before)), 1e-5)
    assert 3.999 < whole <= 4


def test_another_student_and_another_data_folder_choose_nothing_anew(project):
    params = resolve_auto(project, "own")
    other = resolve_auto(project, derive(project, "own", ["student.l2=0.1"]))
    assert (other.partition, other.privacy) == (params.partition, params.privacy)
    assert len(_spent(project, params)) == 1


def test_what_the_operator_declares_is_taken_and_nothing_is_counted(project):
    name = derive(project, "own", ["privacy.units=3000"])
    params = resolve_auto(project, name)
    assert params.privacy.counted == 0
    assert params.privacy.units == 3000
    assert _spent(project, params) == []


def test_given_numbers_stay(project):
    params = resolve_auto(project, derive(project, "own", ["partition.teachers=123", "queries.count=77"]))
    assert (params.partition.teachers, params.queries.count) == (123, 77)
    assert params.aggregation.certain(77, 4, 1e-5, counting_cost(params)) == 77


def test_too_few_groups_are_refused_before_anything_is_charged_and_the_advice_works(project):
    _save(project, 1500, groups=60)
    by_group = ["privacy.unit=group"]
    name = derive(project, "own", by_group)
    with pytest.raises(
        SettingError, match=r"groups are too few for 4 classes at ε = 4: .* charged. This would suffice: a"
    ) as said:
        write_parameters(project, name)
    assert not list(project.rglob("ledger.db"))
    epsilon = str(said.value).split("budget of ε = ")[1].split(" ")[0]
    assert float(epsilon) >= 10
    assert "protects a single group little" in str(said.value)
    larger = [*by_group, f"aggregation.epsilon={epsilon}", f"ledger.epsilon={epsilon}"]
    assert resolve_auto(project, derive(project, "own", larger)).privacy.units > 0
    anyway = resolve_auto(project, derive(project, "own", [*by_group, "privacy.anyway=true", "ledger.account=others"]))
    assert anyway.partition.teachers >= 2


def test_groups_that_the_data_do_not_have_are_refused_before_they_are_counted(project):
    with pytest.raises(SettingError, match=r"privacy\.unit=group, but the data have no groups"):
        write_parameters(project, derive(project, "own", ["privacy.unit=group"]))
    assert not list(project.rglob("ledger.db"))


def test_too_few_teachers_for_enough_records_are_refused_with_how_many_would_do(project):
    few = ["partition.teachers=5"]
    with pytest.raises(SettingError, match=r"5 teachers are too few for 4 classes at ε = 4: they would vote") as said:
        resolve_auto(project, derive(project, "own", few))
    larger, more = str(said.value).split("This would suffice: ")[1].split("; or ")
    assert float(larger.split("ε = ")[1].split(" ")[0]) > 4
    assert more.startswith("partition.teachers=auto, which gives ")
    assert resolve_auto(project, derive(project, "own", ["partition.teachers=auto"])).partition.teachers > 5


def test_a_budget_that_does_not_cover_count_and_answers_is_refused_before_the_count(project):
    name = derive(project, "own", ["ledger.epsilon=3.9"])
    with pytest.raises(BudgetError):
        resolve_auto(project, name)
    run = Run(
        project, name, resolve_auto(project, derive(project, "own", ["privacy.units=1000", "ledger.epsilon=3.9"]))
    )
    ledger, account = open_account(run)
    assert ledger.events(account) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (["aggregation.mechanism=gnmax"], "requires aggregation.mechanism=histogram, not gnmax"),
        (["aggregation.where=parties"], "set privacy.units"),
    ],
)
def test_what_no_rule_is_known_for_is_said(project, setting, message):
    with pytest.raises(SettingError, match=message):
        resolve_auto(project, derive(project, "own", setting))
