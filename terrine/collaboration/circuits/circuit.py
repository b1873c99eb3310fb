"""Boolean circuits of XOR, AND and NOT gates: threshold and argmax on shared counts.

Only AND gates cost anything in a garbled circuit, so their number is minimised:

    adder modulo 2^k                      k − 1
    comparison of k-bit numbers           k
    choice between two k-bit numbers      k
    threshold on C numbers of k bits      Ck + C − 1
    argmax of C counts of k bits          C(k − 1) + (C − 1)k + (C − 2)k + index bits, ⌊n/2⌋ · l at level l (n left)

The carry of a full adder needs one AND: c′ = c ⊕ (a ⊕ c)(b ⊕ c) (Boyar, Peralta & Pochuev 2000); so does one bit of a
comparison (Kolesnikov, Sadeghi & Schneider 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from terrine.errors import SettingError

XOR, AND, NOT = 0, 1, 2
ZERO, ONE = -1, -2
Wire = int
Word = list[Wire]


@dataclass(frozen=True, eq=False)
class Circuit:
    """Gates in topological order. Wires are numbered: inputs first, then the output of each gate.

    Attributes:
        inputs: Width of each input, in bits; the guardian's comes first in the circuits of a session.
        kinds: uint8 [gates], XOR, AND or NOT.
        left: int32 [gates], the first input wire.
        right: int32 [gates], the second input wire; equal to `left` for NOT.
        outputs: int32 [outputs], the wires that are opened.
        widths: Width of each output value, in bits; they sum to the number of outputs.
    """

    inputs: tuple[int, ...]
    kinds: NDArray[np.uint8]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    outputs: NDArray[np.int32]
    widths: tuple[int, ...]

    @cached_property
    def width(self) -> int:
        """Number of input wires."""
        return sum(self.inputs)

    @cached_property
    def and_gates(self) -> int:
        """Number of AND gates."""
        return int((self.kinds == AND).sum())

    def evaluate(self, bits: NDArray[np.uint8] | NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Evaluate the circuit in plaintext.

        Args:
            bits: [input wires, queries], 0 or 1.

        Returns:
            bool [outputs, queries].
        """
        wires = np.empty((self.width + len(self.kinds), bits.shape[1]), bool)
        wires[: self.width] = bits
        gates = zip(self.kinds.tolist(), self.left.tolist(), self.right.tolist(), strict=True)
        for out, (kind, left, right) in enumerate(gates, self.width):
            if kind == XOR:
                np.logical_xor(wires[left], wires[right], out=wires[out])
            elif kind == AND:
                np.logical_and(wires[left], wires[right], out=wires[out])
            else:
                np.logical_not(wires[left], out=wires[out])
        return wires[self.outputs]


