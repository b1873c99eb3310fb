"""The guardian: it adds the noise to its share, and garbles. It learns which queries passed the test, and no label.

The noise is drawn once, when it is settled whose votes are counted, and **every question is answered once**. The noise
of a threshold test is one number for all classes. Were a query tested again with that number on counts that the student
party moved in between, then exact votes would come out; so what a broken session asked is not asked anew when it is
resumed, but said again: Δ, keys and labels come from a secret that is kept with the sums, and digests of the questions
(the student's point, its hidden bits of each block with their check) are kept as well, *before* they are answered. A
question that was answered before gets the very same bytes again, a different one in its place is refused. So a student
party gains nothing by resuming, however often: it is told what it was told.

The consistency check of the transfers (`transfer`) is made after its question is stored. A question that fails is
therefore never replaced by another: it fails in every resumed session, the release is not finished, and what was
reserved stays charged. Another edition has other noise, another Δ and other base transfers, and costs again. So a
student party has one failed guess of bits of Δ for each release that is paid for.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.circuits.garbling import Engine, Labels, fresh_offset, labels_from_seed, shifted
from terrine.collaboration.circuits.transfer import (
    POINT,
    BaseReceiver,
    ExtensionMessage,
    ExtensionSender,
    Transcript,
    TransferError,
    bits_of_offset,
)
from terrine.collaboration.protocol.expansion import SECRET, Expansion, fresh_secret
from terrine.collaboration.protocol.gathering import Gatherer
from terrine.collaboration.protocol.messages import Kind, Spec
from terrine.collaboration.protocol.party import Agreement, Send, State
from terrine.collaboration.protocol.phase import Phase, argmax_phase, count_blocks, threshold_phase
from terrine.collaboration.protocol.shares import ShareArray, modulo, threshold_bits, whole_thresholds, whole_votes
from terrine.errors import InputError, SettingError

Draw = Callable[[str, tuple[int, ...]], NDArray[Any]]


class Guardian(Gatherer):
    """The privacy guardian.

    Args:
        draw: Draws noise in votes, once for each kind: `draw("threshold", (queries,))` with the agreement's
            sigma_threshold, then `draw("counts", (queries, classes))` with its sigma. It is
            `terrine.privacy.noise.SecureNoise`'s; noise on counts is rounded to whole votes here, which the exact
            accounting covers (see `shares`), and on sums it is whole numbers. Whoever gives it has charged the ledger
            before.

    Attributes:
        result: bool [queries], which queries passed the test; None without a threshold, and before it is known.
    """

    def __init__(self, agreement: Agreement, draw: Draw | None = None) -> None:
        super().__init__(agreement, agreement.guardian, agreement.student)
        self.result: NDArray[np.bool_] | None = None
        self._draw = draw
        self._counts: ShareArray | None = None
        self._tests: ShareArray | None = None
        self._secret = b""
        self._questions: list[bytes] = []
        self._answered = 0
        self._step = "base"
        self._phase: Phase | None = None

    @property
    def questions(self) -> NDArray[np.uint8]:
        """Digests of what the student asked and was answered, in order: uint8 [questions, 32].

        A part of `state`, for itself: it is what changes after the noise is drawn.
        """
        return np.frombuffer(b"".join(self._questions), np.uint8).reshape(-1, 32)

    def _sums(self) -> State:
        assert self._counts is not None
        own = {"counts": self._counts, "secret": np.frombuffer(self._secret, np.uint8), "questions": self.questions}
        return own | ({} if self._tests is None else {"tests": self._tests})

    def _restore(self, state: State) -> None:
        self._counts = self._restored(state, "counts", modulo(0, self.bits).dtype)
        if self.agreement.threshold is not None:
            self._tests = self._restored(state, "tests", np.uint64)
        self._secret = self._restored(state, "secret", np.uint8, (SECRET,)).tobytes()
        questions = state.get("questions")
        if not isinstance(questions, np.ndarray) or questions.dtype != np.uint8 or questions.shape[1:] != (32,):
            raise InputError(f"The stored state of {self.name!r} is damaged: questions is not what it was.")
        self._questions = [digest.tobytes() for digest in questions]

    def _take_sums(self, sums: ShareArray, parties: int) -> None:
        agreement = self.agreement
        own = sums.astype(np.int64)
        if agreement.threshold is not None:
            noise = self._drawn("threshold", (agreement.queries,))
            thresholds = whole_thresholds(agreement.threshold, noise)
            # n ≥ t is S ≥ t + P·2^u − G for the student's sum S and this party's sum G.
            bounds = thresholds[:, None] + (parties * 2**self.sharing.bits - own)
            self._tests = np.clip(bounds, 0, 2 ** threshold_bits(agreement) - 1).astype("<u8")
        noise = self._drawn("counts", sums.shape)
        self._counts = modulo(own + whole_votes(noise), self.bits)
        self._secret = fresh_secret()
        self._draw = None

    def _drawn(self, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if self._draw is None:
            raise SettingError("A guardian that starts a round needs a source of noise.")
        noise = np.asarray(self._draw(kind, shape))
        if noise.shape != shape or noise.dtype.kind not in "if" or not np.isfinite(noise).all():
            raise SettingError(f"Noise for {kind} has the shape {list(shape)} and is finite, got {list(noise.shape)}.")
        return noise

    def _compute(self) -> Iterator[Send]:
        if self.agreement.reveal != "argmax" and self.agreement.threshold is None:
            return self._send_counts(np.arange(self.agreement.queries))
        return iter(())

    def _answer(self, frame: bytes) -> Iterator[Send]:
        kind, arrays = self._peer.receive(frame, self._expected())
        if kind == Kind.BASE:
            return self._answer_base(arrays[0])
        if kind == Kind.BITS:
            message = ExtensionMessage(*arrays)
            challenge = self._extension.challenge(message)
            self._remember(challenge + message.bits.tobytes() + message.hashes.tobytes())
            self._asked += 1
            return self._garble(self._asked - 1, message, challenge)
        if kind == Kind.OPENED:
            return self._take_opened(arrays[0])
        self.finished = True
        return iter(())

    def _expected(self) -> dict[Kind, Sequence[Spec]]:
        """The kinds of messages that may come now."""
        if self._step == "base":
            return {Kind.BASE: [("u1", (POINT,))]}
        if self._step == "done" or self._phase is None:
            return {Kind.DONE: []}
        expected: dict[Kind, Sequence[Spec]] = {}
        if self._asked < len(self._phase.blocks):
            expected[Kind.BITS] = self._phase.bits_spec(self._asked)
        if self._unopened:
            expected[Kind.OPENED] = self._phase.opened_spec(self._opened)
        elif self._phase.number == 2 and self._asked == len(self._phase.blocks):
            expected[Kind.DONE] = []
        return expected

    def _remember(self, question: bytes) -> None:
        """Keep the question that is about to be answered; refuse one that is not what was asked in its place before."""
        digest = hashlib.sha256(question).digest()
        if self._answered == len(self._questions):
            self._questions.append(digest)
        elif self._questions[self._answered] != digest:
            self._abort("the student asks something else than it asked before this session was resumed.")
            raise self._peer.refusal(
                f"its question {self._answered} is not the one that was answered in an earlier session of this round. "
                "On the same noise another question would show exact votes, so it is never answered. The student "
                "party's state was changed or replaced: restore it and run again. What was reserved stays charged."
            )
        self._answered += 1

    def _answer_base(self, point: NDArray[np.uint8]) -> Iterator[Send]:
        # Another offer would meet another Δ, even if the state that refuses it were lost.
        draw = Expansion(self._secret, f"base transfers {point.tobytes().hex()}")
        self._delta = fresh_offset(draw)
        try:
            base = BaseReceiver(self._round.digest, bits_of_offset(self._delta), point.tobytes(), draw)
        except TransferError as error:
            raise self._peer.refusal(str(error)) from error
        self._remember(point.tobytes())
        self._seeds = Expansion(self._secret, "labels")
        transcript = Transcript(self._round.digest, point.tobytes(), base.points)
        self._extension = ExtensionSender(self._delta, base.keys, transcript)
        if self.agreement.threshold is None:
            self._begin(argmax_phase(self._round, np.arange(self.agreement.queries)))
        else:
            self._begin(threshold_phase(self._round))
        return iter([self._peer.send(Kind.CHOICES, base.points)])

    def _begin(self, phase: Phase) -> None:
        self._step, self._phase = "phase", phase
        self._engine_of = cache(partial(Engine, phase.circuit, ciphers=phase.ciphers))
        self._asked = self._opened = 0
        self._unopened: deque[Labels] = deque()
        self._passed = np.zeros(len(phase.queries), bool)

    def _garble(self, block: int, message: ExtensionMessage, challenge: bytes) -> Iterator[Send]:
        phase = self._phase
        assert phase is not None
        size = phase.size(block)
        wires, others = phase.circuit.inputs
        shares = self._tests if phase.number == 1 else self._counts
        assert shares is not None
        try:
            theirs = self._extension.extend(message, challenge, others, size)
        except TransferError as error:
            self._abort("the student's transfers fail the consistency check.")
            raise self._peer.refusal(
                f"block {block} fails the consistency check of the transfers, so the student party departs from the "
                "protocol. Nothing of the block was used. No other question is answered instead, and what was "
                "reserved stays charged. Agree on another edition, with a student party that you trust."
            ) from error
        seed = self._seeds(16)
        labels = np.empty((wires + others, size, 2), "<u8")
        labels[:wires] = shifted(labels_from_seed(seed, wires, size), phase.inputs(shares, block), self._delta)
        labels[wires:] = theirs
        engine = self._engine_of(size)
        tables, outputs = engine.garble(block, self._delta, labels)
        hashes, values = engine.seal(block, self._delta, outputs)
        if phase.number == 1:
            self._unopened.append(outputs[0].copy())
        tables = tables.reshape(len(tables), 2, 2 * size)
        yield self._peer.send(Kind.TABLES, np.frombuffer(seed, np.uint8), tables, hashes, values)

    def _take_opened(self, labels: Labels) -> Iterator[Send]:
        phase = self._phase
        assert phase is not None
        zero = self._unopened.popleft()
        passed = (labels == (zero ^ self._delta)).all(axis=1)
        if not (passed | (labels == zero).all(axis=1)).all():
            self._abort("the student returned labels that were never made.")
            raise self._peer.refusal("it opens a label that was never made.")
        self._passed[phase.blocks[self._opened]] = passed
        self._opened += 1
        if self._opened < len(phase.blocks):
            return iter(())
        self.result = self._passed
        queries = np.flatnonzero(self.result)
        if self.agreement.reveal == "histogram":
            return self._send_counts(queries)
        if len(queries):
            self._begin(argmax_phase(self._round, queries))
        else:
            self._step = "done"
        return iter(())

    def _send_counts(self, queries: NDArray[np.int64]) -> Iterator[Send]:
        counts = self._counts
        assert counts is not None
        self._step = "done"
        blocks = count_blocks(self.agreement, len(queries))
        return (self._peer.send(Kind.COUNTS, counts[queries[block]]) for block in blocks)
