"""The host of the student party: the one that learns the answers, and writes them down before it says so.

It tells the guardian whose shares it has only when it has written down its own sums of them. So whenever the guardian
has drawn noise, both sides hold sums that belong together, and a session that breaks is finished with the same noise.
Of several rounds it writes down what each opened before it says so, and then tells the teacher parties the head that
follows from all of them, at which the next is asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tasks.parties.answers import ABOUT, read_arrays, stored_answers, write_arrays
from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.state import PartyState, keep_values
from terrine.collaboration.protocol.party import Send
from terrine.collaboration.protocol.student import StudentParty
from terrine.errors import TerrineError
from terrine.files import json_object

_SUMS, _OPENED = "sums-{}", "opened-{}"
"""What is written down of a round, by its number: the sums of its shares, and what it opened."""
_DRAWN = "drawn-{}.json"
"""Written down when the guardian has drawn a round's noise: it is not drawn again, whatever the guardian remembers."""
_SETTLED = 5.0  # seconds after which a party that is in another session is so for good
_CONFIRMATION = 15.0  # seconds that the guardian is waited for when the answers are here already


class StudentHost(Host):
    """See `Host`. The outcome says where the answers are, and what the guardian charged for them."""

    def __init__(self, config: PartyConfig) -> None:
        super().__init__(config)
        assert config.answers is not None
        self._answers = config.answers
        self._about = stored_answers(config)
        self._state: PartyState | None = None
        self._held: list[Send] = []
        self._saved = False
        self._finished: dict[str, Any] | None = None
        self._closing: set[str] | None = None
        self._close_at = math.inf
        self._number = 0  # of the round
        self._drawn = False
        self._guardian_since = "?"
        self._elsewhere: dict[str, tuple[str, float, str]] = {}
        """Teacher parties that are in another session: which one, since when, and whose."""

    def begin(self) -> None:
        terms = self.config.terms
        if self._about is not None and self._about.get("guardian") is not None:
            self.outcome = self._about
            return
        assert self.config.listen is not None
        assert self.config.guardian is not None
        self.wire.listen(self.config.listen, dict.fromkeys(terms.teachers, "teacher"))
        self.wire.connect(terms.guardian, "guardian", self.config.guardian, convenes=True)

    def doing(self) -> str:
        terms, party = self.config.terms, self._student
        number = f"round {self._number} of {terms.last}: " if terms.last else ""
        if self._about is not None:
            return "the answers are here, and the guardian is to say what they cost"
        if party is None:
            return "waiting for the guardian to convene"
        if party.closed:
            return f"{number}learning the answers"
        there = sum(terms.teachers[name] for name in party.complete)
        return f"{number}the shares of {there} of {terms.held(terms.total)} are here, {terms.minimum} are needed"

    def peers(self) -> list[str]:
        return [self.config.terms.guardian, *self.config.terms.teachers]

    @property
    def _student(self) -> StudentParty | None:
        return self.party if isinstance(self.party, StudentParty) else None

    def on_session(self, session: str, greeting: dict[str, Any]) -> None:
        release, number = str(greeting.get("release")), int(greeting.get("round", 0))
        state = PartyState(self.config.state, release)
        resumed = greeting.get("resumed")
        self._guardian_since, self._elsewhere = str(greeting.get("since")), {}
        if isinstance(greeting.get("finished"), dict):
            if self._about is None:
                raise CollaborationError(
                    "The guardian has finished this release, and this party has no answers: they were on its disk when "
                    f"the guardian charged for them. Restore {self._answers} from a backup; to ask again, at new cost, "
                    "agree on another edition (`terrine party again`)."
                )
            # It waits to be told that this was heard.
            self._finished, self._state = greeting["finished"], state
            self.wire.begin(session)
            return
        if resumed == session or (resumed is None and number > 0):
            # We were started again in the middle of it. When the guardian meets us it begins another, with fresh keys.
            self.party = None
            self.wire.begin(session)
            return
        self._state = state
        if resumed is None:
            self._gather(session, release, 0)
        else:
            stored = state.load(_SUMS.format(number))
            if stored is None or stored[1]["origin"] != resumed:
                raise CollaborationError(
                    f"The guardian finishes the round {resumed[:8]}, and this party has no sums of it: its state in "
                    f"{self.config.state} is gone or is another one's. Restore it. The noise of that round was drawn "
                    "and is not drawn again; to ask again, at new cost, agree on another edition."
                )
            agreement = self.config.terms.agreement(resumed, release, number)
            self._enter(number, StudentParty.resume(agreement, stored[0], session=session), saved=True)
        self.wire.begin(session)
        log.info("%s: session %s%s", self.name, session[:8], "" if resumed is None else ", resumed")
        assert self.party is not None
        self.deliver(self.party.start())

    def _gather(self, session: str, release: str, number: int) -> None:
        """Begin a round: the guardian has drawn nothing for it, or it would have said so."""
        assert self._state is not None
        if self._about is not None or self._state.load(_OPENED.format(number)) is not None:
            raise CollaborationError(
                f"This party has answers to these terms in {self._answers}, and the guardian knows of none: its ledger "
                "or its state was lost. Restore them; a second draw of the noise would cost what no ledger says."
                if self._about is not None
                else f"This party has opened round {number} already, and the guardian asks it anew: its state was "
                "lost, or is an older one. Restore it; a second draw of the noise would cost what no ledger says."
            )
        self._check_not_drawn(number)
        self._state.forget(_SUMS.format(number))
        agreement = self.config.terms.agreement(session, release, number)
        self._enter(number, StudentParty(agreement, self._head(number)), saved=False)

    def _check_not_drawn(self, number: int) -> None:
        """Refuse a round whose noise was drawn, be it by a guardian with another ledger."""
        for path in self.config.state.glob(f"*/{_DRAWN.format(number)}"):
            if (drawn := json_object(path)) is not None and drawn["terms"] == self._terms:
                raise CollaborationError(
                    f"Noise was drawn for this round on {drawn['at']}, and the guardian asks it anew: its ledger and "
                    "its state were lost, are those of another guardian, or are older ones. Restore the latest backup; "
                    "a second draw would cost what no ledger says. To ask again, at new cost, agree on another edition."
                )

    def _remember_drawn(self) -> None:
        """The guardian has said something that follows from its noise."""
        assert self._state is not None
        at = datetime.now(UTC).isoformat(timespec="seconds")
        keep_values(self._state.folder / _DRAWN.format(self._number), {"terms": self._terms, "at": at})
        self._drawn = True

    def on_asked(self, peer: str, session: str | None, greeting: dict[str, Any]) -> None:
        """End a session that cannot be: too many teacher parties are in one that another guardian convened.

        One of the two guardians is left over from an earlier attempt. That a party is elsewhere, it alone says; so the
        session ends only where it could not come to its end either way.
        """
        terms, party = self.config.terms, self._student
        if session is None or peer not in terms.teachers or party is None or party.closed:
            return
        own, now = greeting.get("guardian"), time.monotonic()
        other = f"{own.get('address')!s:.80}, up since {own.get('since')!s:.40}" if isinstance(own, dict) else "?"
        before = self._elsewhere.get(peer)
        if before is None or before[0] != session:
            self._elsewhere[peer] = (session, now, other)
            return
        away = [name for name, (_, since, _) in self._elsewhere.items() if now - since > _SETTLED]
        if terms.total - sum(terms.teachers[name] for name in away) < terms.minimum:
            raise CollaborationError(
                f"Two guardians are running. Ours, at {self.config.guardian}, up since {self._guardian_since}, "
                f"convened session {party.agreement.session[:8]}; {', '.join(sorted(away))} take part in session "
                f"{session[:8]} of one at {other}. The one that was started first is left over from an earlier "
                "attempt: stop it there, and see that `guardian` in every party.yaml names the other. Nothing was "
                "drawn."
            )

    def _enter(self, number: int, party: StudentParty, *, saved: bool) -> None:
        self._number, self.party, self._saved, self._drawn = number, party, saved, False
        self._held, self._closing, self._close_at = [], None, math.inf
        self.at_round(number)

    def _head(self, number: int) -> np.ndarray | None:
        """The head at which a round is asked, with all that belongs to it: a function of what the rounds before it
        opened."""
        if not number or (summed := self.config.terms.summed) is None:
            return None
        walk = summed.walk()
        for earlier, total in enumerate(self._opened(number)):
            walk.take(summed.opened(total, earlier))
        return walk.question

    def _opened(self, number: int) -> list[np.ndarray]:
        """What the rounds before this one opened."""
        assert self._state is not None
        stored = [self._state.load(_OPENED.format(earlier)) for earlier in range(number)]
        if (missing := next((earlier for earlier, one in enumerate(stored) if one is None), None)) is not None:
            raise CollaborationError(
                f"{self._state.path(_OPENED.format(missing))} is gone, and the head of round {number} hangs on it. "
                "Restore it; that round is not asked again."
            )
        return [one[0]["result"][:, 0] for one in stored if one is not None]

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:
        if peer == self.config.terms.guardian and self._finished is not None:
            self._confirmed(self._finished)
        self._elsewhere.pop(peer, None)
        if restarted and peer in self.config.terms.teachers:
            self._ask([peer])

    def _ask(self, teachers: Collection[str]) -> None:
        """Tell teacher parties the head of this round."""
        party = self._student
        if party is not None and party.agreement.round and not party.closed:
            for name in teachers:
                self.wire.note(name, round=self._number)
            self.deliver(send for send in party.heads() if send.to in teachers)

    def on_note(self, sender: str, content: dict[str, Any]) -> None:
        if sender != self.config.terms.guardian:
            return
        if "aborted" in content:
            raise CollaborationError(f"The guardian ended the session: {content['aborted']}")
        party, number = self._student, self._number + 1
        if party is not None and party.finished and content.get("round") == number <= self.config.terms.last:
            self._gather(party.agreement.session, party.agreement.release, number)
            self._ask(self.config.terms.teachers)
        if isinstance(content.get("closing"), list):
            self._closing = set(content["closing"])
            # Shares that the guardian has already are on their way to us as well.
            self._close_at = time.monotonic() + max(2.0, self.config.deadline / 4)
        if isinstance(content.get("finished"), dict):
            self._confirmed(content["finished"])

    def _confirmed(self, record: dict[str, Any]) -> None:
        """The guardian has charged what the answers cost."""
        if self._about is not None:
            self._about = {**self._about, "guardian": record}
            self._write_about(self._about)
            self.outcome = self._about

    def on_failed(self, peer: str, error: TerrineError) -> None:
        if self._about is None:
            raise error
        self._leave(error)

    def on_error(self, error: TerrineError) -> None:
        if self.wire.session is not None:
            self.last_word([self.config.terms.guardian], aborted=str(error))

    def end(self) -> None:
        if self._about is not None and self._about.get("guardian") is not None and self.wire.session is not None:
            self.last_word([self.config.terms.guardian], heard=True)
            if self._state is not None:
                self._state.clear()

    def after_receive(self) -> None:
        party = self._student
        assert party is not None
        if party.present is not None and not self._saved:
            for teacher in party.refused:
                log.warning("%s: what %s shared are no votes of its teachers: it is left out", self.name, teacher)
            assert self._state is not None
            self._state.save(_SUMS.format(self._number), party.state(), origin=party.agreement.session)
            self._saved = True
        elif self._saved and not self._drawn:
            self._remember_drawn()

    def after_answers(self) -> None:
        party = self._student
        if party is not None and party.aborted is not None:
            raise CollaborationError(party.aborted)

    def deliver(self, sends: Iterable[Send]) -> bool:
        return super().deliver(self._in_order(sends))

    def _in_order(self, sends: Iterable[Send]) -> Iterable[Send]:
        """Hold back whose shares we have until our sums are written down, and the last word until the answers are."""
        party = self._student
        assert party is not None
        for send in sends:
            if not self._saved and party.aborted is None and send.to == self.config.terms.guardian:
                self._held.append(send)
                continue
            yield from self._released()
            if party.result is not None:
                self._keep(party)
            yield send
        if self._saved or party.aborted is not None:
            yield from self._released()

    def _released(self) -> Iterable[Send]:
        held, self._held = self._held, []
        return held

    def look_at_the_clock(self) -> None:
        party = self._student
        if party is not None and not party.closed and self._closing is not None:
            here = self._closing & set(self.config.terms.teachers) <= set(party.complete)
            if here or time.monotonic() > self._close_at:
                answers = party.close()
                self.after_receive()
                self.deliver(answers)
                self.after_answers()
        if self._about is not None and time.monotonic() - self._heard > min(_CONFIRMATION, self.config.patience):
            self._leave(CollaborationError("The guardian has not confirmed."))
            return
        super().look_at_the_clock()

    def _leave(self, why: TerrineError) -> None:
        """The answers are here, and the guardian is not: they are as good, and its record will be asked for again."""
        log.warning(
            "%s: the answers are here; what they cost will be known when both are run again. %s", self.name, why
        )
        self.outcome = self._about

    def _keep(self, party: StudentParty) -> None:
        """Write down what a round opened: of the last one, with what all others did, the answers."""
        assert self._state is not None
        assert party.result is not None
        if self._number == self.config.terms.last:
            self._keep_answers(party)
        elif (kept := self._state.load(_OPENED.format(self._number))) is None:
            self._state.save(_OPENED.format(self._number), {"result": party.result})
        elif not np.array_equal(kept[0]["result"], party.result):
            raise CollaborationError(
                f"{self._state.path(_OPENED.format(self._number))} is not what the sums give: one of them was changed."
            )

    def _keep_answers(self, party: StudentParty) -> None:
        assert party.result is not None
        assert party.passed is not None
        terms = self.config.terms
        # Averages have done their part: nobody but the teachers needs them.
        earlier = [] if terms.votes else [total[:, None] for total in self._opened(terms.last)]
        result = np.concatenate([*earlier, party.result])
        passed = np.concatenate([*(np.ones(len(total), bool) for total in earlier), party.passed])
        arrays = {"passed": passed, "result": result}
        about = {"terms": terms.public(), "unit": terms.unit, "release_id": party.agreement.release, "guardian": None}
        about["opened"] = datetime.now(UTC).isoformat(timespec="seconds")
        if self._about is not None:
            kept = read_arrays(self.config)
            if any(not np.array_equal(kept[name], array) for name, array in arrays.items()):
                raise CollaborationError(
                    f"The answers in {self._answers} are not those that the sums give: one of them was changed."
                )
            return
        write_arrays(self._answers, arrays)
        self._write_about(about)
        self._about = about

    def _write_about(self, about: dict[str, Any]) -> None:
        keep_values(self._answers / ABOUT, about)
