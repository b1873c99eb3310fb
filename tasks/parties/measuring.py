"""The parties of a collaboration meet again: one accuracy of their student, of all of them, with the noise of one.

It is a session like that of the vote, on terms of its own (`tasks.parties.agreement.accuracy`); so what holds of that
holds of this. It is charged, once, to the collaboration's account before the noise is drawn, and to a teacher party's
own before its share leaves. It costs nothing where fewer than `minimum` teachers' parties come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.parties.agreement.accuracy import AccuracyTerms
from tasks.parties.config import PartyConfig
from tasks.parties.process import host_of

PLACE = "accuracy"
"""The folder of the meeting, in that of the party's state and in that of its answers."""


def meeting(config: PartyConfig, terms: AccuracyTerms) -> PartyConfig:
    """Return the party's configuration in this meeting, which its ledger calls as the collaboration."""
    answers, ledger = None if config.answers is None else config.answers / PLACE, config.ledger
    if ledger is not None:
        ledger = ledger.model_copy(update={"run": ledger.run or config.terms.called})
    changed = {"terms": terms, "state": config.state / PLACE, "answers": answers, "ledger": ledger}
    return config.model_copy(update=changed)


def measure(config: PartyConfig, terms: AccuracyTerms, shares: np.ndarray | None = None) -> dict[str, Any]:
    """Take part in the release of one accuracy; return what came out (`Host.run`), again where it was made before.

    shares: of a teacher party, float64 [units]: of each unit's records the share that the student is right about.
    """
    given = None if shares is None else terms.shared(shares)
    host = host_of(meeting(config, terms), None if given is None else lambda number, head: given)
    return host.run(stay=config.role == "guardian")
