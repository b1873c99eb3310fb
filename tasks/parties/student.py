"""The student party's service: receives reports, drives the joint computation, and stores the answers.

One thread advances all collaborations. In each round it verifies new reports together with the guardian, closes the
round when all awaited reports are accepted or at the deadline, computes, and publishes the weights of the next round.
Below the agreed number of teachers a round stays open after its deadline; that costs nothing.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tasks.parties.answers import stored_answers, write_answers
from tasks.parties.client import CollaborationError, ServiceClient, UnreachableError
from tasks.parties.config import PartyConfig
from tasks.parties.service import ACCEPTED, ROUND, Call, Collaboration, PartyService, Route, as_verification, log
from terrine.collaboration.protocol.agreement import arrays_of
from terrine.collaboration.protocol.phase import ORIGIN
from terrine.collaboration.protocol.report import sum_reports
from terrine.collaboration.protocol.student_round import StudentRound
from terrine.errors import TerrineError

_BATCH = 500
_INTERVAL = 0.3  # seconds between two checks for new reports


class StudentService(PartyService):
    """See `PartyService`."""

    second = True

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        self._guardians: dict[str, ServiceClient] = {}

    def start(self) -> None:
        """See `PartyService`."""
        threading.Thread(target=self._work, name="student", daemon=True).start()

    def check(self, collaboration: Collaboration) -> None:
        """See `PartyService`. Raises ArtefactError if the folder of answers contains other answers."""
        stored_answers(collaboration.config)

    @property
    def routes(self) -> list[Route]:
        """See `PartyService`."""
        return [*super().routes, Route("GET", f"{ROUND}/weights", ("teacher",), self._weights, 0)]

    def current_round(self, collaboration: Collaboration) -> int:
        """See `PartyService`."""
        return len(collaboration.whole.named("opened/"))

    def status(self, call: Call) -> dict[str, Any]:
        """See `PartyService`."""
        about = super().status(call)
        if (since := call.collaboration.facts(about["round"]).value("since")) is not None:
            closes = datetime.fromtimestamp(since + call.collaboration.terms.deadline, UTC)
            about["closes"] = closes.isoformat(timespec="seconds")
        return about

    def _weights(self, call: Call) -> bytes:
        if not 0 < call.number <= self.current_round(call.collaboration):
            raise CollaborationError(f"There are no weights of round {call.number} yet.")
        return self.weights(call.collaboration, call.number).astype("<f8").tobytes()

    @staticmethod
    def weights(collaboration: Collaboration, number: int) -> np.ndarray:
        """Return the weights of a round after the first: float64, from what earlier rounds revealed."""
        summed = collaboration.terms.summed
        assert summed is not None
        state = summed.iterator()
        for earlier in range(number):
            state.receive(summed.opened(_result(collaboration, earlier), earlier))
        assert state.broadcast is not None
        return state.broadcast

    def _work(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            for collaboration in self.collaborations():
                try:
                    while collaboration.problem is None and self.advance(collaboration):
                        pass
                except UnreachableError as error:
                    log.warning("%s: %s", self.name, error)
                except TerrineError as error:
                    collaboration.problem = str(error)
                    log.error("%s: stopped. %s", self.name, error)
                except Exception as error:
                    collaboration.problem = "The service failed; its log has the traceback."
                    log.exception("%s: %s", self.name, error)

    def _post(self, collaboration: Collaboration, path: str, body: bytes = b"") -> bytes:
        """Send a request to the guardian and return its answer."""
        if collaboration.digest not in self._guardians:
            self._guardians[collaboration.digest] = ServiceClient(collaboration.config, "guardian")
        return self._guardians[collaboration.digest].request("POST", path, body)

    def advance(self, collaboration: Collaboration) -> bool:
        """Do the next step if it is possible; return whether another one may follow at once.

        Raises:
            CollaborationError: The collaboration cannot continue.
        """
        if collaboration.whole.get("record") is not None:
            return False
        number = self.current_round(collaboration)
        if number > collaboration.terms.last:
            return self._finish(collaboration)
        facts = collaboration.facts(number)
        if facts.get("closed") is None:
            since = facts.keep("since", time.time())
            self._verify(collaboration, number, {*facts.named("proof/")} - {*facts.named("verdict/")})
            if not self._may_close(collaboration, number, since, collaboration.accepted(number)):
                return False
            # A guardian that was restored from a backup may have lost reports and verdicts.
            names = self._verify(collaboration, number, {*collaboration.accepted(number)})
            if not self._may_close(collaboration, number, since, names):
                return False
            self._close(collaboration, number, names)
        self._compute(collaboration, number)
        return True

    def _verify(self, collaboration: Collaboration, number: int, parties: set[str]) -> list[str]:
        """Verify reports together with the guardian; return the parties whose reports both services accept."""
        proofs, found = collaboration.facts(number).named("proof/"), []
        waiting = sorted(parties)
        for first in range(0, len(waiting), _BATCH):
            batch = {party: proofs[party].hex() for party in waiting[first : first + _BATCH]}
            answer = json.loads(self._post(collaboration, f"rounds/{number}/verify", json.dumps(batch).encode()))
            with self.store.transaction():
                for party in sorted({*answer} & {*batch}):
                    other = as_verification(bytes.fromhex(answer[party]))
                    verdict = collaboration.verify(number, party, as_verification(proofs[party]), other)
                    found += [party] if verdict == ACCEPTED else []
        return found

    def _may_close(self, collaboration: Collaboration, number: int, since: float, names: list[str]) -> bool:
        """Return whether the round can be closed with the reports of these parties."""
        terms = collaboration.terms
        if sum(terms.teachers[name] for name in names) < terms.minimum:
            return False
        awaited = collaboration.counted().get(number - 1, list(terms.teachers))
        missing = {*awaited} - {*collaboration.refused(number)} - {*names}
        return not missing or time.time() > since + terms.deadline

    def _close(self, collaboration: Collaboration, number: int, names: list[str]) -> None:
        """Have the guardian close the round with these parties, and store those that it counts."""
        teachers = collaboration.terms.teachers
        closing = self._post(collaboration, f"rounds/{number}/close", json.dumps(names).encode())
        _, flags = arrays_of(closing, [("u1", (ORIGIN,)), ("u1", (len(teachers),))])
        counted = [name for name, flag in zip(teachers, flags, strict=True) if flag]
        if lost := {*counted} - {*collaboration.accepted(number)}:
            raise CollaborationError(
                f"The guardian counts {', '.join(sorted(lost))}, whose reports are not here: this party's state is "
                "older than the guardian's. Restore its latest backup."
            )
        with self.store.transaction():
            collaboration.facts(number).setdefault("closed", closing)
            collaboration.whole.keep(f"counted/{number}", counted)
        log.info("%s: round %d is closed with %d parties", self.name, number, len(counted))

    def _compute(self, collaboration: Collaboration, number: int) -> None:
        """Compute and store a closed round's answers."""
        facts, agreement = collaboration.facts(number), collaboration.agreement(number)
        closing = facts.get("closed")
        assert closing is not None
        shares = sum_reports(agreement, collaboration.bodies(number, collaboration.counted()[number]))

        def post(path: str, body: bytes) -> bytes:
            return self._post(collaboration, f"rounds/{number}/{path}", body)

        passed, result = StudentRound(agreement, facts, closing, shares, post).run()
        with self.store.transaction():
            if number == collaboration.terms.last:
                collaboration.whole.setdefault("passed", passed.tobytes())
            collaboration.whole.setdefault(f"opened/{number}", result.astype("<i8").tobytes())

    def _finish(self, collaboration: Collaboration) -> bool:
        """Write the answers, have the cost charged, and write the guardian's record."""
        terms = collaboration.terms
        *earlier, last = (_result(collaboration, number) for number in range(terms.last + 1))
        passed = np.frombuffer(collaboration.whole.get("passed") or b"", np.bool_)
        shape = (-1,) if terms.votes and terms.reveals == "argmax" else (-1, terms.classes if terms.votes else 1)
        result, opened = last.reshape(shape), [] if terms.votes else [total[:, None] for total in earlier]
        arrays = {
            "passed": np.concatenate([*(np.ones(len(total), bool) for total in opened), passed]),
            "result": np.concatenate([*opened, result]),
        }
        about: dict[str, Any] = {"terms": collaboration.digest, "unit": terms.unit, "guardian": None}
        about["opened"] = collaboration.whole.keep("answered", datetime.now(UTC).isoformat(timespec="seconds"))
        write_answers(collaboration.config, arrays, about)
        record = json.loads(self._post(collaboration, "done"))
        write_answers(collaboration.config, arrays, about | {"guardian": record})
        collaboration.whole.keep("record", record)
        self.store.clear(collaboration.digest)
        log.info("%s: the answers are in %s, ε = %g", self.name, collaboration.config.answers, record["epsilon"])
        return False


def _result(collaboration: Collaboration, number: int) -> np.ndarray:
    """Return the opened numbers of a round, int64 [numbers]."""
    return np.frombuffer(collaboration.whole.get(f"opened/{number}") or b"", "<i8")
