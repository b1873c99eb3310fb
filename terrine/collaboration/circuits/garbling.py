"""Garbled circuits, vectorised over queries: half-gates, free XOR, point-and-permute, fixed-key AES.

Every wire has two labels of 128 bits, L and L ⊕ Δ, for the values 0 and 1; whoever evaluates holds one of them and
cannot tell which. XOR costs nothing (Kolesnikov & Schneider 2008), an AND gate two ciphertexts (Zahur, Rosulek & Evans
2015). The lowest bit of Δ is 1, so the lowest bit of a label, its colour, says which ciphertexts to use and nothing
else.

Labels are hashed by H(x, i) = π(π(x) ⊕ i) ⊕ π(x) with π = AES under a public key: tweakable circular correlation robust
when π is a random permutation (Guo, Katz, Wang & Yu 2020, section 7.4). The tweak i is (gate, query); every block of
queries of every phase of every round has its own key, which bounds what is hashed under one permutation (Guo, Katz,
Wang, Weng & Yu 2020).

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
from terrine.collaboration.circuits.schedule import schedule

Labels = NDArray[np.uint64]
# The AND gates × queries that are worked on at a time: what they need stays in a core's second-level cache.
_CHUNK = 2_048
_OUTPUTS = 1 << 62  # added to the numbers of outputs, so that no gate's tweak is an output's
_ONE = np.uint64(1)


def fresh_offset(draw: Callable[[int], bytes] = os.urandom) -> Labels:
    """Δ: 128 random bits, the lowest one set. uint64 [2]."""
    delta = np.frombuffer(draw(16), "<u8").copy()
    delta[0] |= _ONE
    return delta


def labels_from_seed(seed: bytes, wires: int, queries: int) -> Labels:
    """Labels that both sides make from a seed of 16 bytes: those of the garbler's own inputs.

    The garbler takes them for the labels that the evaluator is to hold; for the bit b, the label of 0 is label ⊕ bΔ.
    So they need not be sent.
    """
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(16 * wires * queries)), "<u8").reshape(wires, queries, 2)


def shifted(labels: Labels, bits: NDArray[np.uint8], delta: Labels) -> Labels:
    """labels ⊕ bits · Δ."""
    return labels ^ (np.negative(bits.astype(np.uint64))[..., None] & delta)


class Engine:
    """Garbles and evaluates a circuit for blocks of so many queries. One thread at a time.

    Args:
        circuit: What is computed.
        queries: Queries in a block.
    """

    def __init__(self, circuit: Circuit, queries: int) -> None:
        self.circuit, self.queries = circuit, queries
        self._plan = plan = schedule(circuit)
        self._rows = rows = np.empty((plan.rows, queries, 2), "<u8")
        # Looking rows up takes as long as XORing them: it is done once.
        self._xors = [[(rows[left], rows[right], rows[out]) for left, right, out in step.xors] for step in plan.steps]
        outputs = len(plan.outputs)
        self._gates = max(1, min(_CHUNK // queries, max(plan.largest, outputs)))
        self._bytes = [np.empty(4 * self._gates * queries * 16 + 16, np.uint8) for _ in range(4)]
        self._words = [buffer[:-16].view("<u8") for buffer in self._bytes]
        self._tweaks = np.zeros((self._gates, queries, 2), "<u8")
        self._tweaks[..., 1] = np.arange(queries)
        self._colours = np.empty((self._gates, queries), "<u8")
        self._mask, self._other = (np.empty((self._gates, queries, 2), "<u8") for _ in range(2))

    def garble(self, context: bytes, delta: Labels, inputs: Labels) -> tuple[Labels, Labels]:
        """Garble one block.

        Args:
            context: What makes the block unique: agreement (with its session), phase, number of the block.
            delta: uint64 [2], the session's Δ.
            inputs: uint64 [input wires, queries, 2], labels of 0.

        Returns:
            The ciphertexts, uint64 [AND gates, 2, queries, 2], and the labels of 0 of the outputs.
        """
        cipher, rows = _cipher(context), self._rows
        rows[: len(inputs)] = inputs
        tables = np.empty((self.circuit.and_gates, 2, self.queries, 2), "<u8")
        offset = np.ascontiguousarray(np.broadcast_to(delta, (self.queries, 2)))
        done = 0
        for step, xors in zip(self._plan.steps, self._xors, strict=True):
            for left, right, out in xors:
                np.bitwise_xor(left, right, out=out)
            results = []
            for first in range(0, len(step.out), self._gates):
                last = min(first + self._gates, len(step.out))
                part = slice(first, last)
                labels = self._view(0, 4, last - first)
                for place, wires, inverted in (
                    (0, step.left, step.left_inverted),
                    (2, step.right, step.right_inverted),
                ):
                    np.take(rows, wires[part], axis=0, out=labels[place], mode="clip")
                    if len(inverted):
                        labels[place][inverted[(inverted >= first) & (inverted < last)] - first] ^= offset
                    np.bitwise_xor(labels[place], offset, out=labels[place + 1])
                hashed = self._hash(cipher, 2, 2, np.arange(done, done + last - first, dtype=np.uint64) << _ONE)
                halves = tables[done : done + last - first]
                results.append(self._and_of_garbler(labels, hashed, halves, offset))
                done += last - first
            for first, result in zip(range(0, len(step.out), self._gates), results, strict=True):
                rows[step.out[first : first + self._gates]] = result
        outputs = rows[self._plan.outputs]
        outputs[self._plan.inverted] ^= offset
        return tables, outputs

    def evaluate(self, context: bytes, tables: Labels, inputs: Labels) -> Labels:
        """Evaluate one block.

        Args:
            context: As it was garbled with.
            tables: The ciphertexts, uint64 [AND gates, 2, queries, 2].
            inputs: uint64 [input wires, queries, 2], the label of each wire's value.

        Returns:
            uint64 [outputs, queries, 2], the label of each output's value.
        """
        cipher, rows = _cipher(context), self._rows
        rows[: len(inputs)] = inputs
        done = 0
        for step, xors in zip(self._plan.steps, self._xors, strict=True):
            for left, right, out in xors:
                np.bitwise_xor(left, right, out=out)
            results = []
            for first in range(0, len(step.out), self._gates):
                last = min(first + self._gates, len(step.out))
                labels = self._view(0, 2, last - first)
                np.take(rows, step.left[first:last], axis=0, out=labels[0], mode="clip")
                np.take(rows, step.right[first:last], axis=0, out=labels[1], mode="clip")
                hashed = self._hash(cipher, 1, 2, np.arange(done, done + last - first, dtype=np.uint64) << _ONE)
                results.append(self._and_of_evaluator(labels, hashed, tables[done : done + last - first]))
                done += last - first
            for first, result in zip(range(0, len(step.out), self._gates), results, strict=True):
                rows[step.out[first : first + self._gates]] = result
        return rows[self._plan.outputs]

    def seal(self, context: bytes, delta: Labels, outputs: Labels) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """What opens the outputs to whoever holds one label of each, and shows whether it is one.

        Args:
            context: As the block was garbled with.
            delta: The session's Δ.
            outputs: Labels of 0, uint64 [outputs, queries, 2].

        Returns:
            uint64 [outputs, 2, queries], a hash of the label of each colour, and uint8 [outputs, queries], the value
            that belongs to colour 0.
        """
        both = np.stack((outputs, outputs ^ delta))
        hashes = np.stack([self._hash_outputs(context, labels) for labels in both])
        zero = (both[0, ..., 0] & _ONE).astype(np.uint8)  # colour of the label of 0, so also the value of colour 0
        ordered = np.where(zero, hashes[::-1], hashes)
        return np.ascontiguousarray(ordered.transpose(1, 0, 2)), zero

    def open(
        self, context: bytes, outputs: Labels, hashes: NDArray[np.uint64], values: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint8], bool]:
        """The values of outputs, uint8 [outputs, queries], and whether every label is one that the garbler made."""
        colours = (outputs[..., 0] & _ONE).astype(np.uint8)
        expected = np.where(colours, hashes[:, 1], hashes[:, 0])
        return colours ^ values, bool((self._hash_outputs(context, outputs) == expected).all())

    def _hash_outputs(self, context: bytes, outputs: Labels) -> NDArray[np.uint64]:
        cipher = _cipher(context)
        hashes = np.empty(outputs.shape[:2], "<u8")
        for first in range(0, len(outputs), self._gates):
            part = outputs[first : first + self._gates]
            self._view(0, 1, len(part))[0] = part
            numbers = np.arange(first, first + len(part), dtype=np.uint64) + np.uint64(_OUTPUTS)
            hashes[first : first + len(part)] = self._hash(cipher, 1, 1, numbers)[0, ..., 1]
        return hashes

    def _view(self, buffer: int, sides: int, gates: int) -> Labels:
        size = sides * gates * self.queries * 2
        return self._words[buffer][:size].reshape(sides, gates, self.queries, 2)

    def _hash(self, cipher: Any, sides: int, halves: int, numbers: NDArray[np.uint64]) -> Labels:
        """Hash the labels in buffer 0: [halves · sides, gates, queries, 2], valid until the next call.

        `numbers` are the tweaks of the gates' first halves; that of a second half is one more.
        """
        gates = len(numbers)
        size = halves * sides * gates * self.queries * 16
        permuted, tweaked, hashed = (self._view(buffer, halves * sides, gates) for buffer in (1, 3, 2))
        tweaks = self._tweaks[:gates]
        # The cipher asks for a buffer 15 bytes longer than what it writes.
        cipher.update_into(self._bytes[0][:size], self._bytes[1][: size + 16])
        for half in range(halves):
            tweaks[..., 0] = (numbers + np.uint64(half))[:, None]
            part = slice(half * sides, (half + 1) * sides)
            np.bitwise_xor(permuted[part], tweaks, out=tweaked[part])
        cipher.update_into(self._bytes[3][:size], self._bytes[2][: size + 16])
        return np.bitwise_xor(hashed, permuted, out=hashed)

    def _masks(self, labels: Labels) -> Labels:
        """All ones where a label has colour 1; valid until the next call."""
        colours, mask = self._colours[: len(labels)], self._mask[: len(labels)]
        np.bitwise_and(labels[..., 0], _ONE, out=colours)
        np.negative(colours, out=colours)
        mask[..., 0] = colours
        mask[..., 1] = colours
        return mask

    def _and_of_garbler(self, labels: Labels, hashed: Labels, tables: Labels, offset: Labels) -> Labels:
        """Both half gates: T_G = H(A0) ⊕ H(A1) ⊕ p_b Δ and T_E = H(B0) ⊕ H(B1) ⊕ A0; the labels of 0 that result."""
        generator, evaluator = tables[:, 0], tables[:, 1]
        other = self._other[: len(tables)]
        out: Labels = np.bitwise_xor(hashed[0], hashed[2])
        np.bitwise_xor(hashed[2], hashed[3], out=evaluator)
        mask = self._masks(labels[2])
        out ^= np.bitwise_and(mask, evaluator, out=other)
        np.bitwise_xor(evaluator, labels[0], out=evaluator)
        np.bitwise_xor(hashed[0], hashed[1], out=generator)
        np.bitwise_xor(generator, np.bitwise_and(mask, offset, out=other), out=generator)
        mask = self._masks(labels[0])
        out ^= np.bitwise_and(mask, generator, out=other)
        return out

    def _and_of_evaluator(self, labels: Labels, hashed: Labels, tables: Labels) -> Labels:
        other = self._other[: len(tables)]
        out: Labels = np.bitwise_xor(hashed[0], hashed[1])
        out ^= np.bitwise_and(self._masks(labels[0]), tables[:, 0], out=other)
        np.bitwise_xor(tables[:, 1], labels[0], out=other)
        out ^= np.bitwise_and(self._masks(labels[1]), other, out=other)
        return out


def _cipher(context: bytes) -> Any:
    key = hashlib.sha256(b"terrine garbling\0" + context).digest()[:16]
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()
