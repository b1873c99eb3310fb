"""The host of a teacher party: it shares its votes between guardian and student party, and learns nothing.

The shares of a session are drawn once and written down before the first of them leaves. A teacher party that is
started again in the same session sends the very same shares again, and what has arrived is not taken twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.parties.config import PartyConfig
from tasks.parties.host import CollaborationError, Host, log
from tasks.parties.state import PartyState
from tasks.parties.votes import votes_of
from terrine.collaboration.protocol.party import Send
from terrine.collaboration.protocol.teacher import Teacher

_SHARES = "shares"


class TeacherHost(Host):
    """See `Host`. The outcome says whether the party's votes were counted."""

    def __init__(self, config: PartyConfig) -> None:
        credentials = config.own_credentials()
        # Before anybody is connected to: training takes as long as it takes, and bad votes are found here.
        self._votes = votes_of(config, credentials.name)
        super().__init__(config)
        self._sends: list[Send] = []

    def begin(self) -> None:
        terms = self.config.terms
        assert self.config.guardian is not None
        assert self.config.student is not None
        self.wire.connect(terms.guardian, "guardian", self.config.guardian, convenes=True)
        self.wire.connect(terms.student, "student", self.config.student)

    def on_session(self, session: str, greeting: dict[str, Any]) -> None:
        if self._is_over(greeting):
            return
        release = str(greeting.get("release"))
        agreement = self.config.terms.agreement(session, release)
        sends = self._shares(PartyState(self.config.state, release), session, agreement.digest.hex())
        if sends is None:
            party = Teacher(agreement, self.name, self._votes)
            sends = list(party.start())
            self._keep(PartyState(self.config.state, release), session, agreement.digest.hex(), sends)
        self._sends = sends
        self.wire.begin(session)
        self.deliver(sends)
        log.info("%s: %d frames of shares are on their way", self.name, len(sends))

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:
        if peer == self.config.terms.guardian:
            self._is_over(greeting)
        elif restarted:
            # It has lost what it had of us. Where the guardian knows of it, there will be another session.
            self.wire.renew(peer)
            self.deliver(send for send in self._sends if send.to == peer)

    def on_note(self, sender: str, content: dict[str, Any]) -> None:
        if sender != self.config.terms.guardian:
            return
        if "aborted" in content:
            raise CollaborationError(f"The guardian ended the session: {content['aborted']}")
        self._is_over(content)

    def _is_over(self, said: dict[str, Any]) -> bool:
        """Whether the guardian has closed the round; then this party's work is done."""
        present = said.get("present")
        if not isinstance(present, list):
            return False
        if self.name not in present:
            raise CollaborationError(
                f"The round was closed without {self.name}: its shares were not complete at the deadline, or are not "
                "of votes. The noise and the accounting are as agreed; nothing is to be done here."
            )
        self.outcome = {"party": self.name, "counted": True, "session": self.wire.session}
        return True

    def end(self) -> None:
        """The shares were for this session alone."""
        for folder in self.config.state.glob("*"):
            (folder / f"{_SHARES}.npz").unlink(missing_ok=True)

    def _keep(self, state: PartyState, session: str, digest: str, sends: list[Send]) -> None:
        frames = {f"frame-{place:06d}": np.frombuffer(send.frame, np.uint8) for place, send in enumerate(sends)}
        state.save(_SHARES, frames, session=session, agreement=digest, to=[send.to for send in sends])

    def _shares(self, state: PartyState, session: str, digest: str) -> list[Send] | None:
        """The frames that were written down for this very session, if it was begun before."""
        kept = state.load(_SHARES)
        if kept is None or (kept[1]["session"], kept[1]["agreement"]) != (session, digest):
            return None
        frames, about = kept
        return [Send(to, frames[f"frame-{place:06d}"].tobytes()) for place, to in enumerate(about["to"])]
