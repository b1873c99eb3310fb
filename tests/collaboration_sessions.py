"""A round in one process: services that call one another, and the plaintext mechanism beside them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from terrine.collaboration.protocol.agreement import Agreement
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.proof import accepted
from terrine.collaboration.protocol.report import check_report, make_report, sum_reports
from terrine.collaboration.protocol.student_round import StudentRound

GUARDIAN, STUDENT = "guardian.example", "student.example"


def agreement(**changes) -> Agreement:
    """An agreement of three parties with five teachers."""
    values = {
        "collaboration": "a" * 64,
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
    return agreement(**({"reveal": "sums", "classes": 1} | changes))


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
    """Return votes [queries, teachers] that often agree and often tie, or integers of that shape to be summed."""
    rng = np.random.default_rng(seed)
    if agreed.reveal == "sums":
        return rng.integers(-(2**58), 2**58, (agreed.queries, agreed.total))
    consensus = rng.integers(0, agreed.classes, (agreed.queries, 1))
    others = rng.integers(0, agreed.classes, (agreed.queries, agreed.total))
    return np.where(rng.random(others.shape) < rng.random((agreed.queries, 1)), consensus, others)


def reports_of(agreed: Agreement, votes: np.ndarray) -> dict[str, tuple[bytes, bytes]]:
    """Both bodies of every party's report on its columns of the votes."""
    parts = np.split(votes, np.cumsum([held for _, held in agreed.teachers])[:-1], axis=1)
    if agreed.reveal == "sums":
        parts = [part.sum(axis=1, keepdims=True) for part in parts]
    return {name: make_report(agreed, name, part) for (name, _), part in zip(agreed.teachers, parts, strict=True)}


def plaintext(agreed: Agreement, votes: np.ndarray, noise: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Run the plaintext mechanism query by query; return the answers and a mask of the queries that passed."""
    shape = (agreed.queries,) if agreed.reveal == "argmax" else (agreed.queries, agreed.classes)
    if agreed.reveal == "sums":
        return votes.sum(axis=1, keepdims=True) + noise["counts"], np.ones(agreed.queries, bool)
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
    """A round of both services, whose facts are dicts.

    Attributes:
        reports: Both bodies of each party's report.
        noise: The guardian's.
        facts: Facts stored by the guardian and by the student party.
        record: Messages between services: path, request, answer.
        before: Called with path and request before a request is answered.
        shift: What the student party adds to its sums.
    """

    agreed: Agreement
    reports: dict[str, tuple[bytes, bytes]]
    noise: Callable
    facts: tuple[dict, dict] = field(default_factory=lambda: ({}, {}))
    record: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    before: Callable[[str, bytes], None] = lambda path, request: None
    shift: object = 0

    def close(self, names=None, check=True) -> GuardianRound:
        """Have the guardian draw its noise on reports that are of votes."""
        self.names = [name for name in names or self.reports if not check or self.verified(name)]
        guardian = GuardianRound(self.agreed, self.facts[0])
        if not guardian.settled:
            sums = sum_reports(self.agreed, ((name, self.reports[name][0]) for name in self.names))
            guardian.settle(sums, self.names, self.noise)
        return guardian

    def verified(self, name) -> bool:
        one, other = (
            check_report(self.agreed, name, body, second=place == 1) for place, body in enumerate(self.reports[name])
        )
        return (one.transcript == other.transcript).all() and accepted(one.opened, other.opened)

    def post(self, path: str, request: bytes) -> bytes:
        self.before(path, request)
        answer = answered_by(GuardianRound(self.agreed, self.facts[0]), path, request)
        self.record.append((path, request, answer))
        return answer

    def student(self, kind=StudentRound) -> StudentRound:
        closing = GuardianRound(self.agreed, self.facts[0]).closing
        sums = sum_reports(self.agreed, ((name, self.reports[name][1]) for name in self.names))
        return kind(
            self.agreed, self.facts[1], closing, (sums.astype(np.int64) + self.shift).astype(sums.dtype), self.post
        )

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Run the round; return the mask of queries that passed, and the answers."""
        self.close()
        return self.student().run()


def answered_by(guardian: GuardianRound, path: str, request: bytes) -> bytes:
    """Return the guardian's answer, without a network."""
    what, _, number = path.partition("/")
    if what == "base":
        return guardian.base(request)
    if what == "counts":
        return guardian.counts(int(number))
    return {"blocks": guardian.block, "opened": guardian.opened}[what](int(number), request)


def answered(agreed: Agreement, votes: np.ndarray, noise: Callable) -> tuple[np.ndarray, np.ndarray, Loop]:
    """Run a whole round; return the mask of queries that passed, the answers and the loop with its messages."""
    loop = Loop(agreed, reports_of(agreed, votes), noise)
    return *loop.run(), loop
