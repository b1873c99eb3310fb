"""The ledger in one process: what it charges, refuses, returns and remembers."""

import os
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sql

from terrine.errors import BudgetError, LedgerError, SettingError
from terrine.privacy.accounting.events import GaussianEvent, LaplaceEvent, RepeatedEvent, compose
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Budget, Ledger
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask


def test_a_release_is_what_was_drawn_and_costs_what_was_spent(ledger: Ledger) -> None:
    draw = Draw()
    release = ask(ledger, "a", draw)
    np.testing.assert_array_equal(release.arrays["labels"], draw.drawn[0])
    assert (release.event, release.reused) == (ANSWER, False)
    assert ledger.events(DATASET) == [ANSWER]
    assert ledger.spent(DATASET, 1e-5) == release.epsilon_total == price(ANSWER, 1e-5)
    assert ledger.verify() == 3


def test_release_twice_costs_once(any_place: Place) -> None:
    ledger, draw = any_place.open(), Draw()
    ledger.register(DATASET, epsilon=2.0, delta=1e-5, mode="release")
    first, again = ask(ledger, "a", draw), ask(ledger, "a", draw)
    assert len(draw.drawn) == 1
    assert again.reused
    assert (again.digest, again.event, again.epsilon_total) == (first.digest, first.event, first.epsilon_total)
    np.testing.assert_array_equal(first.arrays["labels"], again.arrays["labels"])
    assert again.arrays["labels"].dtype == first.arrays["labels"].dtype
    assert ledger.events(DATASET) == [ANSWER]
    assert any_place.open(create=False).verify() == 3


def test_a_release_says_the_same_total_after_later_ones(ledger: Ledger) -> None:
    first = ask(ledger, "a", Draw())
    second = ask(ledger, "b", Draw())
    assert ask(ledger, "a", Draw()).epsilon_total == first.epsilon_total < second.epsilon_total


def test_runs_compose_by_their_events_and_not_by_sums_of_epsilon(ledger: Ledger) -> None:
    for name in "abc":
        ask(ledger, name, Draw())
    assert ledger.spent(DATASET, 1e-5) == price(RepeatedEvent(ANSWER, 3), 1e-5) < 3 * price(ANSWER, 1e-5)
    assert ledger.spent(DATASET, 1e-9) == price(RepeatedEvent(ANSWER, 3), 1e-9)


def test_laplace_and_gaussian_runs_compose(ledger: Ledger) -> None:
    laplace = LaplaceEvent(2.0, 50.0)
    ask(ledger, "a", Draw())
    ask(ledger, "b", Draw(laplace), worst_case=laplace)
    assert ledger.spent(DATASET, 1e-5) == price(compose(ANSWER, laplace), 1e-5) > price(ANSWER, 1e-5)


def test_over_budget_nothing_is_drawn_or_charged_and_the_error_says_what_is_left(ledger: Ledger) -> None:
    ask(ledger, "a", Draw())
    rows = ledger.rows()
    draw, large = Draw(), GaussianEvent(1.0, 1.9)
    with pytest.raises(BudgetError, match=r"past its budget of ε=2\..*so far: ε=0\.\d+\. Left: .*ε=1\."):
        ask(ledger, "b", draw, worst_case=large)
    assert draw.drawn == []
    assert ledger.rows() == rows
    assert not ask(ledger, "b", draw).reused


def test_the_whole_budget_may_be_spent_and_no_more(ledger: Ledger) -> None:
    exactly = GaussianEvent(mu_of(2.0, 1e-5) * (1 - 1e-12), 1.0)
    ask(ledger, "a", Draw(exactly), worst_case=exactly)
    with pytest.raises(BudgetError, match="past its budget"):
        ask(ledger, "b", Draw(GaussianEvent(1.0, 1e4)), worst_case=GaussianEvent(1.0, 1e4))


def test_what_was_reserved_and_not_spent_is_given_back(ledger: Ledger) -> None:
    dear = GaussianEvent(1.0, 2.5)
    ask(ledger, "a", Draw(ANSWER), worst_case=dear)
    assert ledger.events(DATASET) == [ANSWER]
    ask(ledger, "b", Draw(ANSWER), worst_case=dear)


def test_a_cheap_draw_is_compared_by_more_than_an_epsilon_of_zero(ledger: Ledger) -> None:
    cheap, dearer = GaussianEvent(1.0, 1e7), GaussianEvent(1.0, 2e6)
    assert price(cheap, 1e-5) == price(dearer, 1e-5) == 0
    with pytest.raises(LedgerError, match="worst case is wrong"):
        ask(ledger, "a", Draw(dearer), worst_case=cheap)


