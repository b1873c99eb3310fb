"""The student party's computation in one round: it evaluates what the guardian garbled, and learns only the answers."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.mechanism import UNANSWERED
from terrine.collaboration.circuits.garbling import Labels, labels_from_seed
from terrine.collaboration.circuits.transfer import (
    POINT,
    WIDTH,
    BaseSender,
    ExtensionReceiver,
    Transcript,
    TransferError,
)
from terrine.collaboration.protocol.agreement import Agreement, ProtocolError, arrays_of, body_of
from terrine.collaboration.protocol.guardian_round import Facts
from terrine.collaboration.protocol.phase import ORIGIN, Plan
from terrine.collaboration.protocol.randomness import Expansion, fresh_secret
from terrine.collaboration.protocol.shares import ShareArray, opened_bits, signed

Post = Callable[[str, bytes], bytes]
"""Sends a message to the guardian and returns its answer: `base`, `blocks/N`, `opened/N`, `counts/N`."""


class StudentRound:
    """State and messages of the student party in one round that the guardian has closed.

    Args:
        agreement: Parameters of the round.
        facts: Stored facts about the round.
        closing: The guardian's message that closed the round, `GuardianRound.closing`.
        shares: Sums of the shares of the parties that are counted, unsigned [queries, classes].
        post: Function that sends a message to the guardian.
    """

    def __init__(self, agreement: Agreement, facts: Facts, closing: bytes, shares: ShareArray, post: Post) -> None:
        self._agreement, self._facts, self._post, self._shares = agreement, facts, post, shares
        self._origin = arrays_of(closing, [("u1", (ORIGIN,)), ("u1", (len(agreement.teachers),))])[0].tobytes()
        self._secret = facts.setdefault("secret", fresh_secret())

    def run(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Compute the answers; after an interruption, continue the computation.

        Returns:
            passed: bool [queries], the queries that are answered.
            result: int64 [queries], labels, −1 for a query that did not pass; or [queries, classes], noisy counts, 0
                for a query that did not pass; or [queries, 1], noisy sums.

        Raises:
            ProtocolError: The guardian departs from the protocol.
        """
        agreement = self._agreement
        plan, passed = Plan(agreement, self._origin), np.ones(agreement.queries, bool)
        if agreement.threshold is not None:
            tested = list(self._evaluated(plan, range(plan.tested)))
            passed = np.concatenate([bits[0] for bits in tested]).astype(bool)
            plan = Plan(agreement, self._origin, passed)
        if agreement.reveal != "argmax":
            return passed, self._counts(plan)
        answers = np.full(agreement.queries, UNANSWERED, np.int64)
        labels = list(self._evaluated(plan, range(plan.tested, plan.blocks)))
        if labels:
            bits = np.concatenate(labels, axis=1).astype(np.int64)
            answers[plan.answered] = (1 << np.arange(len(bits), dtype=np.int64)) @ bits
        return passed, answers

    def _counts(self, plan: Plan) -> NDArray[np.int64]:
        agreement = self._agreement
        result = np.zeros((agreement.queries, agreement.classes), np.int64)
        assert plan.answered is not None
        for number, rows in enumerate(plan.count_blocks()):
            queries = plan.answered[rows]
            answer = self._post(f"counts/{number}", b"")
            (shares,) = arrays_of(answer, [(plan.count_kind, (len(queries), agreement.classes))])
            result[queries] = signed(self._shares[queries] + shares, opened_bits(agreement))
        return result

    def _evaluated(self, plan: Plan, numbers: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the output bits of blocks, uint8 [outputs, queries]; the next block is garbled meanwhile."""
        with ThreadPoolExecutor(1) as pool:
            exchanges = {number: pool.submit(self._begun, plan, number) for number in numbers[:1]}
            for number in numbers:
                if number + 1 in numbers:
                    exchanges[number + 1] = pool.submit(self._begun, plan, number + 1)
                phase, block = plan.find(number)
                begun = exchanges.pop(number).result()
                stored = self._facts.get(f"values-{number}")
                if stored is None:
                    assert begun is not None
                    stored = self._facts.setdefault(f"values-{number}", self._opened(plan, number, *begun))
                outputs = len(phase.circuit.outputs)
                labels, bits = arrays_of(stored, [*phase.opened_specs(block), ("u1", (outputs, phase.size(block)))])
                if phase.number == 1:
                    self._post(f"opened/{number}", body_of(labels))
                yield bits

    def _begun(self, plan: Plan, number: int) -> tuple[Labels, bytes] | None:
        """Request a block; return this party's labels and the answer, or None if the block was evaluated before."""
        if self._facts.get(f"values-{number}") is not None:
            return None
        phase, block = plan.find(number)
        before = self._base[1] if number == 0 else self._facts.get(f"requested-{number - 1}")
        assert before is not None
        draw = Expansion(self._secret, f"sacrificed bits {number}")
        transcript = Transcript(before)
        receiver = ExtensionReceiver(self._base[0], transcript, draw, plan.offset(number))
        message, labels = receiver.extend(phase.inputs(self._shares, block))
        self._facts.setdefault(f"requested-{number}", transcript.state)
        return labels, self._post(f"blocks/{number}", body_of(*message))

    @cached_property
    def _base(self) -> tuple[NDArray[np.uint8], bytes]:
        """Keys of the base transfers, and the first state of the transcript."""
        context = Plan(self._agreement, self._origin).context
        base = BaseSender(context, Expansion(self._secret, "base transfers"))
        answer = self._post("base", body_of(np.frombuffer(base.point, np.uint8)))
        (points,) = arrays_of(answer, [("u1", (WIDTH, POINT))])
        try:
            return base.keys(points), Transcript.first(context, base.point, points)
        except TransferError as error:
            raise ProtocolError(str(error)) from error

    def _opened(self, plan: Plan, number: int, own: Labels, answer: bytes) -> bytes:
        """Evaluate a block; return the labels of its first output and the bits of all outputs."""
        phase, block = plan.find(number)
        seed, tables, hashes, values = arrays_of(answer, phase.tables_specs(block))
        size = phase.size(block)
        labels = np.concatenate((labels_from_seed(seed.tobytes(), phase.circuit.inputs[0], size), own))
        engine = phase.engine(block)
        outputs = engine.evaluate(block, tables, labels)
        bits, genuine = engine.open(block, outputs, hashes, values)
        if not genuine or values.max() > 1:
            raise ProtocolError(f"The garbled tables of block {number} were altered: they decode no output.")
        return body_of(outputs[0], bits)
