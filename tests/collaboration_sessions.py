"""A session in one process: parties whose frames are carried by a loop, and the plaintext mechanism beside them."""

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.party import Agreement, Party, Send
from terrine.collaboration.protocol.student import StudentParty
from terrine.collaboration.protocol.teacher import Teacher

SESSION = "0123456789abcdef" * 2
GUARDIAN, STUDENT = "guardian.example", "student.example"
HEADER = 144
HEAD = np.random.default_rng(4).normal(size=10_000)
"""What sums of a later round are asked at, as far as they are long."""
CHECKSUM = slice(128, 132)


def agreement(**changes) -> Agreement:
    """An agreement of three parties with five teachers."""
    values = {
        "session": SESSION,
        "release": "a" * 64,
        "guardian": GUARDIAN,
        "student": STUDENT,
        "teachers": (("north", 2), ("south", 2), ("west", 1)),
        "minimum": 3,
        "queries": 40,
        "classes": 4,
        "queries_digest": "b" * 64,
        "reveal": "argmax",
        "threshold": None,
        "sigma": 1.5,
        "sigma_threshold": None,
    }
    return Agreement(**(values | changes))


def confident(**changes) -> Agreement:
    """The same with a threshold test."""
    return agreement(**({"threshold": 3.0, "sigma_threshold": 1.0} | changes))


def summing(**changes) -> Agreement:
    """The same where whole numbers are summed."""
    asked = {"head": changes.get("queries", 40) + 8} if changes.get("round") else {}
    return agreement(**({"reveal": "sums", "classes": 1} | asked | changes))