class Builder:
    """Builds a circuit gate by gate; folds constants and removes unused gates.

    >>> builder = Builder(4, 4)
    >>> builder.finish(builder.add(*builder.inputs)).and_gates
    3

    Args:
        widths: Width of each input, in bits.
    """

    def __init__(self, *widths: int) -> None:
        self._widths = widths
        starts: list[int] = np.concatenate(([0], np.cumsum(widths))).tolist()
        self.inputs: list[Word] = [
            list(range(start, start + width)) for start, width in zip(starts[:-1], widths, strict=True)
        ]
        self._gates: list[tuple[int, Wire, Wire]] = []
        self._first = starts[-1]

    def _gate(self, kind: int, left: Wire, right: Wire) -> Wire:
        self._gates.append((kind, left, right))
        return self._first + len(self._gates) - 1

    def xor(self, left: Wire, right: Wire) -> Wire:
        """Return left ⊕ right, bit by bit."""
        if left == right:
            return ZERO
        if left < 0 or right < 0:
            constant, other = min(left, right), max(left, right)
            if other < 0:
                return ONE
            return other if constant == ZERO else self.invert(other)
        return self._gate(XOR, left, right)

    def conjunction(self, left: Wire, right: Wire) -> Wire:
        """Return left ∧ right, bit by bit."""
        if ZERO in (left, right):
            return ZERO
        if left in (ONE, right):
            return right
        return left if right == ONE else self._gate(AND, left, right)

    def invert(self, wire: Wire) -> Wire:
        """¬ wire."""
        if wire < 0:
            return ONE if wire == ZERO else ZERO
        return self._gate(NOT, wire, wire)

    def choose(self, condition: Wire, yes: Word, no: Word) -> Word:
        """`yes` if the condition holds, else `no`: one AND per bit."""
        return [self.xor(b, self.conjunction(condition, self.xor(a, b))) for a, b in zip(yes, no, strict=True)]

    def add(self, left: Word, right: Word, carry: Wire = ZERO) -> Word:
        """left + right modulo 2^k: k − 1 ANDs (k if the carry is not constant)."""
        total = []
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            a_carry, b_carry = self.xor(a, carry), self.xor(b, carry)
            total.append(self.xor(a, b_carry))
            if place < len(left) - 1:
                carry = self.xor(carry, self.conjunction(a_carry, b_carry))
        return total

    def greater(self, left: Word, right: Word) -> Wire:
        """left > right, signed numbers in two's complement: k ANDs."""
        # A set sign bit makes a number smaller, so the operands are swapped for that bit.
        pairs = [*zip(left[:-1], right[:-1], strict=True), (right[-1], left[-1])]
        more = ZERO
        for a, b in pairs:
            more = self.xor(a, self.conjunction(self.xor(a, more), self.xor(b, more)))
        return more

    def argmax(self, values: Sequence[Word]) -> Word:
        """Index of the first largest value, lowest bit first."""
        contest: list[tuple[Word, Word]] = [(value, []) for value in values]
        level = 0
        while len(contest) > 1:
            winners = []
            for place in range(0, len(contest) - 1, 2):
                (value, index), (rival, rival_index) = contest[place : place + 2]
                better = self.greater(rival, value)
                rival_index = rival_index + [ZERO] * (level - len(rival_index))
                number = [*self.choose(better, rival_index, index), better]
                winners.append((self.choose(better, rival, value), number))
            if len(contest) % 2:
                winners.append(contest[-1])
            contest, level = winners, level + 1
        return contest[0][1]

    def finish(self, *outputs: Word) -> Circuit:
        """Return the circuit with these outputs.

        Raises:
            SettingError: An output of the circuit is constant.
        """
        opened = [wire for word in outputs for wire in word]
        if min(opened, default=ZERO) < 0:
            raise SettingError("An output of a circuit is a wire that depends on its inputs, not a constant.")
        needed = np.zeros(len(self._gates), bool)
        for wire in opened:
            if wire >= self._first:
                needed[wire - self._first] = True
        for number in range(len(self._gates) - 1, -1, -1):
            if needed[number]:
                for wire in self._gates[number][1:]:
                    if wire >= self._first:
                        needed[wire - self._first] = True
        numbers = np.concatenate((np.arange(self._first), self._first + np.cumsum(needed) - 1)).astype(np.int32)
        gates = np.array(self._gates, np.int32).reshape(-1, 3)[needed]
        return Circuit(
            inputs=self._widths,
            kinds=gates[:, 0].astype(np.uint8),
            left=numbers[gates[:, 1]],
            right=numbers[gates[:, 2]],
            outputs=numbers[np.array(opened)],
            widths=tuple(len(word) for word in outputs),
        )


def _words(classes: int, bits: int) -> tuple[Builder, list[tuple[Word, Word]]]:
    """Return a builder with two inputs, and for each class the pair of its numbers in them."""
    if classes < 2 or bits < 2:
        raise SettingError(f"A circuit needs at least 2 classes and 2 bits, got {classes} and {bits}.")
    builder = Builder(classes * bits, classes * bits)
    words = [[word[place * bits : (place + 1) * bits] for place in range(classes)] for word in builder.inputs]
    return builder, list(zip(*words, strict=True))


@cache
def threshold_circuit(classes: int, bits: int) -> Circuit:
    """Test whether any number of the second input is at least its counterpart in the first: one output.

    No additions, so no overflow; `shares` explains why that matters.

    Args:
        classes: Count of numbers in each input.
        bits: Width of each unsigned number, in bits.
    """
    builder, words = _words(classes, bits)
    # Each number gets a sign bit of 0.
    below = [builder.greater([*bound, ZERO], [*number, ZERO]) for bound, number in words]
    fails = below[0]
    for other in below[1:]:
        fails = builder.conjunction(fails, other)
    return builder.finish([builder.invert(fails)])


@cache
def argmax_circuit(classes: int, bits: int) -> Circuit:
    """Index of the first largest of the shared signed numbers, lowest bit first.

    Args:
        classes: Number of numbers.
        bits: k, the width of each share in bits.
    """
    builder, words = _words(classes, bits)
    return builder.finish(builder.argmax([builder.add(one, other) for one, other in words]))
