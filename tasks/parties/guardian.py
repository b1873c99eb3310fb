"""The host of the guardian: the only party that touches the ledger, and the one that convenes.

The order of things is what keeps a release from being drawn twice, or from being drawn unpaid:

1. Shares are gathered. They are uniform noise to whoever holds one side of them; up to here nothing was spent, and with
   fewer teachers than agreed the round ends here.
2. The student party has written down its sums. Only then does it say whose shares it has (`tasks.parties.student`).
3. The worst case is reserved in the ledger, the noise is drawn, and the noised sums are written down.
4. The circuit is garbled, block by block; what the student party asked is written down before it is answered. What is
   broken off from here on is finished in a new session with the same sums, the same noise and the same bytes, whoever
   was restarted: a question that differs from the one that was answered ends it. Teacher parties are not needed.
5. The student party has written down its answers and says so. The cost that was realised is charged, what is left of
   the reservation is given back.

Sums may take several rounds, and votes may come after rounds of averages. Each round is 1 to 5 for itself, but for the
ledger: all of them are one release, whose price is reserved before the first noise is drawn and charged after the last.
A round begins when the student party has written down what the one before it opened. What the guardian has written down
is the last round in which it drew noise, and a session that breaks is finished from there.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.paid_release import PaidRelease
from tasks.parties.state import OUTCOME, PartyState, keep_values
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.party import Agreement, ProtocolError
from terrine.collaboration.transport.link import Arrived, Asked, Connected
from terrine.errors import TerrineError
from terrine.files import json_object
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.spans import span

_SUMS, _QUESTIONS = "sums", "questions"
_LINGER = 5.0  # seconds that the student party has to hear of a release that was made before
_AT_LEAST = 60.0  # seconds that parties have when a guardian is started again at the end of the deadline


class GuardianHost(Host):
    """See `Host`. The outcome is the record of the release: what it cost, and nothing about any vote."""

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        self._paid = PaidRelease(config)
        self._release = self._paid.identity
        self._state = PartyState(config.state, self._release)
        self._closing_at = math.inf
        self._refused: set[str] = set()
        self._told = self._announced = False
        self._kept = 0  # questions that are written down
        self._number = 0  # of the round
        self._awaited = set(config.terms.teachers)
        self._absent: list[str] | None = None  # in the last round that was closed
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._opened = config.state / f"opened-{self._release[:16]}.json"
        self._counted: list[str] | None = None
        self._knows: set[str] = set()  # teacher parties that have heard who was counted
        self._noted: str | None = None  # the session in which they were told by a note

    def begin(self) -> None:
        if self._paid.was_made() and not self._state.folder.exists():
            earlier = json_object(self.config.state / OUTCOME)
            if earlier is not None and earlier["release_id"] == self._release:
                self._counted = earlier.get("counted")
            self._made_before(self._paid.open())
            if self.stays and self._late():
                self._listen()
                self.wire.begin(secrets.token_hex(16))
            return
        self._listen()
        self._convene()

    def _listen(self) -> None:
        assert self.config.listen is not None
        expected = {name: role for name, role in self.config.terms.roles().items() if name != self.name}
        port = self.wire.listen(self.config.listen, expected)
        log.info("%s: listening at port %d, release %s", self.name, port, self._release[:16])

    def doing(self) -> str:
        terms, party = self.config.terms, self._guardian
        if party is None:
            return "the release is charged, and the student party is to hear of it"
        number = f"round {self._number} of {terms.last}: " if terms.last else ""
        if party.closed:
            return f"{number}the student party learns the answers"
        there = sum(terms.teachers[name] for name in party.complete)
        closing = datetime.now(UTC) + timedelta(seconds=max(0.0, self._closing_at - time.monotonic()))
        return (
            f"{number}the shares of {there} of {terms.held(terms.total)} are here, {terms.minimum} are needed; the "
            f"round is closed when all are, or at {closing:%Y-%m-%d %H:%M} UTC"
        )

    def peers(self) -> list[str]:
        return [name for name in self.config.terms.roles() if name != self.name]

    def _made_before(self, release: StoredRelease | None) -> None:
        """The release is in the ledger already; what is left to do is to say so."""
        assert release is not None
        self.outcome = self._paid.record(release, self._counted, reused=True)
        log.info("%s: release %s was made before, nothing is charged", self.name, self._release[:16])

    def _tell_when_asked(self, present: list[str]) -> None:
        """Stay for a moment: the release is charged, and the student party does not know."""
        self.party = None
        self._number = self.config.terms.last
        self._greet(resumed=None, present=present, finished=self.outcome)
        self.wire.begin(secrets.token_hex(16))
        if self._is_heard():
            self._state.clear()
        else:
            log.warning("%s: the student party has not heard; it will when both are run again", self.name)

    def _is_heard(self) -> bool:
        """Wait for the student party to say that it has written down what was charged."""
        end = time.monotonic() + min(_LINGER, self.config.patience)
        while time.monotonic() < end:
            match self.wire.next(0.2):
                case Arrived(peer, _, {"heard": True}) if peer == self.config.terms.student:
                    return True
                case Asked(peer, _, _):
                    self._knows.add(peer)
                case Connected(peer, _, True) if peer == self.config.terms.student and self.party is not None:
                    return False
        return False

    def _convene(self) -> None:
        """Begin a session: with the sums that were written down, or from the start."""
        session = secrets.token_hex(16)
        stored = self._state.load(_SUMS)
        self._told, self._announced, self._refused, self._kept = stored is not None, False, set(), 0
        self._number, self._awaited = 0, set(self.config.terms.teachers)
        if stored is None:
            self._gather(session)
        else:
            state, about = stored
            self._number, self._awaited = about["round"], set(about["present"])
            # What is written down was paid for, and its row is there: this charges nothing.
            if (release := self._paid.open()) is not None:
                self._counted = about["present"]
                self._made_before(release)
                return self._tell_when_asked(about["present"])
            state |= self._asked_before(about["origin"])
            self.party = Guardian.resume(self._agreement(about["origin"]), state, session=session)
            self._kept = len(self.party.questions)
            self._closing_at = math.inf
            self._greet(resumed=about["origin"], present=about["present"])
        self.wire.begin(session)
        log.info("%s: session %s%s", self.name, session[:8], "" if stored is None else ", resumed")
        self.deliver(self.party.start())

    def _gather(self, session: str) -> None:
        """Begin a round: shares are taken."""
        self.party = Guardian(self._agreement(session), partial(self._paid.draw, self._number))
        self._closing_at = time.monotonic() + self._left()
        self._told, self._announced, self._refused = False, False, set()
        self._greet(resumed=None, present=None)

    def _left(self) -> float:
        """Seconds until the round is closed: the first counts from when it was first opened, whoever was started again
        in between."""
        if self._number:
            return self.config.deadline
        opened = json_object(self._opened)
        if opened is None:
            opened = {"at": time.time()}
            keep_values(self._opened, opened)
        left = float(opened["at"]) + self.config.deadline - time.time()
        return min(self.config.deadline, max(left, _AT_LEAST))

    def _greet(self, **said: Any) -> None:
        self.wire.greet(release=self._release, round=self._number, since=self._since, **said)

    def _next_round(self, present: list[str]) -> None:
        """Begin the next round, and have the student party ask for it. Nobody is waited for who was away in this."""
        assert self.wire.session is not None
        self._number, self._awaited = self._number + 1, set(present)
        self._gather(self.wire.session)
        self.tell(self.config.terms.student, round=self._number)
        self.at_round(self._number)

    def _asked_before(self, origin: str) -> dict[str, np.ndarray]:
        """The questions of this round that were answered, where there were any."""
        kept = self._state.load(_QUESTIONS)
        if kept is None:
            return {}
        if kept[1]["origin"] != origin:
            raise CollaborationError(
                f"{self._state.path(_QUESTIONS)} belongs to another round than the sums beside it: the folder was put "
                "together from two backups. Restore it as it was; nothing was answered a second time."
            )
        return kept[0]

    def _agreement(self, session: str) -> Agreement:
        return self.config.terms.agreement(session, self._release, self._number)

    @property
    def _guardian(self) -> Guardian | None:
        return self.party if isinstance(self.party, Guardian) else None

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:
        if peer == self.config.terms.student and (restarted or self.party is None):
            log.info("%s: the student party was started again: a new session", self.name)
            self._convene()

    def on_asked(self, peer: str, session: str | None, greeting: dict[str, Any]) -> None:
        if self._told:  # and so is whoever asks, by our greeting
            self._knows.add(peer)

    def on_note(self, sender: str, content: dict[str, Any]) -> None:
        if sender == self.config.terms.student and "aborted" in content:
            raise CollaborationError(f"The student party ended the session: {content['aborted']}")

    def on_refused(self, error: ProtocolError) -> None:
        super().on_refused(error)
        party = self._guardian
        if party is not None and not party.closed:
            self._refused.add(error.sender)

    def after_receive(self) -> None:
        self._look()

    def _look(self) -> None:
        """Write down what was settled and what was asked, before anything that follows from it leaves."""
        party = self._guardian
        if party is None:
            return
        if self._told:
            if len(party.questions) > self._kept:
                self._state.save(_QUESTIONS, {"questions": party.questions}, origin=party.origin)
                self._kept = len(party.questions)
            return
        if party.closed and party.present is None and party.aborted is None:
            return
        if party.aborted is not None:
            charged = "Run again, and this round is asked again." if self._number else "Nothing was charged."
            self._opened.unlink(missing_ok=True)
            raise CollaborationError(f"{party.aborted} {charged}")
        if party.present is not None:
            self._state.save(_SUMS, party.state(), origin=party.origin, present=party.present, round=self._number)
            self._told = True
            self._greet(resumed=party.origin, present=party.present)
            absent = sorted(set(self.config.terms.teachers) - set(party.present))
            if absent != self._absent:
                without = f", without {', '.join(absent)}" if absent else ""
                log.info("%s: the shares of %d parties are counted%s", self.name, len(party.present), without)
            self._absent = absent
            for teacher in party.refused:
                log.warning("%s: what %s shared are no votes of its teachers: it is left out", self.name, teacher)
            for teacher in self.config.terms.teachers:
                self.tell(teacher, present=party.present, round=self._number)
            self._noted = self.wire.session

    def deliver(self, sends: Any) -> bool:
        party = self._guardian
        if party is not None and party.closed and not self._announced:
            # The list of whose shares are here follows: the student may close as soon as it has them as well.
            self._announced = True
            if not self.tell(self.config.terms.student, closing=party.complete):
                return False
        return super().deliver(sends)

    def after_answers(self) -> None:
        party = self._guardian
        if party is None:
            return
        if party.aborted is not None:
            raise CollaborationError(party.aborted)
        if party.finished and self._number < self.config.terms.last:
            assert party.present is not None
            self._next_round(party.present)
        elif party.finished:
            passed = np.ones(self.config.terms.asked, bool) if party.result is None else party.result
            release = self._paid.settle(passed)
            self._counted = party.present
            self.outcome = self._paid.record(release, self._counted, reused=False)

    def look_at_the_clock(self) -> None:
        party = self._guardian
        late = time.monotonic() > self._closing_at
        if party is not None and not party.closed and (late or self._awaited <= set(party.complete)):
            if late:
                absent = sorted(set(self.config.terms.teachers) - set(party.complete))
                log.warning("%s: the deadline is past, without %s", self.name, ", ".join(absent) or "nobody")
            answers = party.close(self._refused if late else ())
            self._look()
            self.deliver(answers)
            self.after_answers()
        super().look_at_the_clock()

    def on_error(self, error: TerrineError) -> None:
        self._paid.abandon()
        self.last_word([name for name in self.config.terms.roles() if name != self.name], aborted=str(error))

    def end(self) -> None:
        party = self._guardian
        if party is None:
            return
        present, end = party.present or [], time.monotonic() + _LINGER
        for teacher in self.config.terms.teachers:
            heard = self.wire.flush(teacher, 0.2 if teacher in present and time.monotonic() < end else 0.01)
            if heard and self._noted == self.wire.session:
                self._knows.add(teacher)
        with contextlib.suppress(TerrineError):
            self.wire.note(self.config.terms.student, finished=self.outcome)
        if self._is_heard():
            self._state.clear()
        else:
            self._tell_when_asked(present)
        self._opened.unlink(missing_ok=True)

    def _late(self) -> set[str]:
        """Teacher parties that were not counted and have not heard of it."""
        return set() if self._counted is None else set(self.config.terms.teachers) - set(self._counted) - self._knows

    def stay(self) -> None:
        if not (late := self._late()):
            return
        log.info(
            "%s: all is done. It stays for %s at most to tell %s that they were late; Ctrl-C ends that, and nothing is "
            "lost.",
            self.name,
            span(self.config.patience),
            ", ".join(sorted(late)),
        )
        self._number = self.config.terms.last
        self._greet(resumed=None, present=self._counted, finished=self.outcome)
        end = time.monotonic() + self.config.patience
        while late and time.monotonic() < end:
            match self.wire.next(1.0):
                case Asked(peer, _, _) if peer in late:
                    late.discard(peer)
                    log.info("%s: %s was late, and was told so", self.name, peer)
                case Arrived(peer, _, {"heard": True}) if peer == self.config.terms.student:
                    self._state.clear()
        self.wire.flush(self.config.terms.student, 0.1)
