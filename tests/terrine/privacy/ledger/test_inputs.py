"""Inputs of a release: sealed with it, but without effect on its identity."""

import numpy as np
import pytest

from terrine.errors import LedgerError
from terrine.privacy.ledger.ledger import Ledger
from tests.terrine.privacy.ledger.helpers import ANSWER, DATASET, Draw, Place, ask


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
