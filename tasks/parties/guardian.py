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
from typing import Any, Literal

import numpy as np

from tasks.parties.account import account_in_ledger
from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.state import OUTCOME, PartyState, keep_values
from tasks.runtime.reservation import Reservation
from terrine import npy
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.party import Agreement, ProtocolError
from terrine.collaboration.transport.link import Arrived, Asked, Connected
from terrine.errors import LedgerError, SettingError, TerrineError
from terrine.files import json_object
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import check_together
from terrine.privacy.ledger.identity import canonical_json, keyed_digest, load_or_create_key
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise, check_slack
from terrine.spans import span

_SUMS, _QUESTIONS = "sums", "questions"
_LINGER = 5.0  # seconds that the student party has to hear of a release that was made before
_AT_LEAST = 60.0  # seconds that parties have when a guardian is started again at the end of the deadline


class GuardianHost(Host):
    """See `Host`. The outcome is the record of the release: what it cost, and nothing about any vote."""

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        assert config.ledger is not None
        self._key = load_or_create_key(config.ledger.key)
        self._noise = noise_of(config)
        self._account = account_in_ledger(self._key, config.ledger)
        self._release = release_of(self._key, config, self._account, self._noise)
        self._state = PartyState(config.state, self._release)
        self._reservation = Reservation(
            self._ledger,
            dataset=self._account,
            release_id=self._release,
            run=config.ledger.run or config.terms.called,
            worst_case=config.terms.event(),
            delta=config.terms.delta,
            noise_kind=self._noise.kind,
            data=None if config.ledger.sketch is None else npy.load(config.ledger.sketch),
        )
        self._closing_at = math.inf
        self._refused: set[str] = set()
        self._told = self._announced = False
        self._kept = 0  # questions that are written down
        self._number = 0  # of the round
        self._drawn_of: int | None = None  # the round that noise was drawn for last
        self._awaited = set(config.terms.teachers)
        self._absent: list[str] | None = None  # in the last round that was closed
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._opened = config.state / f"opened-{self._release[:16]}.json"
        self._counted: list[str] | None = None
        self._knows: set[str] = set()  # teacher parties that have heard who was counted
        self._noted: str | None = None  # the session in which they were told by a note

    def _ledger(self) -> Ledger:
        settings = self.config.ledger
        assert settings is not None
        return Ledger(settings.url, settings.store, self._key, draw_patience=self.config.patience, site=settings.site)

    def _committed(self, ledger: Ledger) -> bool:
        return ledger.committed(self._release)

    def _check_budget(self, ledger: Ledger) -> None:
        """Refuse what could not be paid for, before anybody computes anything."""
        assert self.config.ledger is not None
        terms = self.config.terms
        worst = terms.event()
        if not price(worst, terms.delta) <= terms.epsilon * (1 + 1e-9):  # rounding aside
            raise SettingError(
                f"The terms ask {terms.asked} queries, which may cost ε={round_up(price(worst, terms.delta)):g} at "
                f"δ={terms.delta:g}, more than the ε={terms.epsilon:g} agreed on. Ask fewer, or use more noise."
            )
        check_slack(terms.numbers, terms.epsilon, terms.delta)
        own = self.config.ledger
        # An account for public benchmark data takes secure noise as well.
        public = self._account in ledger.datasets() and ledger.budget(self._account).mode == "replay"
        mode: Literal["release", "replay"] = "replay" if public or self._noise.kind == "replay" else "release"
        ledger.register(self._account, own.epsilon, terms.delta, mode, unit=terms.unit)
        if not ledger.reserved([self._release]):
            check_together(ledger.together(self._account), [worst], self._noise.kind)

    def begin(self) -> None:
        ledger = self._ledger()
        if self._committed(ledger) and not self._state.folder.exists():
            earlier = json_object(self.config.state / OUTCOME)
            if earlier is not None and earlier["release_id"] == self._release:
                self._counted = earlier.get("counted")
            self._made_before(self._reservation.open())
            if self.stays and self._late():
                self._listen()
                self.wire.begin(secrets.token_hex(16))
            return
        if not self._committed(ledger):
            self._check_budget(ledger)
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
        self.outcome = self._record(release, reused=True)
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
            if (release := self._reservation.open()) is not None:
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
        self.party = Guardian(self._agreement(session), self._draw)
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

    def _draw(self, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """Noise for the guardian's sums; the worst case is charged before the first of it is drawn."""
        agreement = self._agreement("0" * 32)
        if self._reservation.open() is not None:
            raise LedgerError("This batch was answered before. Nothing was drawn.")
        summed, source = self.config.terms.summed, self._source()
        if summed is not None and self._number < summed.passes:
            return summed.noise(source, self._number).reshape(shape)
        sigma = agreement.sigma_threshold if kind == "threshold" else agreement.sigma
        assert sigma is not None
        return source.gaussian(shape, sigma)

    def _source(self) -> NoiseSource:
        """Where the noise of this round comes from. Of replayed noise there is one stream for all rounds, whoever was
        started again between them."""
        summed = self.config.terms.summed
        if self._drawn_of != self._number:
            self._drawn_of = self._number
            if self.config.replay_seed is not None and summed is not None:
                self._noise = ReplayNoise(self.config.replay_seed)
                for earlier in range(self._number):
                    summed.noise(self._noise, earlier)
        return self._noise

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
            release = self._reservation.settle({"passed": passed}, self.config.terms.event(int(passed.sum())))
            self._counted = party.present
            self.outcome = self._record(release, reused=False)

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
        self._reservation.abandon()
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

    def _record(self, release: StoredRelease, *, reused: bool) -> dict[str, Any]:
        terms = self.config.terms
        assert self.config.ledger is not None
        passed = release.arrays["passed"]
        return {
            "release_id": release.release_id,
            "event": to_json(release.event),
            "digest": release.digest,
            "account": self._account,
            "epsilon_account": release.guarantee,
            "epsilon": round_up(price(release.event, terms.delta)),
            "delta": terms.delta,
            "epsilon_total": release.epsilon_total,
            "noise": self._noise.kind,
            "asked": terms.asked,
            "answered": int(passed.sum()),
            "counted": self._counted,
            "reused": reused,
        }


def noise_of(config: PartyConfig) -> NoiseSource:
    """Where the guardian's noise comes from."""
    return SecureNoise() if config.replay_seed is None else ReplayNoise(config.replay_seed)


def release_of(key: bytes, config: PartyConfig, account: str, noise: NoiseSource) -> str:
    """The identity of the release: what the parties agreed to release, whose data it is, and where noise comes from."""
    content = {"terms": config.terms.identity(), "account": account, "noise": noise.describe()}
    return keyed_digest(key, "terrine collaboration release", canonical_json(content))
