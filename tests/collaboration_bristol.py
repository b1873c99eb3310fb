"""Circuits in the Bristol formats, as published test circuits come (AES-128, SHA-256, ...): read and written.

Both the old format (`<gates> <wires>` / `<width 1> <width 2> <outputs>`) and Bristol Fashion (`<n> <widths...>` for
inputs and outputs) are read; Bristol Fashion is written. Gates: XOR, AND, INV, EQW.
"""

from collections.abc import Iterator

import numpy as np

from terrine.collaboration.circuits.circuit import AND, NOT, XOR, Circuit
from terrine.errors import InputError

_COPY = -1  # no gate: the result is the wire that enters
_KINDS = {"XOR": (XOR, 2), "AND": (AND, 2), "INV": (NOT, 1), "NOT": (NOT, 1), "EQW": (_COPY, 1)}
_MOST_GATES = 10_000_000


def read(text: str) -> Circuit:
    """The circuit in a Bristol file.

    Args:
        text: The whole file.

    Raises:
        InputError: it is none; the message names the line.
    """
    lines = ((number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    number, sizes = _whole(lines, "the numbers of gates and wires")
    if len(sizes) != 2 or not 0 < sizes[0] <= _MOST_GATES or sizes[1] > 2 * _MOST_GATES:
        raise _fault(number, "two numbers, gates and wires")
    gates, wires = sizes
    number, header = _whole(lines, "the widths of inputs")
    if header and len(header) == header[0] + 1:  # Bristol Fashion
        inputs = tuple(header[1:])
        number, header = _whole(lines, "the widths of outputs")
        if not header or len(header) != header[0] + 1:
            raise _fault(number, "the number of outputs and their widths")
        widths = tuple(header[1:])
    elif len(header) == 3:
        inputs, widths = tuple(width for width in header[:2] if width), (header[2],)
    else:
        raise _fault(number, "widths of inputs and outputs")
    first, last = sum(inputs), sum(widths)
    if first + gates > wires + gates or first > wires or last > wires or wires != first + gates:
        raise _fault(number, f"widths that fit {wires} wires and {gates} gates")
    where = np.full(wires, -1, np.int64)
    where[:first] = np.arange(first)
    made: list[tuple[int, int, int]] = []
    for count in range(gates):
        number, fields = next(lines, (0, []))
        if not fields:
            raise InputError(f"The circuit ends after {count} of {gates} gates.")
        kind, arity = _KINDS.get(fields[-1], (_COPY, 0))
        try:
            values = [int(field) for field in fields[:-1]]
        except ValueError:
            raise _fault(number, "a gate of whole numbers") from None
        if not arity or len(values) != arity + 3 or values[:2] != [arity, 1]:
            raise _fault(number, f"one of the gates {', '.join(_KINDS)}")
        *entering, out = values[2:]
        if not all(0 <= wire < wires for wire in values[2:]) or min(where[entering]) < 0 or where[out] >= 0:
            raise _fault(number, "wires that have a value, and a new one for the result")
        if kind == _COPY:
            where[out] = where[entering[0]]
        else:
            where[out] = first + len(made)
            made.append((kind, int(where[entering[0]]), int(where[entering[-1]])))
    table = np.array(made, np.int32).reshape(-1, 3)
    return Circuit(
        inputs=inputs,
        kinds=table[:, 0].astype(np.uint8),
        left=table[:, 1],
        right=table[:, 2],
        outputs=where[wires - last :].astype(np.int32),
        widths=widths,
    )


def write(circuit: Circuit) -> str:
    """The circuit in Bristol Fashion. Outputs are the last wires there, so each is copied to its place (EQW)."""
    wires = circuit.width + len(circuit.kinds)
    copies = [f"1 1 {wire} {wires + place} EQW" for place, wire in enumerate(circuit.outputs.tolist())]
    names = {XOR: "2 1 {0} {1} {2} XOR", AND: "2 1 {0} {1} {2} AND", NOT: "1 1 {0} {2} INV"}
    gates = zip(circuit.kinds.tolist(), circuit.left.tolist(), circuit.right.tolist(), strict=True)
    lines = [names[kind].format(left, right, out) for out, (kind, left, right) in enumerate(gates, circuit.width)]
    head = [
        f"{len(lines) + len(copies)} {wires + len(copies)}",
        " ".join(map(str, (len(circuit.inputs), *circuit.inputs))),
        " ".join(map(str, (len(circuit.widths), *circuit.widths))),
        "",
    ]
    return "\n".join([*head, *lines, *copies]) + "\n"


def _whole(lines: Iterator[tuple[int, list[str]]], what: str) -> tuple[int, list[int]]:
    number, fields = next(lines, (0, []))
    try:
        return number, [int(field) for field in fields]
    except ValueError:
        raise _fault(number, what) from None


def _fault(number: int, what: str) -> InputError:
    return InputError(f"Line {number} of the circuit is not what the Bristol format has there: {what}.")
