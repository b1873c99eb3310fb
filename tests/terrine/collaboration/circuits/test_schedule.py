import numpy as np
import pytest

from terrine.collaboration.circuits.circuit import AND, argmax_circuit
from terrine.collaboration.circuits.schedule import schedule
from tests.collaboration_circuits import random_circuit


def follow(circuit, bits):
    """Do what the schedule says, on bits in place of labels."""
    plan = schedule(circuit)
    rows = np.full((plan.rows, bits.shape[1]), -1)
    rows[: circuit.width] = bits
    for step in plan.steps:
        for left, right, out in step.xors:
            assert min(rows[left].min(), rows[right].min()) >= 0
            rows[out] = rows[left] ^ rows[right]
        left, right = rows[step.left], rows[step.right]
        left[step.left_inverted] ^= 1
        right[step.right_inverted] ^= 1
        assert step.out.size == 0 or min(left.min(), right.min()) >= 0
        rows[step.out] = left & right
    return rows[plan.outputs] ^ plan.inverted[:, None]


@pytest.mark.parametrize("seed", range(12))
def test_following_the_schedule_computes_the_circuit(seed):
    circuit = random_circuit(seed, gates=10 + 40 * seed)
    bits = np.random.default_rng(seed).integers(0, 2, (circuit.width, 33))
    assert np.array_equal(follow(circuit, bits), circuit.evaluate(bits))


def test_every_and_gate_is_done_once_and_rows_are_used_again():
    circuit = argmax_circuit(10, 11)
    plan = schedule(circuit)
    assert sum(len(step.out) for step in plan.steps) == int((circuit.kinds == AND).sum())
    assert plan.rows < circuit.width + 60
    assert plan.largest == max(len(step.out) for step in plan.steps) >= 10


def test_and_gates_of_one_depth_are_done_at_once():
    # Ten adders side by side, then four rounds of a comparison and a choice; 294 AND gates.
    assert len(schedule(argmax_circuit(10, 11)).steps) <= 10 + 4 * (11 + 1) + 1