def test_a_release_that_is_reserved_and_not_made_leaves_no_room_for_another(ledger: Ledger) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    dear = GaussianEvent(mu_of(2.0, 1e-5) * 0.9, 1.0)
    with pytest.raises(ZeroDivisionError):
        ask(ledger, "a", fail, worst_case=dear)
    with pytest.raises(BudgetError, match="past its budget"):
        ask(ledger, "b", Draw(dear), worst_case=dear)


def test_one_identity_for_two_datasets_noises_or_costs_is_refused(ledger: Ledger) -> None:
    ledger.register("other", None, 1e-5, "replay")

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(ledger, "a", fail)
    for change in ({"dataset": "other"}, {"noise_kind": "replay"}, {"worst_case": RepeatedEvent(ANSWER, 2)}):
        with pytest.raises(LedgerError, match="release ID must depend on all"):
            ask(ledger, "a", Draw(), **change)


def test_replayed_noise_is_refused_on_a_dataset_kept_for_releases(ledger: Ledger) -> None:
    draw = Draw()
    with pytest.raises(LedgerError, match="Replayed noise is not private"):
        ask(ledger, "a", draw, noise_kind="replay")
    assert draw.drawn == []
    ledger.register("benchmark", None, 1e-5, "replay")
    assert ask(ledger, "b", draw, noise_kind="replay", dataset="benchmark").event == ANSWER
    with pytest.raises(SettingError, match="'secure' or 'replay'"):
        ask(ledger, "c", draw, noise_kind="none")


def test_a_dataset_without_a_budget_is_recorded_and_never_refused(ledger: Ledger) -> None:
    ledger.register("benchmark", None, 1e-5, "release")
    for name in "abc":
        ask(ledger, name, Draw(GaussianEvent(1.0, 0.1)), worst_case=GaussianEvent(1.0, 0.1), dataset="benchmark")
    assert ledger.spent("benchmark", 1e-5) > 100
    assert ledger.spent(DATASET, 1e-5) == 0


def test_registering_the_same_again_changes_nothing_and_something_else_is_refused(ledger: Ledger) -> None:
    ledger.register(DATASET, 2.0, 1e-5, "release")
    assert len(ledger.rows()) == 1
    for epsilon, delta, mode in ((3.0, 1e-5, "release"), (2.0, 1e-6, "release"), (None, 1e-5, "release")):
        with pytest.raises(LedgerError, match="ledger --budget"):
            ledger.register(DATASET, epsilon, delta, mode)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="data of the other kind"):
        ledger.register(DATASET, 2.0, 1e-5, "replay")
    ledger.register("benchmark", None, 1e-5, "replay")
    ledger.register("benchmark", None, 5e-6, "replay")
    assert ledger.datasets() == [DATASET, "benchmark"]


def test_an_account_with_a_budget_keeps_to_one_unit(place: Place) -> None:
    ledger = place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release", unit="record")
    ledger.register(DATASET, 2.0, 1e-5, "release", unit="record")
    ledger.register(DATASET, 2.0, 1e-5, "release")
    for unit in ("group", "label"):
        with pytest.raises(LedgerError, match=f"protect each record, but this one protects each {unit}"):
            ledger.register(DATASET, 2.0, 1e-5, "release", unit=unit)
    ledger.register("labels", 2.0, 1e-5, "release", unit="label")
    with pytest.raises(LedgerError, match="protect each label, but this one protects each record"):
        ledger.register("labels", 2.0, 1e-5, "release", unit="record")
    ledger.register("benchmark", None, 1e-5, "replay", unit="record")
    ledger.register("benchmark", None, 1e-5, "replay", unit="group")
    assert len(ledger.rows()) == 3
    assert place.open(create=False).verify() == 3


def test_a_budget_is_changed_by_a_row_of_its_own(ledger: Ledger) -> None:
    ask(ledger, "a", Draw())
    ledger.set_budget(DATASET, 0.1)
    assert ledger.budget(DATASET) == Budget(DATASET, 0.1, 1e-5, "release")
    with pytest.raises(BudgetError):
        ask(ledger, "b", Draw())
    ledger.set_budget(DATASET, None, 1e-6)
    assert ledger.budget(DATASET) == Budget(DATASET, None, 1e-6, "release")
    ask(ledger, "b", Draw())
    assert [row.kind for row in ledger.rows()] == [
        "register",
        "reserve",
        "commit",
        "budget",
        "budget",
        "reserve",
        "commit",
    ]


def test_a_budget_that_is_lowered_after_a_release_promises_no_less(place: Place) -> None:
    """A regenerated statement of an earlier release would otherwise claim that the lower budget covers all releases."""
    ledger = place.open()
    ledger.register(DATASET, 4.0, 1e-5, "release")
    assert ask(ledger, "a", Draw()).guarantee == 4.0
    for budget, guarantee in ((0.1, 4.0), (6.0, 6.0), (5.0, 6.0)):
        ledger.set_budget(DATASET, budget)
        assert ask(ledger, "a", Draw()).guarantee == guarantee
        if budget == 6.0:
            ask(ledger, "b", Draw())
    ledger.set_budget(DATASET, 6.0, 1e-4)
    assert ask(ledger, "a", Draw()).guarantee == 6.0
    ledger.set_budget(DATASET, 6.0, 1e-6)
    assert ask(ledger, "a", Draw()).guarantee is None


