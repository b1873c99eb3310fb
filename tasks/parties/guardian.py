"""The guardian's service: the only party that uses the ledger for the release.

The order keeps a release from being drawn twice, or unpaid:

1. Reports arrive. Each share is uniform; nothing is spent, and below the agreed number of teachers nothing happens.
2. The student party says which reports it holds (`close`). The guardian reserves the worst case in the ledger, draws
   the noise, and stores the noised sums of the reports that both hold, at once.
3. The circuit is garbled block by block. Every question is stored before it is answered, so a repeated question gets
   the same bytes and a different one is refused.
4. The student party has stored its answers and says so (`done`). The realised cost is charged.

With several rounds, 1 to 3 happen in each, and the ledger is charged once for all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tasks.parties.client import CollaborationError
from tasks.parties.config import PartyConfig
from tasks.parties.ledgers import PaidRelease
from tasks.parties.service import (
    ACCEPTED,
    REFUSED,
    ROUND,
    STUDENT,
    Call,
    Collaboration,
    PartyService,
    Route,
    log,
    opened_numbers,
)
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.proof import accepted
from terrine.collaboration.protocol.report import sum_reports
from terrine.errors import InputError

_MOST_NAMES = 2**22


class GuardianService(PartyService):
    """See `PartyService`."""

    second = False

    def __init__(self, config: PartyConfig) -> None:
        self._paid: dict[str, PaidRelease] = {}
        self._rounds: dict[tuple[str, int], GuardianRound] = {}
        super().__init__(config)

    def configured(self, terms: Any) -> PartyConfig:
        """See `PartyService`. The account keeps the name of the collaboration for its accuracy, too."""
        config, ledger = super().configured(terms), self.config.ledger
        assert ledger is not None
        named = ledger.model_copy(update={"run": ledger.run or self.config.terms.called})
        return config.model_copy(update={"ledger": named})

    def check(self, collaboration: Collaboration) -> None:
        """See `PartyService`. Raises BudgetError if the account cannot pay for the release."""
        self._release(collaboration).was_made()

    def _release(self, collaboration: Collaboration) -> PaidRelease:
        if collaboration.digest not in self._paid:
            self._paid[collaboration.digest] = PaidRelease(collaboration.config)
        return self._paid[collaboration.digest]

    def _round(self, collaboration: Collaboration, number: int) -> GuardianRound:
        """Return a round; the one before is dropped with its buffers."""
        key = (collaboration.digest, number)
        if key not in self._rounds:
            self._rounds.clear()
            self._rounds[key] = GuardianRound(collaboration.agreement(number), collaboration.facts(number))
        return self._rounds[key]

    def round_of(self, collaboration: Collaboration) -> int:
        """See `PartyService`."""
        return len(collaboration.counted())

    @property
    def routes(self) -> list[Route]:
        """See `PartyService`."""
        block = "{block:int}"
        return [
            *super().routes,
            Route("POST", f"{ROUND}/verify", STUDENT, self._verify, _MOST_NAMES),
            Route("POST", f"{ROUND}/close", STUDENT, self._close, _MOST_NAMES),
            Route("POST", f"{ROUND}/base", STUDENT, partial(self._computed, "base"), 64),
            Route("POST", f"{ROUND}/blocks/{block}", STUDENT, partial(self._computed, "block")),
            Route("POST", f"{ROUND}/opened/{block}", STUDENT, partial(self._computed, "opened")),
            Route("POST", f"{ROUND}/counts/{block}", STUDENT, partial(self._computed, "counts"), 0),
            Route("POST", "done", STUDENT, self._done, 0),
        ]

    def _verify(self, call: Call) -> dict[str, Any]:
        """Compare openings of proofs; return own openings, None for a report that is not here."""
        said, collaboration = call.json(), call.collaboration
        answer: dict[str, Any] = {}
        try:
            for party, (transcript, opened) in said.items():
                report = self.store.report(collaboration.digest, call.number, str(party))
                if report is None:
                    answer[party] = None
                    continue
                own = opened_numbers(report.opened)
                same = report.transcript.hex() == transcript
                theirs = np.array(opened, np.uint64)
                votes = collaboration.agreement(call.number).reveal == "sums" or accepted(own, theirs.reshape(3))
                facts = collaboration.facts(call.number)
                facts.setdefault(f"verdict/{party}", ACCEPTED if same and votes else REFUSED)
                answer[party] = [report.transcript.hex(), own.tolist()]
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise InputError("The body is no list of openings.") from error
        return answer

    def _close(self, call: Call) -> bytes:
        """Close a round with the reports that both services hold and accept; draw the noise once."""
        collaboration, number = call.collaboration, call.number
        names = call.json()
        if not isinstance(names, list):
            raise InputError("The body is no list of parties.")
        with collaboration.lock:
            current = self._round(collaboration, number)
            if not current.settled:
                self._settle(collaboration, current, number, [str(name) for name in names])
            counted = collaboration.whole.keep(f"counted/{number}", current.present)
            log.info("%s: round %d is closed with %d parties", self.name, number, len(counted))
            return current.closing

    def _settle(self, collaboration: Collaboration, current: GuardianRound, number: int, names: list[str]) -> None:
        terms = collaboration.terms
        if number != self.round_of(collaboration):
            raise CollaborationError(
                f"Round {number} is not the one that is open at the guardian. Its state is older than the student "
                "party's: restore its latest backup. A second draw of the noise would cost what no ledger says."
            )
        verdicts = collaboration.facts(number).named("verdict/")
        present = [name for name in terms.teachers if name in names and verdicts.get(name) == ACCEPTED]
        if (there := sum(terms.teachers[name] for name in present)) < terms.minimum:
            raise CollaborationError(f"Reports of {there} teachers are here, and {terms.minimum} are needed.")
        if self._release(collaboration).was_made():
            raise CollaborationError(
                "This release was made before, and its answers were given to the student party. Restore its folder, or "
                "agree on another edition. Nothing was drawn and nothing was charged."
            )
        bodies = self.store.bodies(collaboration.digest, number, present)
        sums = sum_reports(collaboration.agreement(number), bodies)
        current.settle(sums, present, partial(self._release(collaboration).draw, number))

    def _computed(self, what: str, call: Call) -> bytes:
        collaboration = call.collaboration
        with collaboration.lock:
            current = self._round(collaboration, call.number)
            if what == "base":
                return current.base(call.body)
            block = int(call.parameters["block"])
            if what == "counts":
                return current.counts(block)
            return current.block(block, call.body) if what == "block" else current.opened(block, call.body)

    def _done(self, call: Call) -> dict[str, Any]:
        """Charge what the release cost; return the guardian's record."""
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
                    passed = np.ones(terms.asked, bool)
                paid = self._release(collaboration)
                before = paid.open()
                release = paid.settle(passed) if before is None else before
                record = collaboration.whole.keep("record", paid.record(release, current.present, reused=False))
                log.info("%s: charged ε = %g", self.name, record["epsilon"])
            self.store.clear(collaboration.digest)
            self._rounds.clear()
        return dict(record)