@dataclass
class Noise:
    """Noise from a seed, remembered: the oracle needs it. Counts how often it was drawn."""

    agreement: Agreement
    seed: int = 0
    drawn: dict[str, np.ndarray] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def __call__(self, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        sigma = {"threshold": self.agreement.sigma_threshold, "counts": self.agreement.sigma}[kind]
        self.calls.append(kind)
        self.drawn[kind] = np.random.default_rng([self.seed, len(kind)]).normal(0, sigma, shape)
        if self.agreement.reveal == "sums":  # whole numbers, more than a double holds
            self.drawn[kind] = (self.drawn[kind] * 2.0**56).astype(np.int64) + 1
        return self.drawn[kind]


def random_votes(agreed: Agreement, seed: int = 0) -> np.ndarray:
    """Votes [queries, teachers] that often agree, and often tie; or as many whole numbers to be summed."""
    rng = np.random.default_rng(seed)
    if agreed.reveal == "sums":
        return rng.integers(-(2**58), 2**58, (agreed.queries, agreed.total))
    consensus = rng.integers(0, agreed.classes, (agreed.queries, 1))
    others = rng.integers(0, agreed.classes, (agreed.queries, agreed.total))
    return np.where(rng.random(others.shape) < rng.random((agreed.queries, 1)), consensus, others)


def asked_again(**changes) -> Agreement:
    """An agreement whose votes are asked at a head, after rounds of sums."""
    return agreement(**({"round": 3, "head": 6} | changes))


def voted_at(head: np.ndarray, part: np.ndarray, classes: int) -> np.ndarray:
    """What teachers vote at a head: a function of both."""
    return (part + np.floor(np.abs(head).sum() * 5).astype(np.int64) + np.arange(len(part))[:, None]) % classes


def at(head: np.ndarray, part: np.ndarray) -> np.ndarray:
    """What parties of a later round sum at a head, of which the first numbers count: a function of both."""
    return part + np.rint(head[: len(part)] * 2.0**20).astype(np.int64)[:, None]


def teachers_of(agreed: Agreement, votes: np.ndarray) -> dict[str, Teacher]:
    """The teacher parties with their columns of the votes."""
    parts = np.split(votes, np.cumsum([held for _, held in agreed.teachers])[:-1], axis=1)
    if agreed.reveal == "sums":
        parts = [part.sum(axis=1, keepdims=True) for part in parts]
    if agreed.round and agreed.reveal != "sums":
        parts = [lambda head, part=part: voted_at(head, part, agreed.classes) for part in parts]
    elif agreed.round:
        parts = [lambda head, part=part: at(head, part) for part in parts]
    return {name: Teacher(agreed, name, part) for (name, _), part in zip(agreed.teachers, parts, strict=True)}


def parties_of(agreed: Agreement, votes: np.ndarray, noise: Callable) -> dict[str, Party]:
    """All parties of a session."""
    return {
        agreed.guardian: Guardian(agreed, noise),
        agreed.student: StudentParty(agreed, HEAD[: agreed.head] if agreed.round else None),
        **teachers_of(agreed, votes),
    }


def _held(agreed: Agreement) -> list[int]:
    return [held for _, held in agreed.teachers]


def plaintext(agreed: Agreement, votes: np.ndarray, noise: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """What the mechanism gives on these votes and this noise, query after query: answers, and which passed."""
    shape = (agreed.queries,) if agreed.reveal == "argmax" else (agreed.queries, agreed.classes)
    if agreed.reveal == "sums":
        own = np.stack([part.sum(axis=1) for part in np.split(votes, np.cumsum(_held(agreed))[:-1], axis=1)], axis=1)
        if agreed.round:
            own = at(HEAD, own)
        return own.sum(axis=1, keepdims=True) + noise["counts"], np.ones(agreed.queries, bool)
    if agreed.round:
        votes = voted_at(HEAD[: agreed.head], votes, agreed.classes)
    answers = np.full(shape, -1 if agreed.reveal == "argmax" else 0, np.int64)
    passed = np.zeros(agreed.queries, bool)
    for query in range(agreed.queries):
        counts = [int((votes[query] == label).sum()) for label in range(agreed.classes)]
        if agreed.threshold is None or max(counts) + noise["threshold"][query] >= agreed.threshold:
            passed[query] = True
            noisy = [count + int(np.floor(noise["counts"][query, j] + 0.5)) for j, count in enumerate(counts)]
            answers[query] = noisy.index(max(noisy)) if agreed.reveal == "argmax" else noisy
    return answers, passed


@dataclass
class Loop:
    """Carries frames in the order in which they were sent.

    Attributes:
        parties: By name.
        record: Every frame that was delivered: sender, receiver, frame.
        before: Called with receiver, sender and frame before a delivery.
    """

    parties: dict[str, Party]
    record: list[tuple[str, str, bytes]] = field(default_factory=list)
    before: Callable[[str, str, bytes], None] = lambda receiver, sender, frame: None
    waiting: deque[tuple[str, Send]] = field(default_factory=deque)

    def start(self) -> "Loop":
        for name, party in self.parties.items():
            self.push(name, party.start())
        return self

    def push(self, sender: str, sends: Iterator[Send]) -> None:
        self.waiting.extend((sender, send) for send in sends)

    def step(self) -> None:
        sender, (receiver, frame) = self.waiting.popleft()
        self.before(receiver, sender, frame)
        self.record.append((sender, receiver, frame))
        self.push(receiver, self.parties[receiver].receive(sender, frame))

    def run(self, steps: int | None = None) -> "Loop":
        while self.waiting and steps != 0:
            self.step()
            steps = None if steps is None else steps - 1
        return self


def answered(agreed: Agreement, votes: np.ndarray, noise: Callable) -> tuple[Guardian, StudentParty, Loop]:
    """A whole session."""
    loop = Loop(parties_of(agreed, votes, noise)).start().run()
    assert all(party.finished for party in loop.parties.values())
    return loop.parties[agreed.guardian], loop.parties[agreed.student], loop


def resealed(frame):
    """The frame with the checksum that fits it: what somebody would send who knows the format."""
    frame = bytearray(frame)
    frame[CHECKSUM] = bytes(4)
    frame[CHECKSUM] = struct.pack("<I", zlib.crc32(frame))
    return bytes(frame)
