"""The student party: it evaluates what the guardian garbled, and learns the answers and nothing else."""

from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.mechanism import UNANSWERED
from terrine.collaboration.circuits.garbling import Engine, Labels, labels_from_seed
from terrine.collaboration.circuits.transfer import (
    POINT,
    WIDTH,
    BaseSender,
    ExtensionReceiver,
    Transcript,
    TransferError,
)
from terrine.collaboration.protocol.expansion import SECRET, Expansion, fresh_secret
from terrine.collaboration.protocol.gathering import Gatherer, head_blocks
from terrine.collaboration.protocol.messages import Kind
from terrine.collaboration.protocol.party import Agreement, Send, State
from terrine.collaboration.protocol.phase import WINDOW, Phase, argmax_phase, count_blocks, threshold_phase
from terrine.collaboration.protocol.shares import ShareArray, modulo, signed


class StudentParty(Gatherer):
    """The student party.

    Args:
        head: The numbers at which sums, or votes, are asked, float64 [agreement.head], in a round after the first.

    Attributes:
        result: None until the session is finished. Then int64 [queries], the labels, −1 where the query did not pass;
            or, where histograms are revealed, int64 [queries, classes], noisy counts, 0 where it did not; or sums
            with their noise, int64 [queries, 1].
        passed: bool [queries], the queries that were answered; None until it is known.
    """

    def __init__(self, agreement: Agreement, head: NDArray[np.float64] | None = None) -> None:
        super().__init__(agreement, agreement.student, agreement.guardian)
        self._head = head
        self.result: NDArray[np.int64] | None = None
        self.passed: NDArray[np.bool_] | None = None
        self._shares: ShareArray | None = None
        self._secret = b""
        self._step = "base"

    def start(self) -> Iterator[Send]:
        """See `Gatherer.start`. A round that is asked at a head begins with it."""
        return chain(super().start(), self.heads())

    def heads(self) -> Iterator[Send]:
        """The frames that tell every teacher party the head, the same every time."""
        if self._head is None:
            return
        numbers = self._head.astype("<f8").view("<u8")[:, None]
        for sharing in self._sharings.values():
            channel = sharing.channel
            for number, rows in enumerate(head_blocks(self.agreement)):
                yield Send(channel.peer, channel.frame(number, Kind.HEAD, [numbers[rows]]))

    def _sums(self) -> State:
        assert self._shares is not None
        return {"shares": self._shares, "secret": np.frombuffer(self._secret, np.uint8)}

    def _restore(self, state: State) -> None:
        self._shares = self._restored(state, "shares", self.sharing.kind_of_sums)
        self._secret = self._restored(state, "secret", np.uint8, (SECRET,)).tobytes()

    def _take_sums(self, sums: ShareArray, parties: int) -> None:
        self._shares, self._secret = sums, fresh_secret()

    def _compute(self) -> Iterator[Send]:
        agreement = self.agreement
        shape: tuple[int, ...] = (agreement.queries,)
        nothing = UNANSWERED
        if agreement.reveal != "argmax":
            shape, nothing = (agreement.queries, agreement.classes), 0
        self._answers: NDArray[np.int64] = np.full(shape, nothing, np.int64)
        if agreement.threshold is None:
            self.passed = np.ones(agreement.queries, bool)
            if agreement.reveal != "argmax":
                return self._expect_counts()
        self._base = BaseSender(self._round.digest, Expansion(self._secret, "base transfers"))
        return iter([self._peer.send(Kind.BASE, np.frombuffer(self._base.point, np.uint8))])

    def _answer(self, frame: bytes) -> Iterator[Send]:
        if self._step == "base":
            _, (points,) = self._peer.receive(frame, {Kind.CHOICES: [("u1", (WIDTH, POINT))]})
            try:
                keys = self._base.keys(points)
            except TransferError as error:
                raise self._peer.refusal(str(error)) from error
            transcript = Transcript(self._round.digest, self._base.point, points)
            self._extension = ExtensionReceiver(keys, transcript, Expansion(self._secret, "sacrificed bits"))
            if self.agreement.threshold is None:
                return self._begin(argmax_phase(self._round, np.arange(self.agreement.queries)))
            return self._begin(threshold_phase(self._round))
        if self._step == "counts":
            return self._take_counts(frame)
        spec = {Kind.TABLES: self._phase.tables_spec(self._evaluated)} if self._waiting else {}
        _, arrays = self._peer.receive(frame, spec)
        return self._evaluate(*arrays)

    def _begin(self, phase: Phase) -> Iterator[Send]:
        self._step, self._phase = "phase", phase
        self._engine_of = cache(partial(Engine, phase.circuit, ciphers=phase.ciphers))
        self._asked = self._evaluated = 0
        self._waiting: deque[Labels] = deque()
        return self._ask(WINDOW)

    def _ask(self, blocks: int) -> Iterator[Send]:
        """Begin the transfers of the next blocks."""
        phase = self._phase
        assert self._shares is not None
        for block in range(self._asked, min(self._asked + blocks, len(phase.blocks))):
            message, labels = self._extension.extend(phase.inputs(self._shares, block))
            self._waiting.append(labels)
            self._asked += 1
            yield self._peer.send(Kind.BITS, *message)

    def _evaluate(
        self, seed: NDArray[np.uint8], tables: Labels, hashes: NDArray[np.uint64], values: NDArray[np.uint8]
    ) -> Iterator[Send]:
        # The guardian garbles the next block while this one is evaluated.
        yield from self._ask(1)
        phase, block = self._phase, self._evaluated
        size = phase.size(block)
        labels = np.concatenate(
            (labels_from_seed(seed.tobytes(), phase.circuit.inputs[0], size), self._waiting.popleft())
        )
        engine = self._engine_of(size)
        outputs = engine.evaluate(block, tables.reshape(len(tables), 2, size, 2), labels)
        bits, genuine = engine.open(block, outputs, hashes, values)
        if not genuine or values.max() > 1:
            self._abort("garbled tables of the guardian were altered.")
            raise self._peer.refusal(f"the garbled tables of block {block} were altered: they open no output.")
        self._evaluated += 1
        queries = phase.queries[phase.blocks[block]]
        last = self._evaluated == len(phase.blocks)
        if phase.number == 1:
            if self.passed is None:
                self.passed = np.zeros(self.agreement.queries, bool)
            self.passed[queries] = bits[0]
            yield self._peer.send(Kind.OPENED, outputs[0])
            if last:
                yield from self._after_test()
            return
        weights = 1 << np.arange(len(bits), dtype=np.int64)
        self._answers[queries] = weights @ bits.astype(np.int64)
        if last:
            yield from self._finish()

    def _after_test(self) -> Iterator[Send]:
        assert self.passed is not None
        queries = np.flatnonzero(self.passed)
        if not len(queries):
            return self._finish()
        if self.agreement.reveal == "histogram":
            return self._expect_counts()
        return self._begin(argmax_phase(self._round, queries))

    def _expect_counts(self) -> Iterator[Send]:
        assert self.passed is not None
        self._step, self._counted = "counts", np.flatnonzero(self.passed)
        self._count_blocks = deque(count_blocks(self.agreement, len(self._counted)))
        return iter(())

    def _take_counts(self, frame: bytes) -> Iterator[Send]:
        block = self._count_blocks[0]
        shape = (block.stop - block.start, self.agreement.classes)
        _, (shares,) = self._peer.receive(frame, {Kind.COUNTS: [(modulo(0, self.bits).dtype, shape)]})
        assert self._shares is not None
        queries = self._counted[block]
        self._answers[queries] = signed(self._shares[queries] + shares, self.bits)
        self._count_blocks.popleft()
        return iter(()) if self._count_blocks else self._finish()

    def _finish(self) -> Iterator[Send]:
        self.result, self.finished = self._answers, True
        yield self._peer.send(Kind.DONE)
