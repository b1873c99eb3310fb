"""The host of a teacher party: it shares its votes between guardian and student party, and learns nothing.

The shares of a session are drawn once and written down before the first of them leaves: who is started again sends the
very same shares, and what has arrived is not taken twice.

Where there are several rounds, the student party says the head of each after the first, which is public, and the party
shares at that head: its sums, and after averages its votes. Too late for one round, it takes part in the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.values import digest
from tasks.parties.agreement.accuracy import AccuracyTerms
from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.state import CLOSED, OUTCOME, PartyState, keep_values, kept_values
from tasks.parties.votes import Given, given_by
from terrine.collaboration.protocol.party import Agreement, ProtocolError, Send
from terrine.collaboration.protocol.teacher import Teacher
from terrine.errors import TerrineError
from terrine.files import json_object

_SHARES = "shares-{}"
"""What is written down of a round, by its number."""
_ONCE_MORE = 10.0
"""Seconds in which a party that was counted looks for the others, who may have lost what they had written down."""


class TeacherHost(Host):
    """See `Host`. The outcome says whether the party's votes were counted.

    given: what it shares, where that is not what its configuration names.
    """

    tick = 2.0  # it waits for others, and has nothing to do at a time of its own

    def __init__(self, config: PartyConfig, given: Given | None = None) -> None:
        credentials = config.own_credentials()
        self._account = _own_account(config)
        # Before anybody is connected to: training takes as long as it takes, and bad votes are found here.
        self._given = given or given_by(config, credentials.name)
        self._first = self._given(0, None)
        self._part = digest([config.terms.identity(), credentials.name], 64)
        """Its part of a release: terms that differ in their deadline or their name are of one."""
        self._counted = _closed(config, credentials.name).get(self._part) == config.terms.last
        if self._counted:
            config = config.model_copy(update={"patience": min(config.patience, _ONCE_MORE)})
        super().__init__(config)
        self._sends: list[Send] = []
        """All shares of the session, round by round."""
        self._state: PartyState | None = None
        self._number = -1  # of the last round that was begun in the session
        self._later_rounds = range(1, config.terms.last + 1)

    def begin(self) -> None:
        terms = self.config.terms
        assert self.config.guardian is not None
        assert self.config.student is not None
        if self._counted:
            log.info("%s: counted in an earlier session. Whether the others ask anew is looked at once more", self.name)
        self.wire.connect(terms.guardian, "guardian", self.config.guardian, convenes=True)
        self.wire.connect(terms.student, "student", self.config.student)

    def doing(self) -> str:
        if self.wire.session is None:
            return "waiting for the guardian to convene"
        number = f" of round {self._number}" if self.config.terms.last and self._number > 0 else ""
        return f"its shares{number} are sent, and the round is not closed yet" if self._sends else "no shares yet"

    def peers(self) -> list[str]:
        return [self.config.terms.guardian, self.config.terms.student]

    def on_failed(self, peer: str, error: TerrineError) -> None:
        if "could not be reached" not in str(error):
            raise error
        about = kept_values(self.config.state / OUTCOME, self._terms) or {}
        if self._counted or self.name in about.get("counted", []):
            log.info("%s: nobody asks anew. It was counted, and nothing is left to be done in this session", self.name)
            self.outcome = about or {"party": self.name}
            return
        if about:
            raise CollaborationError(f"{error} {self._late()}") from error
        may_be = (
            "Its shares had left, and whether they came in time is not known here: guardian and student party can say "
            "who was counted (terrine party status)."
            if self._has_shared()
            else "If the round was closed meanwhile, this party was late for it: its shares are not counted, noise and "
            "accounting are as agreed, and nothing is to be done here."
        )
        raise CollaborationError(f"{error} {may_be}") from error

    def on_session(self, session: str, greeting: dict[str, Any]) -> None:
        if self._is_over(greeting):
            return
        self._release = str(greeting.get("release"))
        self._state, self._number, self.party = PartyState(self.config.state, self._release), -1, None
        self._sends = []
        for number in range(self.config.terms.last + 1):
            if (sends := self._kept(session, number)) is not None:
                self._number = number
                self._sends += sends
        self.wire.greet(guardian={"since": str(greeting.get("since")), "address": self.config.guardian})
        self.wire.begin(session)
        super().deliver(self._sends)
        if greeting.get("round") == 0 and greeting.get("resumed") is None:
            self._take_part(session, 0)

    def _take_part(self, session: str, number: int) -> None:
        """Share this round's sums, or wait for the head that they are asked at; what was shared before is there."""
        if number > self._number:
            self._refuse_again(number)
            if self._account is not None:
                self._account.charge()
            self._number = number
            asked = partial(self._given, number) if number else self._first
            self.party = Teacher(self._agreement(session, number), self.name, asked)
            self.deliver(self.party.start())

    def _refuse_again(self, number: int) -> None:
        """Refuse a round that was closed with this party's shares: asked for once more, they would get other noise."""
        if number <= _closed(self.config, self.name).get(self._part, -1):
            raise CollaborationError(
                f"{self.name} has shared for {'this vote' if not self.config.terms.last else f'round {number}'}, and "
                "the guardian had counted it. Whoever asks anew has lost what it had written down, or is another one: "
                "with other noise the same votes would be a second release at the same price. Nothing was shared. "
                "Restore the folders of guardian and student party, or agree on another edition (`terrine party "
                "again`), which is charged by itself."
            )

    def _has_shared(self) -> bool:
        """Whether shares of the last round left in a session of which this party does not know the end."""
        name = _SHARES.format(self.config.terms.last)
        folders = [path.parent for path in self.config.state.glob(f"*/{name}.npz")]
        kept = [PartyState(folder.parent, folder.name).load(name) for folder in folders]
        return any(found is not None and found[1].get("terms") == self._terms for found in kept)

    def deliver(self, sends: Iterable[Send]) -> bool:
        """Write down shares before the first of them leaves."""
        if shares := list(sends):
            assert self._state is not None
            assert self.wire.session is not None
            self._keep(self.wire.session, shares)
            self._sends += shares
            if not self._number:
                log.info("%s: %d frames of shares are on their way", self.name, len(shares))
            self.at_round(self._number)
        return super().deliver(shares)

    def _agreement(self, session: str, number: int) -> Agreement:
        return self.config.terms.agreement(session, self._release, number)

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:
        if peer == self.config.terms.guardian:
            self._is_over(greeting)
        elif restarted:
            # It has lost what it had of us. Where the guardian knows of it, there will be another session.
            self.wire.renew(peer)
            super().deliver(send for send in self._sends if send.to == peer)

    def on_note(self, sender: str, content: dict[str, Any]) -> None:
        if sender == self.config.terms.student and (number := content.get("round")) in self._later_rounds:
            assert self.wire.session is not None
            self._take_part(self.wire.session, number)
        if sender != self.config.terms.guardian:
            return
        if "aborted" in content:
            raise CollaborationError(f"The guardian ended the session: {content['aborted']}")
        self._is_over(content)

    def on_refused(self, error: ProtocolError) -> None:
        """A head that was there before, when one of the two was started again, or one of a round that is past."""
        if error.sender == self.config.terms.student and self.party is not None and self.party.finished:
            log.info("%s: %s told a head again that was shared at already, and all is well", self.name, error.sender)
        else:
            log.warning("%s: %s", self.name, error)

    def _is_over(self, said: dict[str, Any]) -> bool:
        """Whether the guardian has closed the last round; then this party's work is done."""
        present = said.get("present")
        if not isinstance(present, list):
            return False
        last = said.get("round") == self.config.terms.last
        if self.name not in present:
            if last:
                about = {"party": self.name, "counted": present, "agreed": self._terms}
                keep_values(self.config.state / OUTCOME, about)
                raise CollaborationError(self._late())
            log.warning("%s: %s", self.name, self._late())
        else:
            closed = _closed(self.config, self.name) | {self._part: said.get("round")}
            for path in _memories(self.config):
                keep_values(path, closed)
        if last:
            self.outcome = {"party": self.name, "counted": present, "session": self.wire.session}
        return last

    def _late(self) -> str:
        late = (
            f"The round was closed without {self.name}, which was late: its shares were not complete at the deadline, "
            "or are not what was agreed on. The answers are those of the others; noise and accounting are as agreed, "
            "and nothing is to be done here."
        )
        if not isinstance(self.config.terms, AccuracyTerms):
            late += " To be counted, take part in another edition (`terrine party again`)."
        return late

    def end(self) -> None:
        """The shares were for this session alone."""
        for path in self.config.state.glob(f"*/{_SHARES.format('*')}.npz"):
            path.unlink(missing_ok=True)

    def _keep(self, session: str, sends: list[Send]) -> None:
        assert self._state is not None
        frames = {f"frame-{place:06d}": np.frombuffer(send.frame, np.uint8) for place, send in enumerate(sends)}
        agreed = self._agreement(session, self._number).digest.hex()
        name, to = _SHARES.format(self._number), [send.to for send in sends]
        self._state.save(name, frames, session=session, agreement=agreed, to=to, terms=self._terms)

    def _kept(self, session: str, number: int) -> list[Send] | None:
        """The frames of a round that were written down in this very session, if it was begun before."""
        assert self._state is not None
        kept, agreed = self._state.load(_SHARES.format(number)), self._agreement(session, number).digest.hex()
        if kept is None or (kept[1]["session"], kept[1]["agreement"]) != (session, agreed):
            return None
        frames, about = kept
        return [Send(to, frames[f"frame-{place:06d}"].tobytes()) for place, to in enumerate(about["to"])]


def _memories(config: PartyConfig) -> list[Path]:
    """Where a party remembers what it was counted in: in its folder, and beside the account that it keeps, which goes
    on in other folders of the party and charges a release once."""
    beside = [] if config.ledger is None else [config.ledger.store.parent / CLOSED]
    return [config.state / CLOSED, *beside]


def _closed(config: PartyConfig, name: str) -> dict[str, Any]:
    """The last round that was closed with a party's shares, by what the release is known by: of all that it had."""
    closed: dict[str, Any] = {}
    for path in _memories(config):
        found = json_object(path)
        if found is None and path.exists():
            raise CollaborationError(
                f"{path} says what {name} has shared, and cannot be read. Restore it from a backup: without it the "
                "same votes could be shared again, for other noise at no charge. Nothing was shared."
            )
        closed |= found or {}
    return closed


def _own_account(config: PartyConfig) -> Any:
    """The party's own account, once it is found to pay for the release; None where it keeps none."""
    if config.ledger is None:
        return None
    # Here, because most teacher parties have no use for a ledger.
    from tasks.parties.account import OwnAccount

    account = OwnAccount(config)
    account.check()
    return account
