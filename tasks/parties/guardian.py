"""The guardian's service: the only party that uses the ledger for the release.

The order ensures that no release is drawn twice or unpaid:

1. Reports arrive. Each share is uniform, so nothing is spent; below the agreed number of teachers nothing happens.
2. The student party names the reports that it holds (`close`). The guardian reserves the worst case in the ledger,
   draws the noise, and stores the noised sums of the reports that both hold, in one transaction.
3. The circuit is garbled block by block. Every request is stored before it is answered, so a repeated request gets
   the same bytes and a different one is refused.
4. The student party stores its answers and reports this (`done`). The realised cost is charged.

With several rounds, 1 to 3 happen in each, and the ledger is charged once for all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tasks.parties.client import CollaborationError
from tasks.parties.config import PartyConfig
from tasks.parties.ledgers import PaidRelease
from tasks.parties.service import ROUND, Call, Collaboration, PartyService, Route, as_verification, log
from tasks.parties.terms import Role
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.report import sum_reports
from terrine.errors import InputError

_MOST_NAMES = 2**22
_STUDENT: tuple[Role, ...] = ("student",)


class GuardianService(PartyService):
    """See `PartyService`."""

    second = False

    def __init__(self, config: PartyConfig) -> None:
        self._paid: dict[str, PaidRelease] = {}
        self._rounds: dict[tuple[str, int], GuardianRound] = {}
        super().__init__(config)

    def check(self, collaboration: Collaboration) -> None:
        """See `PartyService`. Raises BudgetError if the account cannot pay for the release."""
        self._release(collaboration).was_made()

    def _release(self, collaboration: Collaboration) -> PaidRelease:
        if collaboration.digest not in self._paid:
            self._paid[collaboration.digest] = PaidRelease(collaboration.config)
        return self._paid[collaboration.digest]

    def _round(self, collaboration: Collaboration, number: int) -> GuardianRound:
        """Return a round; the previous round is dropped with its buffers."""
        key = (collaboration.digest, number)
        if key not in self._rounds:
            self._rounds.clear()
            self._rounds[key] = GuardianRound(collaboration.agreement(number), collaboration.facts(number))
        return self._rounds[key]

    def current_round(self, collaboration: Collaboration) -> int:
        """See `PartyService`."""
        return len(collaboration.whole.named("counted/"))

    @property
    def routes(self) -> list[Route]:
        """See `PartyService`."""
        block = "{block:int}"
        return [
            *super().routes,
            Route("POST", f"{ROUND}/verify", _STUDENT, self._verify, _MOST_NAMES),
            Route("POST", f"{ROUND}/close", _STUDENT, self._close, _MOST_NAMES),
            Route("POST", f"{ROUND}/base", _STUDENT, partial(self._compute, "base"), 64),
            Route("POST", f"{ROUND}/blocks/{block}", _STUDENT, partial(self._compute, "block")),
            Route("POST", f"{ROUND}/opened/{block}", _STUDENT, partial(self._compute, "opened")),
            Route("POST", f"{ROUND}/counts/{block}", _STUDENT, partial(self._compute, "counts"), 0),
            Route("POST", "done", _STUDENT, self._done, 0),
        ]

    def _verify(self, call: Call) -> dict[str, Any]:
        """Compare openings of proofs; return this service's openings of the reports that it holds, by party."""
        answer: dict[str, str] = {}
        with self.store.transaction():
            for party, opening in call.json(dict).items():
                own = self.verification(call.collaboration, call.number, party)
                if own is None:
                    continue
                try:
                    other = as_verification(bytes.fromhex(opening))
                except (TypeError, ValueError) as error:
                    raise InputError("The body is not a list of openings.") from error
                call.collaboration.verify(call.number, party, own, other)
                answer[party] = (own.transcript.tobytes() + own.opened.tobytes()).hex()
        return answer

    def _close(self, call: Call) -> bytes:
        """Close a round with the reports that both services accept; draw the noise once."""
        collaboration, number, names = call.collaboration, call.number, call.json(list)
        with collaboration.lock:
            current = self._round(collaboration, number)
            if not current.settled:
                self._settle(collaboration, current, number, [str(name) for name in names])
            counted = collaboration.whole.keep(f"counted/{number}", current.present)
            log.info("%s: round %d is closed with %d parties", self.name, number, len(counted))
            return current.closing

    def _settle(self, collaboration: Collaboration, current: GuardianRound, number: int, names: list[str]) -> None:
        terms = collaboration.terms
        if number != self.current_round(collaboration):
            raise CollaborationError(
                f"Round {number} is not open at the guardian: its state is older than the student party's. Restore "
                "its latest backup. A second draw of the noise would cost more than the ledger has recorded."
            )
        both = {*collaboration.accepted(number)} & {*names}
        present = [name for name in terms.teachers if name in both]
        if (there := sum(terms.teachers[name] for name in present)) < terms.minimum:
            raise CollaborationError(f"Reports of {there} teachers are here, and {terms.minimum} are needed.")
        release = self._release(collaboration)
        if release.was_made():
            raise CollaborationError(
                "This release was made before, and its answers were given to the student party. Restore its folder, or "
                "agree on another edition. No noise was drawn, and nothing was charged."
            )
        sums = sum_reports(collaboration.agreement(number), collaboration.bodies(number, present))
        current.settle(sums, present, partial(release.draw, number))

    def _compute(self, step: str, call: Call) -> bytes:
        with call.collaboration.lock:
            current = self._round(call.collaboration, call.number)
            if step == "base":
                return current.base(call.body)
            block = int(call.parameters["block"])
            if step == "counts":
                return current.counts(block)
            return current.block(block, call.body) if step == "block" else current.opened(block, call.body)

    def _done(self, call: Call) -> dict[str, Any]:
        """Charge the cost of the release; return the guardian's record."""
        collaboration, terms = call.collaboration, call.collaboration.terms
        with collaboration.lock:
            record = collaboration.whole.value("record")
            if record is None:
                if terms.last not in collaboration.counted():
                    raise CollaborationError("The last round is not closed: nothing can be charged yet.")
                current = self._round(collaboration, terms.last)
                passed = current.passed
                if passed is None:
                    if collaboration.agreement(terms.last).threshold is not None:
                        raise CollaborationError("The test is not complete: nothing can be charged yet.")
                    passed = np.ones(terms.queried, bool)
                paid = self._release(collaboration)
                release = paid.open() or paid.settle(passed)
                record = collaboration.whole.keep("record", paid.record(release, current.present))
                log.info("%s: charged ε = %g", self.name, record["epsilon"])
            self.store.clear(collaboration.digest)
            self._rounds.clear()
        return dict(record)
