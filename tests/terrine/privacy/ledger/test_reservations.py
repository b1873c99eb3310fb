"""Reservations: charged when they are made, locked until they are committed or closed."""

import gc
import threading

import numpy as np
import pytest

from terrine.errors import BudgetError, LedgerError
from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.release_protocol import Reservation
from tests.terrine.privacy.ledger.helpers import DATASET, Draw, Place, ask

ANSWER = vote_answer(20.0)
WORST = RepeatedEvent(ANSWER, 10)


@pytest.fixture
def ledger(any_place: Place) -> Ledger:
    ledger = any_place.open(draw_patience=0.3)
    ledger.register(DATASET, 2.0, 1e-5, "release")
    return ledger


def reserve(ledger: Ledger, queries: int = 10) -> Reservation:
    return ledger.reserve(
        dataset=DATASET,
        release_id="a",
        run="r",
        worst_case=RepeatedEvent(ANSWER, queries),
        delta=1e-5,
        noise_kind="secure",
    )


def kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in ledger.rows()]


def test_the_worst_case_is_charged_when_it_is_reserved_and_the_cost_when_it_is_committed(ledger: Ledger) -> None:
    reservation = reserve(ledger)
    assert reservation.release is None
    assert kinds(ledger) == ["register", "reserve"]
    assert ledger.events(DATASET) == [WORST]
    release = reservation.commit({"passed": np.ones(10, bool)}, RepeatedEvent(ANSWER, 4))
    assert reservation.release is release
    assert kinds(ledger) == ["register", "reserve", "commit"]
    assert ledger.events(DATASET) == [RepeatedEvent(ANSWER, 4)] == [release.event]
    with pytest.raises(LedgerError, match="is closed"):
        reservation.commit({}, RepeatedEvent(ANSWER, 4))
    again = reserve(ledger).release
    assert again is not None
    assert again.reused
    np.testing.assert_array_equal(again.arrays["passed"], np.ones(10, bool))


def test_a_reservation_that_is_closed_stays_charged_and_can_be_reserved_again(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError), reserve(ledger):
        raise ZeroDivisionError
    forgotten = reserve(ledger)
    del forgotten
    gc.collect()
    second = reserve(ledger)
    assert kinds(ledger) == ["register", "reserve"]
    assert ledger.events(DATASET) == [WORST]
    second.commit({}, WORST)


def test_while_it_is_open_nobody_else_can_draw_the_same_release_and_another_thread_may_commit_it(
    ledger: Ledger, any_place: Place
) -> None:
    reservation, draw, found = reserve(ledger), Draw(WORST), []

    def other() -> None:
        try:
            ask(any_place.open(draw_patience=0.3), "a", draw, worst_case=WORST)
        except LedgerError as error:
            found.append(str(error))

    for work in (other, lambda: found.append(reservation.commit({}, WORST).reused), other):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "has held" in found[0]
    assert found[1:] == [False]
    assert draw.drawn == []
    assert kinds(ledger) == ["register", "reserve", "commit"]
    assert not list(any_place.store.glob("*.lock"))


def test_over_budget_nothing_is_reserved(ledger: Ledger, any_place: Place) -> None:
    with pytest.raises(BudgetError):
        reserve(ledger, 100_000)
    assert kinds(ledger) == ["register"]
    assert not list(any_place.store.glob("*.lock"))


def test_a_cost_above_the_reservation_is_refused_and_may_be_drawn_again(ledger: Ledger) -> None:
    with reserve(ledger) as reservation:
        with pytest.raises(LedgerError, match="more than"):
            reservation.commit({}, RepeatedEvent(ANSWER, 11))
        assert kinds(ledger) == ["register", "reserve"]
        assert not reservation.commit({}, WORST).reused