def test_nothing_is_promised_that_linked_accounts_have_passed_together(place: Place) -> None:
    ledger = place.open()
    other = "others"
    for name in (DATASET, other):
        ledger.register(name, 1.05 * price(ANSWER, 1e-5), 1e-5, "release")
        ask(ledger, name, Draw(), dataset=name)
    assert ask(ledger, DATASET, Draw()).guarantee == 1.05 * price(ANSWER, 1e-5)
    ledger.link(DATASET, other)
    assert ask(ledger, DATASET, Draw()).guarantee is None


def test_what_an_account_promised_is_promised_of_all_that_are_linked_with_it(place: Place) -> None:
    """Another account with a small budget, linked afterwards, would make one of a promise that was larger."""
    ledger = place.open()
    ledger.register("large", 8.0, 1e-5, "release")
    ask(ledger, "a", Draw(), dataset="large")
    ledger.set_budget("large", 5.0)
    ledger.register(DATASET, 5.0, 1e-5, "release")
    assert ledger.guarantee(DATASET) == 5.0
    ledger.link(DATASET, "large")
    assert ask(ledger, "b", Draw()).guarantee == ledger.guarantee("large") == 8.0


def test_nothing_is_promised_of_linked_accounts_whose_sums_are_kept_by_other_rules(place: Place) -> None:
    ledger = place.open()
    for name, event in ((DATASET, ANSWER), ("other", LaplaceEvent(1.0, 20.0))):
        ledger.register(name, 8.0, 1e-5, "release")
        ask(ledger, name, Draw(event), dataset=name, worst_case=event)
        assert ledger.guarantee(name) == 8.0
    ledger.link(DATASET, "other")
    assert ledger.guarantee(DATASET) is ledger.guarantee("other") is None


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (-1.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_an_impossible_budget_is_refused(tmp_path: Path, epsilon: float, delta: float) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", tmp_path, bytes(32))
    with pytest.raises(SettingError):
        ledger.register(DATASET, epsilon, delta, "release")
    with pytest.raises(SettingError, match="'release' or 'replay'"):
        ledger.register(DATASET, 1.0, 1e-5, "both")  # type: ignore[arg-type]
    assert ledger.rows() == []


def test_nothing_is_released_about_a_dataset_that_is_not_registered(ledger: Ledger) -> None:
    for action in (
        lambda: ask(ledger, "a", Draw(), dataset="unknown"),
        lambda: ledger.set_budget("unknown", 1.0),
        lambda: ledger.spent("unknown", 1e-5),
    ):
        with pytest.raises(LedgerError, match="dataset unknown is not registered"):
            action()


@pytest.mark.parametrize("release_id", ["", "../a", "a/b", ".hidden", "a" * 129, "a\nb"])
def test_an_identity_that_is_no_file_name_is_refused(ledger: Ledger, release_id: str) -> None:
    with pytest.raises(LedgerError, match="consists of letters"):
        ask(ledger, release_id, Draw())


def test_arrays_of_objects_are_not_stored(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="contains objects"):
        ask(ledger, "a", lambda: ({"labels": np.array([{}])}, ANSWER))


def test_scalars_empty_arrays_and_foreign_byte_orders_come_back_as_they_were(ledger: Ledger) -> None:
    arrays = {
        "queried": np.array(3),
        "none": np.zeros((0, 4)),
        "swapped": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "nan": np.array([np.nan, 1.0]),
        "file": np.array([True]),
        "seal": np.array([2]),
    }
    ask(ledger, "a", lambda: (arrays, ANSWER))
    stored = ask(ledger, "a", Draw()).arrays
    assert set(stored) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored[name], array)
        assert (stored[name].dtype, stored[name].shape) == (array.dtype, array.shape)


def test_a_ledger_is_readable_by_its_owner_alone_also_one_that_was_not(place: Place) -> None:
    database = Path(str(sql.make_url(place.url).database))
    database.parent.mkdir()
    database.touch(0o666)
    database.chmod(0o666)
    mask = os.umask(0)
    try:
        ledger = place.open()
        ledger.register(DATASET, epsilon=2.0, delta=1e-5, mode="release")
        ask(ledger, "a", Draw())
        found = [place.store, *place.store.iterdir(), *database.parent.glob("ledger.db*")]
    finally:
        os.umask(mask)
    assert len(found) >= 4
    assert not [path for path in found if path.stat().st_mode & 0o077]
