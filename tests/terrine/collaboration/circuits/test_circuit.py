import itertools

import numpy as np
import pytest

from terrine.collaboration.circuits.circuit import (
    AND,
    NOT,
    ONE,
    XOR,
    ZERO,
    Builder,
    argmax_circuit,
    threshold_circuit,
)
from terrine.collaboration.protocol.shares import bits_of, modulo, signed
from terrine.errors import SettingError
from tests.collaboration_circuits import random_circuit


def bits_for(numbers, width):
    return np.array([[number >> place & 1 for number in numbers] for place in range(width)], np.uint8)


def numbers_from(bits):
    return [sum(int(bit) << place for place, bit in enumerate(column)) for column in np.asarray(bits).T]


def all_pairs(width):
    return zip(*itertools.product(range(2**width), repeat=2), strict=True)


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_an_adder_adds_modulo_its_width_with_one_and_less(width):
    builder = Builder(width, width)
    circuit = builder.finish(builder.add(*builder.inputs))
    assert circuit.and_gates == width - 1
    left, right = map(list, all_pairs(width))
    sums = circuit.evaluate(np.concatenate((bits_for(left, width), bits_for(right, width))))
    assert numbers_from(sums) == [(a + b) % 2**width for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_a_comparison_compares_numbers_with_a_sign(width):
    builder = Builder(width, width)
    circuit = builder.finish([builder.greater(*builder.inputs)])
    assert circuit.and_gates == width
    left, right = map(list, all_pairs(width))
    greater = circuit.evaluate(np.concatenate((bits_for(left, width), bits_for(right, width))))[0]
    with_sign = [signed(side, width).tolist() for side in (left, right)]
    assert greater.tolist() == [a > b for a, b in zip(*with_sign, strict=True)]


def test_a_choice_costs_one_and_a_bit():
    builder = Builder(1, 3, 3)
    (condition,), yes, no = builder.inputs
    circuit = builder.finish(builder.choose(condition, yes, no))
    assert circuit.and_gates == 3
    for chosen, a, b in itertools.product(range(2), range(8), range(8)):
        bits = np.concatenate((bits_for([chosen], 1), bits_for([a], 3), bits_for([b], 3)))
        assert numbers_from(circuit.evaluate(bits)) == [a if chosen else b]


def test_constants_need_no_gates():
    builder = Builder(1)
    ((wire,),) = builder.inputs
    assert [builder.xor(wire, ZERO), builder.conjunction(wire, ONE), builder.conjunction(ONE, wire)] == [wire] * 3
    assert [builder.conjunction(wire, ZERO), builder.xor(wire, wire), builder.invert(ONE)] == [ZERO] * 3
    assert [builder.xor(ZERO, ONE), builder.xor(ONE, ONE), builder.conjunction(wire, wire)] == [ONE, ZERO, wire]
    assert builder.finish([builder.xor(ONE, wire)]).evaluate(np.array([[0, 1]])).tolist() == [[True, False]]
    with pytest.raises(SettingError, match="constant"):
        builder.finish([ONE])


def test_gates_that_no_output_needs_are_left_out():
    builder = Builder(2, 2)
    total = builder.add(*builder.inputs)
    builder.greater(*builder.inputs)
    circuit = builder.finish(total[:1])
    assert circuit.kinds.tolist() == [XOR]


def threshold_ands(classes: int, bits: int) -> int:
    """AND gates of `threshold_circuit`."""
    return classes * bits + classes - 1


def argmax_ands(classes: int, bits: int) -> int:
    """AND gates of `argmax_circuit`: adders, comparisons, choices of the larger value, choices of its number."""
    index, left, level = 0, classes, 0
    while left > 1:
        index += (left // 2) * level
        left, level = (left + 1) // 2, level + 1
    return classes * (bits - 1) + (classes - 1) * bits + (classes - 2) * bits + index


SIZES = [(2, 2), (2, 11), (3, 5), (5, 4), (8, 9), (10, 11), (17, 6), (150, 11)]


@pytest.mark.parametrize(("classes", "bits"), SIZES)
def test_gate_counts_are_known(classes, bits):
    assert argmax_circuit(classes, bits).and_gates == argmax_ands(classes, bits)
    assert threshold_circuit(classes, bits).and_gates == threshold_ands(classes, bits)
    assert len(argmax_circuit(classes, bits).outputs) == (classes - 1).bit_length()


def test_the_size_of_the_usual_session_does_not_grow_unnoticed():
    assert argmax_ands(10, 11) == 10 * 10 + 9 * 11 + 8 * 11 + (1 * 2 + 2 * 1 + 3 * 1)
    assert threshold_ands(10, 58) == 10 * 58 + 9


@pytest.mark.parametrize(("classes", "bits"), SIZES)
def test_argmax_gives_the_first_of_the_largest(classes, bits):
    rng = np.random.default_rng(classes)
    queries = 300
    # Few distinct values, so that ties are common, and the extremes.
    values = rng.choice([-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1], (queries, classes))
    values[0], values[1] = 0, -1
    mine = rng.integers(0, 2**bits, values.shape)
    inputs = np.concatenate([bits_of(modulo(part, bits), bits) for part in (mine, values - mine)])
    labels = numbers_from(argmax_circuit(classes, bits).evaluate(inputs))
    for row, label in zip(values.tolist(), labels, strict=True):
        assert label == row.index(max(row))


@pytest.mark.parametrize(("classes", "bits"), SIZES)
def test_the_threshold_is_passed_when_any_number_reaches_its_bound(classes, bits):
    rng = np.random.default_rng(classes)
    # Numbers near their bounds, and the extremes, which are not near each other on a circle either.
    bounds = rng.choice([0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1], (300, classes))
    numbers = np.clip(bounds + rng.integers(-3, 2, bounds.shape), 0, 2**bits - 1)
    numbers[::2] = np.maximum(bounds[::2] - 1, 0)
    numbers[0], bounds[0] = 2**bits - 1, 0
    numbers[1], bounds[1] = 0, 2**bits - 1
    numbers[2], bounds[2] = 2 ** (bits - 1) - 1, 2 ** (bits - 1)
    inputs = np.concatenate([bits_of(part.astype("<u8"), bits) for part in (bounds, numbers)])
    passed = threshold_circuit(classes, bits).evaluate(inputs)[0]
    expected = [
        any(number >= bound for number, bound in zip(*rows, strict=True))
        for rows in zip(numbers.tolist(), bounds.tolist(), strict=True)
    ]
    assert passed.tolist() == expected
    assert 0 < passed.sum() < 300


def test_a_circuit_needs_two_classes():
    with pytest.raises(SettingError, match="classes"):
        argmax_circuit(1, 8)


def test_plain_evaluation_is_gate_by_gate():
    circuit = random_circuit(0, gates=200)
    bits = np.random.default_rng(1).integers(0, 2, (circuit.width, 20))
    values = circuit.evaluate(bits)
    for query in range(20):
        wires = bits[:, query].tolist()
        for kind, left, right in zip(circuit.kinds, circuit.left, circuit.right, strict=True):
            a, b = wires[left], wires[right]
            wires.append({XOR: a ^ b, AND: a & b, NOT: 1 - a}[int(kind)])
        assert values[:, query].tolist() == [wires[out] == 1 for out in circuit.outputs]
