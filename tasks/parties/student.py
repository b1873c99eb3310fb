"""The student party's service: it takes reports, drives the joint computation, and stores the answers.

A thread advances every collaboration. In each round it verifies new reports together with the guardian, closes the
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

from tasks.parties.answers import accuracy_config, stored_answers, write_answers
from tasks.parties.client import CollaborationError, ServiceClient, UnreachableError
from tasks.parties.config import PartyConfig
from tasks.parties.keys import acceptance_content, sign
from tasks.parties.service import (
    ACCEPTED,
    REFUSED,
    ROUND,
    TEACHER,
    Call,
    Collaboration,
    PartyService,
    Route,
    log,
    opened_numbers,
)
from terrine.collaboration.protocol.agreement import arrays_of
from terrine.collaboration.protocol.phase import ORIGIN
from terrine.collaboration.protocol.proof import accepted
from terrine.collaboration.protocol.report import sum_reports
from terrine.collaboration.protocol.student_round import StudentRound
from terrine.errors import TerrineError

_BATCH = 200
_INTERVAL = 0.3  # seconds between two looks at new reports
ROUND_PATH = "rounds/{}"


class StudentService(PartyService):
    """See `PartyService`."""

    second = True

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        self._guardians: dict[str, ServiceClient] = {}

    def start(self) -> None:
        """See `PartyService`."""
        threading.Thread(target=self._work, name="student", daemon=True).start()

    def configured(self, terms: Any) -> PartyConfig:
        """See `PartyService`. Answers of an accuracy have their own folder."""
        same = terms.digest == self.config.terms.digest
        return super().configured(terms) if same else accuracy_config(self.config, terms)

    def check(self, collaboration: Collaboration) -> None:
        """See `PartyService`. Raises ArtefactError if the folder of answers holds others."""
        stored_answers(collaboration.config)

    @property
    def routes(self) -> list[Route]:
        """See `PartyService`."""
        return [*super().routes, Route("GET", f"{ROUND}/weights", TEACHER, self._weights, 0)]

    def round_of(self, collaboration: Collaboration) -> int:
        """See `PartyService`."""
        return len(collaboration.whole.named("opened/"))

    def status(self, collaboration: Collaboration, caller: str) -> dict[str, Any]:
        """See `PartyService`."""
        about = super().status(collaboration, caller)
        since = collaboration.facts(about["round"]).value("since")
        if since is None:
            return about
        closes = datetime.fromtimestamp(since + collaboration.terms.deadline, UTC)
        return about | {"closes": closes.isoformat(timespec="seconds")}

    def _weights(self, call: Call) -> bytes:
        """Return what a round's reports depend on: float64, from what earlier rounds revealed."""
        if not 0 < call.number <= self.round_of(call.collaboration):
            raise CollaborationError(f"There are no weights of round {call.number} yet.")
        return self.weights(call.collaboration, call.number).astype("<f8").tobytes()

    @staticmethod
    def weights(collaboration: Collaboration, number: int) -> np.ndarray:
        """Return the weights of a round after the first."""
        summed = collaboration.terms.summed
        assert summed is not None
        walk = summed.walk()
        for earlier in range(number):
            total = collaboration.whole.array(f"opened/{earlier}")
            assert total is not None
            walk.take(summed.opened(total, earlier))
        assert walk.question is not None
        return walk.question

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

    def _guardian(self, collaboration: Collaboration) -> ServiceClient:
        if collaboration.digest not in self._guardians:
            client = ServiceClient(collaboration.config, "guardian")
            signature = sign(self._key, acceptance_content(collaboration.digest))
            client.request("PUT", f"acceptances/{self.name}", signature.encode())
            self._guardians[collaboration.digest] = client
        return self._guardians[collaboration.digest]

    def advance(self, collaboration: Collaboration) -> bool:
        """Do what can be done; return whether there may be more at once.

        Raises:
            CollaborationError: The collaboration cannot continue.
        """
        if collaboration.whole.get("record") is not None:
            return False
        number = self.round_of(collaboration)
        if number > collaboration.terms.last:
            return self._finish(collaboration)
        facts = collaboration.facts(number)
        since = facts.keep("since", time.time())
        if facts.get("closed") is None:
            self._verify(collaboration, number)
            if not self._may_close(collaboration, number, since):
                return False
            self._close(collaboration, number)
        self._compute(collaboration, number)
        return True

    def _verify(self, collaboration: Collaboration, number: int) -> None:
        """Verify reports that have no verdict yet, together with the guardian."""
        facts = collaboration.facts(number)
        known = facts.named("verdict/")
        waiting = [report for report in self.store.reports(collaboration.digest, number) if report.party not in known]
        for first in range(0, len(waiting), _BATCH):
            batch = waiting[first : first + _BATCH]
            said = {report.party: [report.transcript.hex(), opened_numbers(report.opened).tolist()] for report in batch}
            answer = self._guardian(collaboration).json("POST", f"{ROUND_PATH.format(number)}/verify", said)
            for report in batch:
                if (theirs := answer.get(report.party)) is None:
                    continue
                same = theirs[0] == report.transcript.hex()
                opened = np.array(theirs[1], np.uint64)
                votes = collaboration.agreement(number).reveal == "sums" or accepted(
                    opened_numbers(report.opened), opened
                )
                verdict = ACCEPTED if same and votes else REFUSED
                facts.setdefault(f"verdict/{report.party}", verdict)
                if verdict == REFUSED:
                    log.warning("%s: the report of %s is not of votes and is not counted", self.name, report.party)

    def _may_close(self, collaboration: Collaboration, number: int, since: float) -> bool:
        terms, verdicts = collaboration.terms, collaboration.facts(number).named("verdict/")
        if sum(terms.teachers[name] for name, verdict in verdicts.items() if verdict == ACCEPTED) < terms.minimum:
            return False
        awaited = collaboration.counted().get(number - 1, list(terms.teachers))
        return {*awaited} <= {*verdicts} or time.time() > since + terms.deadline

    def _close(self, collaboration: Collaboration, number: int) -> None:
        """Have the guardian close the round, and store whom it counts."""
        verdicts = collaboration.facts(number).named("verdict/")
        names = [name for name, verdict in verdicts.items() if verdict == ACCEPTED]
        client = self._guardian(collaboration)
        path = f"{ROUND_PATH.format(number)}/close"
        closing = client.request("POST", path, json.dumps(names).encode())
        teachers = collaboration.terms.teachers
        _, flags = arrays_of(closing, [("u1", (ORIGIN,)), ("u1", (len(teachers),))])
        counted = [name for name, flag in zip(teachers, flags, strict=True) if flag]
        if lost := [name for name in counted if verdicts.get(name) != ACCEPTED]:
            raise CollaborationError(
                f"The guardian counts {', '.join(lost)}, whose reports are not here: this party's state is older than "
                "the guardian's. Restore its latest backup."
            )
        with self.store.together():
            collaboration.facts(number).setdefault("closed", closing)
            collaboration.whole.keep(f"counted/{number}", counted)
        log.info("%s: round %d is closed with %d parties", self.name, number, len(counted))

    def _compute(self, collaboration: Collaboration, number: int) -> None:
        """Compute a closed round's answers, and store them."""
        facts, agreement, client = (
            collaboration.facts(number),
            collaboration.agreement(number),
            self._guardian(collaboration),
        )
        closing = facts.get("closed")
        assert closing is not None
        counted = collaboration.counted()[number]
        shares = sum_reports(agreement, self.store.bodies(collaboration.digest, number, counted))

        def ask(path: str, body: bytes) -> bytes:
            return client.request("POST", f"{ROUND_PATH.format(number)}/{path}", body)

        passed, result = StudentRound(agreement, facts, closing, shares, ask).run()
        with self.store.together():
            if number == collaboration.terms.last:
                collaboration.whole.setdefault("passed", passed.tobytes())
            collaboration.whole.setdefault(f"opened/{number}", result.astype("<i8").tobytes())

    def _finish(self, collaboration: Collaboration) -> bool:
        """Write the answers, have the cost charged, and write that, too."""
        terms = collaboration.terms
        results = [collaboration.whole.array(f"opened/{number}") for number in range(terms.last + 1)]
        passed = np.frombuffer(collaboration.whole.get("passed") or b"", np.bool_)
        *earlier, last = (result for result in results if result is not None)
        shape = (-1,) if terms.votes and terms.reveals == "argmax" else (-1, terms.classes if terms.votes else 1)
        result, opened = last.reshape(shape), [] if terms.votes else [total[:, None] for total in earlier]
        arrays = {
            "passed": np.concatenate([*(np.ones(len(total), bool) for total in opened), passed]),
            "result": np.concatenate([*opened, result]),
        }
        about: dict[str, Any] = {"terms": collaboration.digest, "unit": terms.unit, "guardian": None}
        about["opened"] = collaboration.whole.keep("answered", datetime.now(UTC).isoformat(timespec="seconds"))
        write_answers(collaboration.config, arrays, about)
        record = self._guardian(collaboration).json("POST", "done")
        write_answers(collaboration.config, arrays, about | {"guardian": record})
        collaboration.whole.keep("record", record)
        self.store.clear(collaboration.digest)
        log.info("%s: the answers are in %s, ε = %g", self.name, collaboration.config.answers, record["epsilon"])
        return False
