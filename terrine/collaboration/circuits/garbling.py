"""Garbled circuits, vectorised over queries: half-gates, free XOR, point-and-permute, AES with a key for each half.

Every wire has two labels of 128 bits, L and L ⊕ Δ, for the values 0 and 1; the evaluator holds one of them, and does
not know which. XOR is free (Kolesnikov & Schneider 2008); an AND gate costs two ciphertexts (Zahur, Rosulek & Evans
2015). The lowest bit of Δ is 1, so the lowest bit of a label, its colour, only selects the ciphertexts.

Labels are hashed by H(x, (g, q)) = E(k_g, σ(x) ⊕ q) ⊕ σ(x) ⊕ q, with E = AES, σ(a, b) = (a ⊕ b, a) on halves, a
separate key k_g for each half of each gate and for each output, and the number q of the query. The garbling hash is
that of Guo, Katz, Wang, Weng & Yu (2020), whose tweak is the key: tweakable circular correlation robust if AES is an
ideal cipher, since σ and x ↦ σ(x) ⊕ x are linear and invertible (Guo, Katz, Wang & Yu 2020, section 7.3). This hash
takes one AES call, while π(π(x) ⊕ i) ⊕ π(x) with a single key takes two. An adversary with p AES calls gains an
advantage of about u p / 2¹²⁸ if u labels are hashed under one key, two for each query: p / 2¹¹³ for 10,000 queries.
Adding q shifts x by a public constant, which preserves robustness, and separates equal labels of two queries. The keys
are AES encryptions of consecutive numbers under a key that is unique to the phase of the round.

This definition of robustness lets an evaluator that departs from the protocol choose its labels, as long as no two hash
inputs under one key are equal. A student cannot make them equal: its labels follow from keys that it cannot choose,
except in columns in which it guessed bits of Δ (`transfer`). So two of u inputs are equal with probability below u² /
2¹²⁸.

Arrays of labels are uint64 [wires, queries, 2], little-endian: the colour is the lowest bit of the first word.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from terrine.collaboration.circuits.circuit import Circuit
from terrine.collaboration.circuits.schedule import Step, schedule

Labels = NDArray[np.uint64]
# AND gates × queries per step: fewer fit a core's cache better, more need fewer calls.
_CHUNK = 8_192
_ONE = np.uint64(1)


def fresh_offset(draw: Callable[[int], bytes] = os.urandom) -> Labels:
    """Δ: 128 random bits, the lowest one set. uint64 [2]."""
    delta = np.frombuffer(draw(16), "<u8").copy()
    delta[0] |= _ONE
    return delta


def labels_from_seed(seed: bytes, wires: int, queries: int) -> Labels:
    """Return the labels of the garbler's own inputs, which both sides expand from a seed of 16 bytes.

    The evaluator holds these labels, so they are not sent. For the bit b, the label of 0 is label ⊕ bΔ.
    """
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(16 * wires * queries)), "<u8").reshape(wires, queries, 2)


def shifted(labels: Labels, bits: NDArray[np.uint8], delta: Labels) -> Labels:
    """labels ⊕ bits · Δ."""
    return labels ^ (np.negative(bits.astype(np.uint64))[..., None] & delta)


def ciphers_of(circuit: Circuit, context: bytes) -> list[Any]:
    """Return AES ciphers: one for each half of each AND gate, in schedule order, then one for each output.

    Args:
        circuit: Circuit to garble or evaluate.
        context: Bytes that are unique to the phase: agreement, origin and number of the phase.
    """
    master = hashlib.sha256(b"terrine garbling 2\0" + context).digest()[:16]
    count = 2 * circuit.and_gates + len(circuit.outputs)
    numbers = np.zeros((count, 2), "<u8")
    numbers[:, 0] = np.arange(count)
    keys = Cipher(algorithms.AES(master), modes.ECB()).encryptor().update(numbers.tobytes())
    return [
        Cipher(algorithms.AES(keys[16 * number : 16 * (number + 1)]), modes.ECB()).encryptor()
        for number in range(count)
    ]


class Engine:
    """Garbles and evaluates a circuit for blocks of queries. One thread at a time.

    Args:
        queries: Number of queries in a block.
        ciphers: `ciphers_of` the circuit and the phase.
    """

    def __init__(self, circuit: Circuit, queries: int, ciphers: list[Any]) -> None:
        self.circuit, self.queries, self._ciphers = circuit, queries, ciphers
        self._plan = plan = schedule(circuit)
        self._rows = rows = np.empty((plan.rows, queries, 2), "<u8")
        # Looking up rows takes as long as XORing them, so it is done once.
        self._xors = [[(rows[left], rows[right], rows[out]) for left, right, out in step.xors] for step in plan.steps]
        self._gates = gates = max(1, min(_CHUNK // queries, max(plan.largest, 1)))
        self._queries = np.empty(queries, "<u8")
        self._labels, self._hashed, self._mask, self._other = (
            np.empty((gates, 2, queries, 2), "<u8") for _ in range(4)
        )
        self._colours = np.empty((gates, 2, queries), "<u8")
        # Fresh memory for every block would take a tenth of the garbling time. An evaluator never touches these pages.
        self._tables = np.empty((circuit.and_gates, 2, queries, 2), "<u8")
        # The cipher requires a buffer 15 bytes longer than its output.
        self._plain, self._secret = (np.empty(4 * gates * queries * 16 + 16, np.uint8) for _ in range(2))
        self._from, self._into = self._plain.data, self._secret.data

    def garble(self, block: int, delta: Labels, inputs: Labels) -> tuple[Labels, Labels]:
        """Garble one block.

        Args:
            block: Number of the block in the phase.
            delta: uint64 [2], the session's Δ.
            inputs: uint64 [input wires, queries, 2], labels of 0.

        Returns:
            The ciphertexts, uint64 [AND gates, 2, queries, 2], valid until the next call, and the outputs' labels of 0.
        """
        tables = self._tables
        offset = np.ascontiguousarray(np.broadcast_to(delta, (self.queries, 2)))
        mixed = np.stack((offset[:, 0] ^ offset[:, 1], offset[:, 0]), axis=1)  # σ(Δ)

        def gates(step: Step, part: slice, done: int) -> Labels:
            labels, count = self._take(step.left[part], step.right[part]), part.stop - part.start
            for half, inverted in enumerate((step.left_inverted, step.right_inverted)):
                for place in inverted[(inverted >= part.start) & (inverted < part.stop)] - part.start:
                    labels[place, half] ^= offset
            plain, secret = self._view(2, count)
            self._mix(labels, plain[:, :, 0])
            np.bitwise_xor(plain[:, :, 0], mixed, out=plain[:, :, 1])
            self._encrypt(2 * done, 2 * count, 2)
            return self._and_of_garbler(labels, plain, secret, tables[done : done + count], offset, mixed)

        outputs = self._through(block, inputs, gates)
        outputs[self._plan.inverted] ^= offset
        return tables, outputs

    def evaluate(self, block: int, tables: Labels, inputs: Labels) -> Labels:
        """Evaluate one block.

        Args:
            block: The block number used for garbling.
            tables: The ciphertexts, uint64 [AND gates, 2, queries, 2].
            inputs: uint64 [input wires, queries, 2], the label of each wire's value.

        Returns:
            uint64 [outputs, queries, 2], the label of each output's value.
        """

        def gates(step: Step, part: slice, done: int) -> Labels:
            labels, count = self._take(step.left[part], step.right[part]), part.stop - part.start
            plain, secret = self._view(1, count)
            self._mix(labels, plain[:, :, 0])
            self._encrypt(2 * done, 2 * count, 1)
            return self._and_of_evaluator(labels, plain, secret, tables[done : done + count])

        return self._through(block, inputs, gates)

    def seal(self, block: int, delta: Labels, outputs: Labels) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the data that decode and verify the outputs' labels.

        Args:
            block: The block number used for garbling.
            delta: Secret difference Δ of all label pairs.
            outputs: Labels of 0, uint64 [outputs, queries, 2].

        Returns:
            uint64 [outputs, 2, queries], a hash of the label of each colour, and uint8 [outputs, queries], the value
            that belongs to colour 0.
        """
        both = np.stack((outputs, outputs ^ delta))
        hashes = np.stack([self._hash_outputs(block, labels) for labels in both])
        zero = (both[0, ..., 0] & _ONE).astype(np.uint8)  # colour of the label of 0, so also the value of colour 0
        ordered = np.where(zero, hashes[::-1], hashes)
        return np.ascontiguousarray(ordered.transpose(1, 0, 2)), zero

    def open(
        self, block: int, outputs: Labels, hashes: NDArray[np.uint64], values: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], bool]:
        """Return the outputs' values, uint8 [outputs, queries], and whether all labels are the garbler's."""
        colours = (outputs[..., 0] & _ONE).astype(np.uint8)
        expected = np.where(colours, hashes[:, 1], hashes[:, 0])
        return colours ^ values, bool((self._hash_outputs(block, outputs) == expected).all())

    def _hash_outputs(self, block: int, outputs: Labels) -> NDArray[np.uint64]:
        self._number(block)
        mixed = np.empty_like(outputs)
        self._mix(outputs, mixed)
        ciphers = self._ciphers[2 * self.circuit.and_gates :]
        secret = b"".join(cipher.update(row.tobytes()) for cipher, row in zip(ciphers, mixed, strict=True))
        hashes: NDArray[np.uint64] = (np.frombuffer(secret, "<u8").reshape(mixed.shape) ^ mixed)[..., 1]
        return hashes

    def _through(self, block: int, inputs: Labels, gates: Callable[[Step, slice, int], Labels]) -> Labels:
        """Process the circuit of a block with `gates`, which computes AND labels; return the labels of the outputs."""
        self._number(block)
        rows, done = self._rows, 0
        rows[: len(inputs)] = inputs
        for step, xors in zip(self._plan.steps, self._xors, strict=True):
            for left, right, out in xors:
                np.bitwise_xor(left, right, out=out)
            count, results = len(step.out), []
            for first in range(0, count, self._gates):
                part = slice(first, min(first + self._gates, count))
                results.append((part, gates(step, part, done + first)))
            for part, result in results:
                rows[step.out[part]] = result
            done += count
        return rows[self._plan.outputs]

    def _number(self, block: int) -> None:
        """Set the query numbers of a block, unique in the phase."""
        self._queries[:] = np.arange(self.queries, dtype=np.uint64) + np.uint64(block << 32)

    def _take(self, left: NDArray[np.intp], right: NDArray[np.intp]) -> Labels:
        """Return the input labels of gates: uint64 [gates, 2, queries, 2], valid until the next call."""
        labels = self._labels[: len(left)]
        for place, (one, other) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
            labels[place, 0], labels[place, 1] = self._rows[one], self._rows[other]
        return labels

    def _view(self, values: int, gates: int) -> tuple[Labels, Labels]:
        """Return the ciphers' input and output buffers: [gates, 2, values, queries, 2]."""
        size = gates * 2 * values * self.queries * 16
        plain, secret = (
            buffer[:size].view("<u8").reshape(gates, 2, values, self.queries, 2)
            for buffer in (self._plain, self._secret)
        )
        return plain, secret

    def _mix(self, labels: Labels, out: Labels) -> None:
        """σ(labels) ⊕ the numbers of the queries."""
        np.bitwise_xor(labels[..., 0], labels[..., 1], out=out[..., 0])
        np.bitwise_xor(labels[..., 0], self._queries, out=out[..., 1])

    def _encrypt(self, first: int, count: int, values: int) -> None:
        """Encrypt the input buffer with consecutive ciphers."""
        size = values * self.queries * 16
        start = 0
        for cipher in self._ciphers[first : first + count]:
            cipher.update_into(self._from[start : start + size], self._into[start : start + size + 16])
            start += size

    def _masks(self, labels: Labels) -> Labels:
        """Return a mask that is all ones for labels of colour 1; valid until the next call."""
        colours, mask = self._colours[: len(labels)], self._mask[: len(labels)]
        np.bitwise_and(labels[..., 0], _ONE, out=colours)
        np.negative(colours, out=mask[..., 0])
        np.negative(colours, out=mask[..., 1])
        return mask

    def _and_of_garbler(
        self, labels: Labels, plain: Labels, secret: Labels, tables: Labels, offset: Labels, mixed: Labels
    ) -> Labels:
        """Compute both half gates, T_G = H(A0) ⊕ H(A1) ⊕ p_b Δ and T_E = H(B0) ⊕ H(B1) ⊕ A0; return labels of 0."""
        count = len(tables)
        hashed, chosen = self._hashed[:count], self._other[:count]
        np.bitwise_xor(plain[:, :, 0], secret[:, :, 0], out=hashed)
        np.bitwise_xor(secret[:, :, 0], secret[:, :, 1], out=tables)
        np.bitwise_xor(tables, mixed, out=tables)  # the inputs differ by σ(Δ)
        mask = self._masks(labels)
        np.bitwise_and(mask[:, 1], offset, out=chosen[:, 0])
        np.bitwise_xor(tables[:, 0], chosen[:, 0], out=tables[:, 0])
        np.bitwise_xor(hashed, np.bitwise_and(mask, tables, out=chosen), out=hashed)
        np.bitwise_xor(tables[:, 1], labels[:, 0], out=tables[:, 1])
        out: Labels = np.bitwise_xor(hashed[:, 0], hashed[:, 1])
        return out

    def _and_of_evaluator(self, labels: Labels, plain: Labels, secret: Labels, tables: Labels) -> Labels:
        count = len(tables)
        hashed, chosen = self._hashed[:count], self._other[:count]
        np.bitwise_xor(plain[:, :, 0], secret[:, :, 0], out=hashed)
        mask = self._masks(labels)
        chosen[:, 0] = tables[:, 0]
        np.bitwise_xor(tables[:, 1], labels[:, 0], out=chosen[:, 1])
        np.bitwise_and(mask, chosen, out=chosen)
        np.bitwise_xor(hashed, chosen, out=hashed)
        out: Labels = np.bitwise_xor(hashed[:, 0], hashed[:, 1])
        return out
