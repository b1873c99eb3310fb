"""Phases of the joint computation: one circuit for some of the queries, in blocks.

Both services derive the same plan from the agreement and from the queries that passed the test, so a message of any
other shape is refused. Blocks are numbered through all phases of a round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.circuits.circuit import Circuit, argmax_circuit, threshold_circuit
from terrine.collaboration.circuits.garbling import Engine, ciphers_of
from terrine.collaboration.circuits.transfer import FIELD, WIDTH, column_bytes
from terrine.collaboration.protocol.agreement import LARGEST_BODY, Agreement, ProtocolError, Spec
from terrine.collaboration.protocol.shares import bits_of, count_bits, opened_bits, share_type, threshold_bits

ORIGIN = 16
"""Bytes of the random number that makes a round's computation unique."""
_BLOCK = 512  # queries; fewer start and end sooner, more need fewer calls
_RESERVED = 8_192  # bytes for the sacrificed transfers and their check


@dataclass(frozen=True, eq=False)
class Phase:
    """One phase of the joint computation: a circuit that is evaluated for some of the queries.

    Attributes:
        agreement: Parameters of the round.
        number: 1 for the threshold, 2 for the argmax.
        circuit: The circuit.
        bits: Number of bits of each input number of the circuit.
        queries: int64, queries for which it is evaluated.
        context: Bytes that are unique to the computation: agreement and origin.
    """

    agreement: Agreement
    number: int
    circuit: Circuit
    bits: int
    queries: NDArray[np.int64]
    context: bytes

    @cached_property
    def blocks(self) -> list[slice]:
        """Positions in `queries`, block by block."""
        gates, inputs, outputs = self.circuit.and_gates, self.circuit.inputs[1], len(self.circuit.outputs)
        room = LARGEST_BODY - _RESERVED  # one query with the most classes needs half of it
        most = min(room // (32 * gates + 33 * outputs), room // (16 * inputs), _BLOCK)
        return blocks_of(len(self.queries), most)

    def size(self, block: int) -> int:
        """Return the number of queries in a block."""
        return len(self.queries[self.blocks[block]])

    def inputs(self, shares: NDArray[np.unsignedinteger], block: int) -> NDArray[np.uint8]:
        """Return one party's input bits of a block: uint8 [wires, queries]."""
        return bits_of(shares[self.queries[self.blocks[block]]], self.bits)

    def engine(self, block: int) -> Engine:
        """Return the engine for a block; it keeps buffers, so it serves one thread at a time."""
        return self._engine_of(self.size(block))

    @cached_property
    def _engine_of(self) -> Any:
        ciphers = ciphers_of(self.circuit, self.context + bytes([self.number]))
        return cache(partial(Engine, self.circuit, ciphers=ciphers))

    def width(self, block: int) -> int:
        """Return the bytes of a column of the block's transfers."""
        return column_bytes(self.circuit.inputs[1] * self.size(block))

    def request_specs(self, block: int) -> Sequence[Spec]:
        """Return the arrays of the student's message, an `ExtensionMessage`."""
        return (("u1", (WIDTH, self.width(block))), ("u1", (FIELD,)), ("u1", (WIDTH, FIELD)))

    def tables_specs(self, block: int) -> Sequence[Spec]:
        """Return the arrays of the answer: seed of labels, ciphertexts, hashes and values that decode outputs."""
        size, outputs = self.size(block), len(self.circuit.outputs)
        return (
            ("u1", (16,)),
            ("<u8", (self.circuit.and_gates, 2, size, 2)),
            ("<u8", (outputs, 2, size)),
            ("u1", (outputs, size)),
        )

    def opened_specs(self, block: int) -> Sequence[Spec]:
        """Return the arrays that open the test: a label of the output for every query."""
        return (("<u8", (self.size(block), 2)),)


class Plan:
    """The phases of a round's computation.

    Args:
        agreement: Parameters of the round.
        origin: Random bytes of the computation.
        passed: bool [queries], outcome of the test; None without a test, or before it is known.
    """

    def __init__(self, agreement: Agreement, origin: bytes, passed: NDArray[np.bool_] | None = None) -> None:
        self.agreement, self.context = agreement, agreement.digest + origin
        self.phases: list[Phase] = []
        every = np.arange(agreement.queries)
        if agreement.threshold is not None:
            bits = threshold_bits(agreement)
            circuit = threshold_circuit(agreement.classes, bits)
            self.phases.append(Phase(agreement, 1, circuit, bits, every, self.context))
        self.tested = len(self.phases[0].blocks) if self.phases else 0
        if agreement.threshold is None or passed is not None:
            self.answered: NDArray[np.int64] | None = every if passed is None else np.flatnonzero(passed)
            if agreement.reveal == "argmax" and len(self.answered):
                bits = count_bits(agreement.total, agreement.sigma)
                circuit = argmax_circuit(agreement.classes, bits)
                self.phases.append(Phase(agreement, 2, circuit, bits, self.answered, self.context))
        else:
            self.answered = None

    @property
    def blocks(self) -> int:
        """Number of blocks that are known so far."""
        return sum(len(phase.blocks) for phase in self.phases)

    def find(self, number: int) -> tuple[Phase, int]:
        """Return the phase of a block and the block's number in it.

        Raises:
            ProtocolError: The block does not exist, or not yet.
        """
        if 0 <= number < self.blocks:
            first = len(self.phases[0].blocks)
            return (self.phases[0], number) if number < first else (self.phases[1], number - first)
        raise ProtocolError(f"Block {number} does not exist in this phase of the round.")

    def offset(self, number: int) -> int:
        """Return the bytes of a column in all blocks before this one."""
        return sum(phase.width(block) for phase, block in map(self.find, range(number)))

    def count_blocks(self) -> list[slice]:
        """Return positions in `answered` whose noised shares are sent in one message, if counts or sums are revealed.

        Raises:
            ProtocolError: The outcome of the threshold test is not known yet.
        """
        if self.answered is None or self.agreement.reveal == "argmax":
            raise ProtocolError("No counts are revealed, or the test is not complete.")
        width = self.agreement.classes * self.count_kind.itemsize
        return blocks_of(len(self.answered), max(1, 2**22 // width))

    @property
    def count_kind(self) -> np.dtype:
        """Type of a noised share that is revealed."""
        bits = opened_bits(self.agreement)
        return share_type(bits) if bits > 32 else np.dtype("<u4")


def blocks_of(rows: int, block: int) -> list[slice]:
    """Return consecutive blocks of rows, all of the same size except the last."""
    return [slice(first, min(first + block, rows)) for first in range(0, rows, block)]
