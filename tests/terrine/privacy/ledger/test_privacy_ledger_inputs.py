"""What a release was made from: sealed with it, decided by nothing, and found again after an upgrade."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from privacy_ledger_help import ANSWER, DATASET, Draw, Place, ask

from terrine.errors import LedgerError
from terrine.privacy.accounting.events import GaussianEvent, compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.transaction import LedgerTransaction

OTHER = GaussianEvent(1.0, 11.0)


@pytest.fixture
def earlier(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make releases as an earlier version did: under identities that said nothing of how they were made."""
    append = LedgerTransaction.append

    def without_mark(
        transaction: LedgerTransaction, kind: str, dataset: str, release_id: str | None, body: dict
    ) -> Any:
        return append(transaction, kind, dataset, release_id, {k: v for k, v in body.items() if k != "identity"})

    def make(release_id: str, **changes: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(LedgerTransaction, "append", without_mark)
            return ask(ledger, release_id, changes.pop("draw", Draw()), **changes)

    return make


def test_other_inputs_under_one_identity_get_what_was_released_and_cost_nothing(ledger: Ledger) -> None:
    first = ask(ledger, "a", Draw(), inputs={"votes": "of version 1"})
    draw = Draw()
    again = ask(ledger, "a", draw, inputs={"votes": "of version 2"})
    assert draw.drawn == []
    assert (again.digest, again.event, again.epsilon_total) == (first.digest, first.event, first.epsilon_total)
    np.testing.assert_array_equal(first.arrays["labels"], again.arrays["labels"])
    assert first.inputs == again.inputs == {"votes": "of version 1"}
    assert ledger.events(DATASET) == [ANSWER]


def test_inputs_are_sealed_with_the_release(ledger: Ledger, place: Place) -> None:
    ask(ledger, "a", Draw(), inputs={"votes": "of version 1"})
    path = place.store / "a.npz"
    with np.load(path) as file:
        members = {name: file[name] for name in file.files}
    members["inputs"] = np.frombuffer(b'{"votes":"of version 2"}', dtype=np.uint8)
    np.savez(path, **members)
    with pytest.raises(LedgerError, match="changed by hand"):
        ask(ledger, "a", Draw())
    del members["inputs"]
    np.savez(path, **members)
    with pytest.raises(LedgerError, match="changed by hand"):
        ledger.verify()


def test_a_release_of_an_earlier_version_is_found_by_the_run_that_made_it(
    ledger: Ledger, earlier: Callable[..., Any]
) -> None:
    old = earlier("hash-of-votes", run="mine")
    earlier("hash-of-other-votes", run="not mine")
    draw = Draw()
    for _ in range(2):
        found = ask(ledger, "public", draw, run="mine", made_by=lambda run: run == "mine")
        assert (found.release_id, found.reused, found.inputs) == ("hash-of-votes", True, {})
        np.testing.assert_array_equal(found.arrays["labels"], old.arrays["labels"])
        assert found.epsilon_total == old.epsilon_total
    assert draw.drawn == []
    assert ledger.events(DATASET) == [ANSWER, ANSWER]
    assert [row.kind for row in ledger.rows()].count("adopt") == 1
    assert ledger.verify() == 6


def test_what_no_earlier_run_made_is_drawn(ledger: Ledger, earlier: Callable[..., Any]) -> None:
    earlier("another-runs", run="not mine")
    earlier("another-cost", run="mine", worst_case=OTHER, draw=Draw(OTHER))
    ask(ledger, "of-this-version", Draw(), run="mine")
    draw = Draw()
    assert ask(ledger, "public", draw, made_by=lambda run: run == "mine").release_id == "public"
    assert len(draw.drawn) == 1


def test_rounds_of_an_earlier_version_are_found_in_their_order_each_once(
    ledger: Ledger, earlier: Callable[..., Any]
) -> None:
    for number in range(2):
        earlier(f"old-round-{number}", run="mine")
    found = [ask(ledger, f"round-{n}", Draw(), made_by=lambda run: run == "mine").release_id for n in range(3)]
    assert found == ["old-round-0", "old-round-1", "round-2"]
    again = [ask(ledger, f"round-{n}", Draw(), made_by=lambda run: run == "mine").release_id for n in range(3)]
    assert again == found


def test_a_release_that_was_reserved_and_never_made_is_not_adopted(ledger: Ledger, earlier: Callable[..., Any]) -> None:
    def dies() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        earlier("old", run="mine", draw=dies)
    draw = Draw()
    ask(ledger, "public", draw, made_by=lambda run: run == "mine")
    assert len(draw.drawn) == 1


def test_a_release_adopted_from_another_account_counts_in_both(ledger: Ledger, earlier: Callable[..., Any]) -> None:
    """A benchmark's account was named by a digest of its images once, and is named by its name now."""
    old = earlier("old", run="mine")
    ledger.register("by its name", epsilon=2.0, delta=1e-5, mode="release")
    ask(ledger, "before", Draw(OTHER), dataset="by its name", worst_case=OTHER)
    found = ask(ledger, "public", Draw(), dataset="by its name", made_by=lambda run: run == "mine")
    np.testing.assert_array_equal(found.arrays["labels"], old.arrays["labels"])
    assert ledger.events("by its name") == [OTHER, ANSWER]
    assert found.epsilon_total == price(compose(OTHER, ANSWER), 1e-5)
    assert ledger.events(DATASET) == [ANSWER]
    ledger.verify()
