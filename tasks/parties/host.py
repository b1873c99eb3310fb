"""What hosts of all parties share: a state machine on one side, a wire on the other, and a clock.

A host passes frames to its party in the order they arrive, writes what the party must remember before the answers
leave, and never waits for ever: whoever hears nothing for `deadline + patience` seconds ends with a sentence. While it
waits, which may be for days, it says who is there and who is missing; of many rounds it says now and then how far they
are, as other long works do.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from tasks.parties.config import PartyConfig
from tasks.parties.state import AT_WORK, OUTCOME, STANDING, keep_values
from tasks.runtime.progress import lines
from terrine.collaboration.protocol.party import Party, ProtocolError, Send
from terrine.collaboration.transport.link import (
    Arrived,
    Asked,
    Connected,
    Disconnected,
    Failed,
    LinkEvent,
    Malformed,
    PeerRestarted,
    SessionOffered,
)
from terrine.collaboration.transport.wire import Wire
from terrine.errors import TerrineError, some
from terrine.locks import locked
from terrine.spans import span

log = logging.getLogger("terrine.party")

_FLUSH = 5.0  # seconds that a last word is given to arrive
_SOON, _MINUTE = 2.0, 60.0  # seconds between lines about who is there: when that changes, and when it does not
_NAMED = 8


class CollaborationError(TerrineError):
    """A session did not come to its end. The message says what it has cost, and whether it can be run again."""


class Host(ABC):
    """One party at work. `run` returns what came out, as JSON values.

    party: the state machine of the current session; None between sessions. outcome: what `run` will return; None while
    the session is under way. tick: seconds after which it looks at the clock, when nothing happens.
    """

    tick = 0.5

    def __init__(self, config: PartyConfig) -> None:
        self.config = config
        credentials = config.own_credentials()
        self.name = credentials.name
        self.wire = Wire(credentials, config.terms.public(), patience=config.patience)
        self.party: Party | None = None
        self.outcome: dict[str, Any] | None = None
        self._heard = time.monotonic()
        self._terms = config.terms.digest
        self._here: set[str] = set()
        self._said_at, self._said_of = -_MINUTE, ("", "")
        self._rounds: Callable[[float, str], None] | None = None
        """What says how far the rounds after the first are, once there are any."""
        self.stays = False

    def run(self, *, stay: bool = False) -> dict[str, Any]:
        """Take part until the session is over, and write down what came out; `stay`: for as long as there is a reason
        after it.

        Raises CollaborationError or another TerrineError when it did not come to its end.
        """
        self.stays = stay
        self.config.state.mkdir(parents=True, exist_ok=True)
        with self._alone(), self.wire:
            try:
                self.begin()
                while self.outcome is None:
                    event = self.wire.next(self.tick)
                    if event is not None:
                        # Whoever is turned away is nobody to wait for.
                        if not isinstance(event, Malformed | Asked):
                            self._heard = time.monotonic()
                        self._handle(event)
                    if self.outcome is None:
                        self.look_at_the_clock()
                self.end()
            except TerrineError as error:
                self.on_error(error)
                self._remember(f"ended: {error}")
                raise
            self._remember("over")
            keep_values(self.config.state / OUTCOME, self.outcome | {"agreed": self._terms})
            if stay:
                self.stay()
        return self.outcome

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only process with this state: another one would act on what it read before this one wrote."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.config.state / AT_WORK, _FLUSH))
            except TimeoutError as error:
                raise CollaborationError(
                    f"Another process of {self.name} is at work in {self.config.state}. Wait until it has ended, or "
                    "end it; then run again."
                ) from error
            yield

    @abstractmethod
    def begin(self) -> None:
        """Listen, connect, and start what can be started."""

    def end(self) -> None:  # noqa: B027
        """Say the last word."""

    def stay(self) -> None:  # noqa: B027
        """Be there for those who come late."""

    @abstractmethod
    def doing(self) -> str:
        """What this party is at, in a few words."""

    @abstractmethod
    def peers(self) -> Collection[str]:
        """Whom it speaks with."""

    def on_error(self, error: TerrineError) -> None:  # noqa: B027
        """Tell the others that it cannot go on."""

    def on_note(self, sender: str, content: dict[str, Any]) -> None:  # noqa: B027
        """A note of the current session."""

    def on_connected(self, peer: str, greeting: dict[str, Any], restarted: bool) -> None:  # noqa: B027
        """A peer is there."""

    def on_session(self, session: str, greeting: dict[str, Any]) -> None:  # noqa: B027
        """The guardian is in another session."""

    def on_asked(self, peer: str, session: str | None, greeting: dict[str, Any]) -> None:  # noqa: B027
        """A peer that connects to us is in another session, or in none yet."""

    def on_refused(self, error: ProtocolError) -> None:
        """A frame was refused: a teacher party is warned of and left out; without another nothing can go on."""
        if error.sender not in self.config.terms.teachers:
            raise CollaborationError(str(error))
        log.warning("%s: %s", self.name, error)

    def look_at_the_clock(self) -> None:
        """Called several times a second at least."""
        self._say_where_it_stands()
        limit = self.config.deadline + self.config.patience
        if time.monotonic() - self._heard > limit:
            raise CollaborationError(
                f"{self.name} has heard nothing for {span(limit)}. The other parties were stopped or are cut off; run "
                "again when they are back: a session that was begun is finished or dropped, and never answered twice."
            )

    def _say_where_it_stands(self) -> None:
        """Say who is there and who is missing when that has changed, and once a minute."""
        silent = time.monotonic() - self._said_at
        if silent < _SOON:
            return
        here = [peer for peer in self.peers() if peer in self._here]
        missing = [peer for peer in self.peers() if peer not in self._here]
        standing = self.doing(), f"{_listed('Here', here)} {_listed('Missing', missing)}"
        if standing == self._said_of and silent < _MINUTE:
            return
        if self._rounds is None or silent >= _MINUTE or standing[1] != self._said_of[1]:
            log.info("%s: %s. %s", self.name, *standing)
        self._said_at, self._said_of = time.monotonic(), standing
        self._remember(self.doing(), here=here, missing=missing)

    def at_round(self, number: int) -> None:
        """Say now and then, of rounds after the first, which one is at hand."""
        if number:
            self._rounds = self._rounds or lines(self.name, log.info)
            self._rounds(number / self.config.terms.last, f"round {number} of {self.config.terms.last}")

    def _remember(self, doing: str, **about: Any) -> None:
        """Write down where the session stands, for `terrine party status`."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):
            terms = {"agreed": self._terms, "voted": self.config.terms.agreed, "price": self.config.terms.epsilon}
            keep_values(self.config.state / STANDING, {"doing": doing, "at": at, **terms, **about})

    def deliver(self, sends: Iterable[Send]) -> bool:
        """Send frames as they are made; False when the session cannot go on, and a new one will begin."""
        return self._said(lambda: [self._send(send) for send in sends])

    def tell(self, peer: str, **content: Any) -> bool:
        """Send a note; False as `deliver` says it."""
        return self._said(lambda: self.wire.note(peer, **content))

    def _send(self, send: Send) -> None:
        self.wire.send(send.to, send.frame)
        self._heard = time.monotonic()

    def _said(self, say: Callable[[], Any]) -> bool:
        """Whatever a session says is said here: a peer that was started again ends the session, not this process."""
        try:
            say()
        except PeerRestarted as error:
            log.warning("%s", error)
            self.party = None
            return False
        return True

    def after_receive(self) -> None:  # noqa: B027
        """Called when the party has taken a frame, before its answers are made or sent."""

    def after_answers(self) -> None:  # noqa: B027
        """Called when the answers to a frame have been sent."""

    def _handle(self, event: LinkEvent) -> None:
        match event:
            case Arrived(peer, session, content):
                if session != self.wire.session:
                    return
                if isinstance(content, dict):
                    self.on_note(peer, content)
                elif self.party is not None:
                    self._take(peer, content)
            case Connected(peer, greeting, restarted):
                log.info("%s: %s is connected%s", self.name, peer, " again, newly started" if restarted else "")
                self._here.add(peer)
                self.on_connected(peer, greeting, restarted)
            case Disconnected(peer, reason):
                log.info("%s: %s: %s", self.name, peer, reason)
                self._here.discard(peer)
            case Asked(peer, asked, greeting):
                self.on_asked(peer, asked, greeting)
            case SessionOffered(_, session, greeting):
                self.on_session(session, greeting)
            case Malformed(peer, reason):
                log.warning("%s: %s", self.name, reason)
            case Failed(peer, error):
                self.on_failed(peer, error)

    def on_failed(self, peer: str, error: TerrineError) -> None:
        """A peer that we connect to refused us or is out of reach."""
        raise error

    def _take(self, sender: str, frame: bytes) -> None:
        assert self.party is not None
        try:
            answers = self.party.receive(sender, frame)
            self.after_receive()
            if self.deliver(answers):
                self.after_answers()
        except ProtocolError as error:
            self.on_refused(error)

    def last_word(self, peers: Iterable[str], **content: Any) -> None:
        """Send a note and give it a moment to arrive."""
        peers = list(peers)
        for peer in peers:
            with contextlib.suppress(TerrineError):
                self.wire.renew(peer)  # also one that was started again, and with which nothing else goes on
                self.wire.note(peer, **content)
        end = time.monotonic() + _FLUSH
        for peer in peers:
            self.wire.flush(peer, max(0.05, end - time.monotonic()))


def _listed(word: str, names: list[str]) -> str:
    return f"{word}: {some(names, _NAMED) or 'nobody'}."
