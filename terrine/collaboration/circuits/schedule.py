"""Evaluation order of a circuit: all AND gates of one depth at once, in a few reused rows of labels.

NOT gates vanish: their output is the inverted row of their input. A row is reused as soon as the last gate that reads
it is done, so the labels of a block of queries stay in a core's cache.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from terrine.collaboration.circuits.circuit import AND, NOT, XOR, Circuit

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Step:
    """XOR gates, followed by AND gates of one depth.

    Attributes:
        xors: (input row, input row, result row), in order.
        left: Rows of the AND gates' first inputs.
        right: Rows of the AND gates' second inputs.
        left_inverted: Positions in `left` whose wire is the row's complement.
        right_inverted: Positions in `right` whose wire is the row's complement.
    """

    xors: list[tuple[int, int, int]]
    left: Rows
    right: Rows
    left_inverted: Rows
    right_inverted: Rows
    out: Rows


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of a circuit and the rows they use.

    Attributes:
        rows: Number of rows of labels; the first ones are the inputs.
        steps: Steps in order; AND gates are numbered in this order.
        inverted: bool [outputs], whether the output is the row's complement.
        largest: Largest number of AND gates in a step.
    """

    rows: int
    steps: list[Step]
    outputs: Rows
    inverted: NDArray[np.bool_]
    largest: int


@lru_cache(maxsize=32)
def schedule(circuit: Circuit) -> Schedule:
    """Return the schedule of a circuit (cached)."""
    first = circuit.width
    gates = list(zip(circuit.kinds.tolist(), circuit.left.tolist(), circuit.right.tolist(), strict=True))
    source = list(range(first)) + [0] * len(gates)  # the wire whose row a wire reads
    inverted = [False] * (first + len(gates))
    depth = [0] * (first + len(gates))
    order: list[tuple[int, int]] = []
    for out, (kind, left, right) in enumerate(gates, first):
        if kind == NOT:
            source[out], inverted[out], depth[out] = source[left], not inverted[left], depth[left]
            continue
        source[out] = out
        deepest = max(depth[left], depth[right])
        inverted[out] = kind == XOR and inverted[left] != inverted[right]
        depth[out] = deepest + (kind == AND)
        order.append((2 * deepest + (kind == AND), out))
    order.sort()
    last = {source[wire]: len(order) for wire in circuit.outputs.tolist()}
    for moment in range(len(order) - 1, -1, -1):
        key, out = order[moment]
        for wire in gates[out - first][1:]:
            last.setdefault(source[wire], moment)
    row = {wire: wire for wire in range(first)}
    free: list[int] = []
    rows, steps, moment = first, [], 0
    # The few unused inputs keep their rows.
    while moment < len(order):
        xors: list[tuple[int, int, int]] = []
        ands: list[int] = []
        while moment < len(order) and not (ands and order[moment][0] != order[moment - 1][0]):
            key, out = order[moment]
            left, right = (source[wire] for wire in gates[out - first][1:])
            done = [wire for wire in {left, right} if last[wire] == moment]
            if key % 2 == 0:
                # The result may overwrite rows that are read for the last time.
                free += [row[wire] for wire in done]
            if not free:
                free, rows = [rows], rows + 1
            row[out] = free.pop()
            if key % 2 == 0:
                xors.append((row[left], row[right], row[out]))
            else:
                ands.append(out)
            if out not in last:
                last[out] = moment
                free.append(row[out])
            moment += 1
        if ands:
            start = moment - len(ands)
            read = {source[wire] for out in ands for wire in gates[out - first][1:]}
            free += [row[wire] for wire in read if start <= last[wire] < moment]
        lefts, rights = ([gates[out - first][side] for out in ands] for side in (1, 2))
        steps.append(
            Step(
                xors=xors,
                left=np.array([row[source[wire]] for wire in lefts], np.intp),
                right=np.array([row[source[wire]] for wire in rights], np.intp),
                left_inverted=np.flatnonzero([inverted[wire] for wire in lefts]),
                right_inverted=np.flatnonzero([inverted[wire] for wire in rights]),
                out=np.array([row[out] for out in ands], np.intp),
            )
        )
    outputs = circuit.outputs.tolist()
    return Schedule(
        rows=rows,
        steps=steps,
        outputs=np.array([row[source[wire]] for wire in outputs], np.intp),
        inverted=np.array([inverted[wire] for wire in outputs], bool),
        largest=max((len(step.out) for step in steps), default=0),
    )
