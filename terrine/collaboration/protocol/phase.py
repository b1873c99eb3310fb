"""A phase of a session: one circuit for some of the queries, in blocks that fit a frame.

Guardian and student plan it alike, each for itself, from what both know; so a frame of any other shape is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.circuits.circuit import Circuit, argmax_circuit, threshold_circuit
from terrine.collaboration.circuits.garbling import ciphers_of
from terrine.collaboration.circuits.transfer import FIELD, WIDTH, column_bytes
from terrine.collaboration.protocol.gathering import blocks_of
from terrine.collaboration.protocol.messages import LARGEST_FRAME, Spec
from terrine.collaboration.protocol.party import Agreement
from terrine.collaboration.protocol.shares import bits_of, count_bits, threshold_bits
from terrine.errors import SettingError

# Blocks that the student asks for ahead: garbling, sending and evaluating go on side by side.
WINDOW = 3
_BLOCK = 512  # queries; fewer start and end sooner, more need fewer calls. Other blocks are another version of frames
_RESERVED = 8_192  # a frame's header, the headers of its arrays, and sacrificed transfers with their check


@dataclass(frozen=True, eq=False)
class Phase:
    """What is computed, for which queries, on which shares.

    Attributes:
        agreement: What the parties agreed on, under the session in which the noise was drawn.
        number: 1 for the threshold, 2 for the argmax.
        circuit: What is computed for every query.
        bits: Of the numbers that enter it.
        queries: int64, the queries it is computed for.
    """

    agreement: Agreement
    number: int
    circuit: Circuit
    bits: int
    queries: NDArray[np.int64]

    @cached_property
    def blocks(self) -> list[slice]:
        """Places in `queries`, block by block."""
        gates, inputs, outputs = self.circuit.and_gates, self.circuit.inputs[1], len(self.circuit.outputs)
        most = (LARGEST_FRAME - _RESERVED) // (32 * gates + 17 * outputs + 16 * outputs)
        most = min(most, (LARGEST_FRAME - _RESERVED) // (16 * inputs), _BLOCK)
        if most < 1:
            raise SettingError(f"One query with {self.agreement.classes} classes does not fit a frame: use fewer.")
        return blocks_of(len(self.queries), most)

    def size(self, block: int) -> int:
        """Queries in a block."""
        return len(self.queries[self.blocks[block]])

    def inputs(self, shares: NDArray[np.unsignedinteger], block: int) -> NDArray[np.uint8]:
        """One party's input bits of a block: uint8 [wires, queries]."""
        return bits_of(shares[self.queries[self.blocks[block]]], self.bits)

    @cached_property
    def ciphers(self) -> list[Any]:
        """What labels are hashed with in no other phase of any round; a resumed session garbles as it did before."""
        return ciphers_of(self.circuit, self.agreement.digest + bytes([self.number]))

    def bits_spec(self, block: int) -> Sequence[Spec]:
        """The arrays of BITS: those of an `ExtensionMessage`."""
        width = column_bytes(self.circuit.inputs[1] * self.size(block))
        return (("u1", (WIDTH, width)), ("u1", (FIELD,)), ("u1", (WIDTH, FIELD)))

    def tables_spec(self, block: int) -> Sequence[Spec]:
        """The arrays of TABLES: seed of the guardian's labels, ciphertexts, hashes and values that open outputs."""
        size, outputs = self.size(block), len(self.circuit.outputs)
        return (
            ("u1", (16,)),
            ("<u8", (self.circuit.and_gates, 2, 2 * size)),
            ("<u8", (outputs, 2, size)),
            ("u1", (outputs, size)),
        )

    def opened_spec(self, block: int) -> Sequence[Spec]:
        """The arrays of OPENED: a label of the output for every query."""
        return (("<u8", (self.size(block), 2)),)


def threshold_phase(agreement: Agreement) -> Phase:
    """The threshold test, for all queries."""
    bits = threshold_bits(agreement)
    return Phase(agreement, 1, threshold_circuit(agreement.classes, bits), bits, np.arange(agreement.queries))


def argmax_phase(agreement: Agreement, queries: NDArray[np.int64]) -> Phase:
    """The argmax, for queries that passed."""
    bits = count_bits(agreement.total, agreement.sigma)
    return Phase(agreement, 2, argmax_circuit(agreement.classes, bits), bits, queries)


def count_blocks(agreement: Agreement, queries: int) -> list[slice]:
    """The queries whose noised shares go into one frame, where histograms are revealed."""
    return blocks_of(queries, max(1, 2**20 // (4 * agreement.classes)))
