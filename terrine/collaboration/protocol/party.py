"""What the parties of a collaboration agree on, and what each of them is: a state machine without input or output.

A party takes frames and gives frames. It opens no socket and no file and looks at no clock; its host does, and so can
be anything from a gRPC server to a loop in a test:

    for send in party.start():
        deliver(send)
    ...
    answers = party.receive(sender, frame)   # everything is checked here; ProtocolError names the sender
    store(party.state())                     # what must survive a crash, before any answer leaves
    for send in answers:                     # long answers are made while they are sent
        deliver(send)

**What a host must do.** Pass frames of one sender in the order in which they were sent, one call at a time for one
party, with every iterator run to its end before the next call; take the name of the sender from its certificate,
never from the frame; go on reading while it sends (two parties that only send to each other wait forever).
"""

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, get_args

from numpy.typing import NDArray

from terrine.errors import SettingError, TerrineError
from terrine.privacy.ledger.identity import canonical_json

Reveal = Literal["argmax", "histogram", "sums"]
State = dict[str, NDArray[Any]]

_SESSION, _DIGEST = re.compile("[0-9a-f]{32}"), re.compile("[0-9a-f]{64}")
_MOST_CLASSES, _MOST_QUERIES, _MOST_TEACHERS = 4_096, 10_000_000, 1_000_000
_MOST_ROUNDS = 10_000
_FARTHEST_THRESHOLD = 2.0**32


class Send(NamedTuple):
    """A frame and the party it is for.

    Attributes:
        frame: At most `messages.LARGEST_FRAME` bytes.
    """

    to: str
    frame: bytes


class ProtocolError(TerrineError):
    """A frame that was refused: malformed, damaged, replayed, out of phase or not for this session.

    Nothing of it was used, and the party may go on with other senders.

    Attributes:
        sender: The party whose frame it was.
    """

    def __init__(self, sender: str, fault: str) -> None:
        super().__init__(f"A message from {sender!r} was refused: {fault}")
        self.sender = sender


