"""The ledger between processes: nothing is spent twice, nothing is drawn twice."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from terrine.errors import BudgetError
from terrine.privacy.accounting.events import RepeatedEvent
from terrine.privacy.accounting.pricing import price
from tests.processes import CONTEXT, process
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work` in this many processes at the same moment; return what each returns or raises."""
    barrier, queue = CONTEXT.Barrier(count), CONTEXT.Queue()

    def run(number: int, barrier: Any, queue: Any) -> None:
        barrier.wait()
        try:
            queue.put(work(number))
        except BudgetError as error:
            queue.put(error)
        except BaseException:
            queue.put(traceback.format_exc())

    processes = [process(run, number, barrier, queue) for number in range(count)]
    for one in processes:
        one.start()
    outcomes = [queue.get(timeout=120) for _ in processes]
    for one in processes:
        one.join()
    failures = [outcome for outcome in outcomes if isinstance(outcome, str) and "Traceback" in outcome]
    assert not failures, failures[0]
    return outcomes


def test_ten_processes_with_room_for_three_make_exactly_three_releases(any_place: Place) -> None:
    # Each makes the ledger and registers the dataset itself: beginning is part of the race.
    budget = price(RepeatedEvent(ANSWER, 3), 1e-5) * 1.01

    def work(number: int) -> Any:
        ledger = any_place.open()
        ledger.register(DATASET, budget, 1e-5, "release")
        return ask(ledger, f"release-{number}", Draw()).release_id

    outcomes = together(10, work)
    released = [outcome for outcome in outcomes if isinstance(outcome, str)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, BudgetError)]
    assert (len(released), len(refused)) == (3, 7), outcomes
    ledger = any_place.open()
    assert ledger.events(DATASET) == [ANSWER] * 3
    assert ledger.spent(DATASET, 1e-5) == price(RepeatedEvent(ANSWER, 3), 1e-5)
    assert ledger.verify() == 1 + 2 * 3
    assert {path.stem for path in any_place.store.glob("*.npz")} == set(released)


def test_processes_that_ask_for_one_release_get_one_draw(any_place: Place) -> None:
    ledger = any_place.open()
    ledger.register(DATASET, 2.0, 1e-5, "release")

    def work(number: int) -> Any:
        draw = Draw()
        release = ask(any_place.open(), "same", draw)
        return len(draw.drawn), release.reused, release.arrays["labels"].tolist()

    outcomes = together(6, work)
    assert sorted(outcome[:2] for outcome in outcomes) == [(0, True)] * 5 + [(1, False)], outcomes
    labels = ask(ledger, "same", Draw()).arrays["labels"]
    for outcome in outcomes:
        np.testing.assert_array_equal(outcome[2], labels)
    assert ledger.verify() == 3
    assert sorted(path.name for path in any_place.store.iterdir()) == ["head.json", "same.npz"]
