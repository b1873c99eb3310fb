"""A release that is reserved first and settled later, through the ledger's one door."""

import threading

import numpy as np
import pytest

from tasks.runtime.reservation import Reservation
from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key


@pytest.fixture
def ledger(tmp_path):
    def opened():
        key = load_or_create_key(tmp_path / "key")
        return Ledger(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "releases", key, draw_patience=2.0)

    opened().register("data", epsilon=2.0, delta=1e-5, mode="release")
    return opened


def reservation(ledger, queries=10, name="a" * 64):
    return Reservation(
        ledger,
        dataset="data",
        release_id=name,
        run="r",
        worst_case=RepeatedEvent(vote_answer(20.0), queries),
        delta=1e-5,
        noise_kind="secure",
    )


def kinds(ledger):
    return [row.kind for row in ledger().rows()]


def test_the_worst_case_is_charged_while_it_is_open_and_what_it_cost_when_it_is_settled(ledger):
    opened = reservation(ledger)
    assert opened.open() is None
    assert opened.open() is None  # once
    assert kinds(ledger) == ["register", "reserve"]
    assert ledger().events("data") == [RepeatedEvent(vote_answer(20.0), 10)]
    release = opened.settle({"passed": np.ones(10, bool)}, RepeatedEvent(vote_answer(20.0), 4))
    assert kinds(ledger) == ["register", "reserve", "commit"]
    assert ledger().events("data") == [RepeatedEvent(vote_answer(20.0), 4)] == [release.event]
    again = reservation(ledger).open()
    assert again.reused
    np.testing.assert_array_equal(again.arrays["passed"], np.ones(10, bool))


def test_what_is_abandoned_stays_charged_and_can_be_taken_up_again(ledger):
    first = reservation(ledger)
    first.open()
    first.abandon()
    assert ledger().events("data") == [RepeatedEvent(vote_answer(20.0), 10)]
    second = reservation(ledger)
    assert second.open() is None
    assert kinds(ledger) == ["register", "reserve"]
    second.settle({}, RepeatedEvent(vote_answer(20.0), 10))


def test_while_one_is_open_another_process_cannot_open_the_same(ledger):
    first = reservation(ledger)
    first.open()
    with pytest.raises(LedgerError, match="has held"):
        reservation(ledger).open()
    first.abandon()


def test_over_budget_nothing_is_opened(ledger):
    opened = reservation(ledger, queries=100_000)
    with pytest.raises(BudgetError):
        opened.open()
    assert kinds(ledger) == ["register"]
    with pytest.raises(LedgerError, match="Nothing was reserved"):
        opened.settle({}, RepeatedEvent(vote_answer(20.0), 1))


def test_a_cost_above_the_reservation_is_refused(ledger):
    opened = reservation(ledger)
    opened.open()
    with pytest.raises(LedgerError, match="more than"):
        opened.settle({}, RepeatedEvent(vote_answer(20.0), 11))
    assert kinds(ledger) == ["register", "reserve"]
    assert not [thread for thread in threading.enumerate() if thread.name == "reservation" and thread.is_alive()]