@dataclass(frozen=True)
class Agreement:
    """What all parties agreed on before the session. Its digest stands in the header of every message.

    Attributes:
        session: Random and never used again: 32 hexadecimal digits.
        release: Identity of the release the session works for: 64 hexadecimal digits.
        guardian: The party that adds the noise and garbles.
        student: The party that evaluates and learns the answers.
        teachers: Every teacher party and how many teachers it holds.
        minimum: The fewest teachers (not parties) whose votes must be there; with fewer the round aborts.
        queries: Number of queries; where sums are revealed, how many numbers they are.
        classes: Number of classes, at least 2; where sums are revealed, 1.
        queries_digest: Digest of the queries in their order: 64 hexadecimal digits.
        reveal: `argmax` opens a label for a query, `histogram` its noisy counts, `sums` whole numbers with noise.
        threshold: Answer only where max_j n_j + N(0, sigma_threshold²) is at least this many votes, or None.
        sigma: Standard deviation of the noise on every count, in votes.
        sigma_threshold: Standard deviation of the test's noise, in votes; None without a threshold.
        round: Number of the round, where there are several: from the second on sums, or votes, are asked at a head.
        head: How many numbers such a head is, with all that belongs to it; 0 in the first round.

    Raises:
        SettingError: values that no session can have; the message names the field.
    """

    session: str
    release: str
    guardian: str
    student: str
    teachers: tuple[tuple[str, int], ...]
    minimum: int
    queries: int
    classes: int
    queries_digest: str
    reveal: Reveal
    threshold: float | None
    sigma: float
    sigma_threshold: float | None
    round: int = 0
    head: int = 0

    def __post_init__(self) -> None:
        # Lists become tuples, so that an agreement that was written as JSON and read again is equal.
        object.__setattr__(self, "teachers", tuple((str(name), int(held)) for name, held in self.teachers))
        if not _SESSION.fullmatch(self.session):
            raise SettingError(f"session is 32 hexadecimal digits, got {self.session!r}.")
        for field in ("release", "queries_digest"):
            if not _DIGEST.fullmatch(getattr(self, field)):
                raise SettingError(f"{field} is 64 hexadecimal digits, got {getattr(self, field)!r}.")
        names = [self.guardian, self.student, *(name for name, _ in self.teachers)]
        if len(set(names)) != len(names) or not all(names):
            raise SettingError(
                f"Guardian, student and teacher parties have different names, none of them empty; got {names}. "
                "A guardian that is a teacher or the student as well would see both shares."
            )
        if not self.teachers or min(held for _, held in self.teachers) < 1 or self.total > _MOST_TEACHERS:
            raise SettingError(
                f"A session needs teacher parties with at least one teacher each, {_MOST_TEACHERS:,} teachers at most."
            )
        for field, low, high in (
            ("minimum", 1, self.total),
            ("queries", 1, _MOST_QUERIES),
            ("classes", *((1, 1) if self.reveal == "sums" else (2, _MOST_CLASSES))),
            ("round", 0, _MOST_ROUNDS),
            ("head", *((1, _MOST_QUERIES) if self.round else (0, 0))),
        ):
            if not low <= getattr(self, field) <= high:
                raise SettingError(f"{field} is between {low} and {high:,}, got {getattr(self, field)}.")
        if self.reveal not in get_args(Reveal):
            raise SettingError(f"reveal is one of {', '.join(get_args(Reveal))}, got {self.reveal!r}.")
        if (self.threshold is None) != (self.sigma_threshold is None):
            raise SettingError("threshold and sigma_threshold are given together or not at all.")
        if self.reveal == "sums" and self.threshold is not None:
            raise SettingError("Sums are opened without a test: they have no threshold.")
        for field in ("sigma", "sigma_threshold"):
            value = getattr(self, field)
            if value is not None and not 0 < value < math.inf:
                raise SettingError(f"{field} is a number of votes greater than 0, got {value!r}.")
        if self.threshold is not None and not abs(self.threshold) <= _FARTHEST_THRESHOLD:
            raise SettingError(f"threshold is a number of votes, at most 2^32, got {self.threshold!r}.")

    @cached_property
    def total(self) -> int:
        """N, the number of teachers of all parties."""
        return sum(held for _, held in self.teachers)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the agreement's canonical JSON: 32 bytes."""
        about = {field.name: getattr(self, field.name) for field in fields(self)}
        return hashlib.sha256(canonical_json(about)).digest()

    @cached_property
    def substance(self) -> bytes:
        """The digest without the session: equal for an agreement and the one it is resumed under."""
        return replace(self, session="0" * 32).digest

    def held_by(self, name: str) -> int:
        """How many teachers a teacher party holds.

        Raises:
            SettingError: no such party.
        """
        for party, held in self.teachers:
            if party == name:
                return held
        raise SettingError(f"The agreement knows no teacher party {name!r}.")

    def resumed(self, session: str) -> "Agreement":
        """The same agreement under a new session."""
        if session == self.session:
            raise SettingError("A session is resumed under a new random id: its frames are not those of the old one.")
        return replace(self, session=session)


class Party(Protocol):
    """A teacher party, the guardian or the student party.

    Attributes:
        finished: Whether nothing is left to send or to wait for.
    """

    finished: bool

    def start(self) -> Iterator[Send]:
        """What is sent before anything is received. Called once, right after construction."""

    def receive(self, sender: str, frame: bytes) -> Iterator[Send]:
        """Take one frame; the iterator makes the answers.

        The frame is checked before this returns. What only computing can show, a damaged garbled table, is raised while
        the answers are made.

        Raises:
            ProtocolError: naming the sender.
        """

    def state(self) -> State:
        """What must be on disk before the answers to the last frame are sent; empty while a crash costs nothing."""
