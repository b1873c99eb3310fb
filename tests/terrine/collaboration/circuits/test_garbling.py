import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from terrine.collaboration.circuits import garbling
from terrine.collaboration.circuits.circuit import AND, NOT, argmax_circuit
from terrine.collaboration.circuits.garbling import Engine, ciphers_of, fresh_offset, labels_from_seed, shifted
from tests.collaboration_circuits import random_circuit


def number(label):
    return int(label[0]) | int(label[1]) << 64


def plain_hash(master, label, half, query):
    """E(k, σ(x) ⊕ q) ⊕ σ(x) ⊕ q, one label at a time; k is E(master, number of the half gate)."""

    def encrypt(key, value):
        block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(value.to_bytes(16, "little"))
        return int.from_bytes(block, "little")

    key = encrypt(master, half).to_bytes(16, "little")
    low, high = label % 2**64, label >> 64
    mixed = (low ^ high | low << 64) ^ (query << 64)
    return encrypt(key, mixed) ^ mixed


def plain_garbling(circuit, key, delta, inputs, query, order, block):
    """The half gates of Zahur, Rosulek & Evans, gate by gate on whole numbers."""
    zero = [number(label) for label in inputs[:, query]]
    tables = {}
    for out, (kind, left, right) in enumerate(zip(circuit.kinds, circuit.left, circuit.right, strict=True)):
        a, b = zero[left], zero[right]
        if kind == AND:
            j = 2 * order[out]
            ha, hb = (
                [plain_hash(key, x ^ v * delta, j + side, block << 32 | query) for v in (0, 1)]
                for side, x in ((0, a), (1, b))
            )
            generator = ha[0] ^ ha[1] ^ (b & 1) * delta
            evaluator = hb[0] ^ hb[1] ^ a
            tables[order[out]] = (generator, evaluator)
            zero.append(ha[0] ^ (a & 1) * generator ^ hb[0] ^ (b & 1) * (evaluator ^ a))
        else:
            zero.append(a ^ delta if kind == NOT else a ^ b)
    return tables, [zero[out] for out in circuit.outputs]


def session(circuit, queries, seed=0, context=b"phase", block=0):
    """Labels, tables and outputs of a block with random input bits."""
    bits = np.random.default_rng(seed).integers(0, 2, (circuit.width, queries)).astype(np.uint8)
    engine, delta = Engine(circuit, queries, ciphers_of(circuit, context)), fresh_offset()
    active = labels_from_seed(seed.to_bytes(16, "little"), circuit.width, queries)
    tables, outputs = engine.garble(block, delta, shifted(active, bits, delta))
    return bits, engine, delta, active, tables, outputs


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("queries", [1, 3, 65])
def test_a_garbled_circuit_computes_what_the_circuit_computes(seed, queries):
    circuit = random_circuit(seed, gates=20 + 30 * seed)
    bits, engine, delta, active, tables, outputs = session(circuit, queries, seed)
    expected = circuit.evaluate(bits)
    labels = engine.evaluate(0, tables, active)
    assert np.array_equal(labels, shifted(outputs, expected, delta))
    values, genuine = engine.open(0, labels, *engine.seal(0, delta, outputs))
    assert genuine
    assert np.array_equal(values, expected)


def test_more_gates_than_are_hashed_at_a_time(monkeypatch):
    monkeypatch.setattr(garbling, "_CHUNK", 24)
    circuit = argmax_circuit(5, 4)
    bits, engine, delta, active, tables, outputs = session(circuit, 8)
    values, genuine = engine.open(0, engine.evaluate(0, tables, active), *engine.seal(0, delta, outputs))
    assert genuine
    assert np.array_equal(values, circuit.evaluate(bits))


def test_tables_are_those_of_half_gates_made_one_by_one():
    circuit = random_circuit(3, gates=60)
    _, _, delta, active, tables, outputs = session(circuit, 2, seed=5, context=b"here", block=3)
    zero = shifted(active, np.random.default_rng(5).integers(0, 2, active.shape[:2]).astype(np.uint8), delta)
    key = hashlib.sha256(b"terrine garbling 2\0here").digest()[:16]
    # AND gates are numbered by depth, and within a depth as they stand in the circuit.
    depth, ands = [0] * circuit.width, []
    for out, (kind, left, right) in enumerate(zip(circuit.kinds, circuit.left, circuit.right, strict=True)):
        depth.append(max(depth[left], depth[right]) + (kind == AND))
        if kind == AND:
            ands.append((depth[-1], out))
    order = {out: place for place, (_, out) in enumerate(sorted(ands))}
    for query in range(2):
        expected, zeros = plain_garbling(circuit, key, number(delta), zero, query, order, block=3)
        for place, pair in expected.items():
            assert tuple(number(half[query]) for half in tables[place]) == pair
        assert [number(label) for label in outputs[:, query]] == zeros


def test_labels_of_the_garblers_inputs_say_nothing_but_are_both_ways():
    delta = fresh_offset()
    active = labels_from_seed(b"s" * 16, 3, 50)
    bits = np.random.default_rng(0).integers(0, 2, (3, 50)).astype(np.uint8)
    zero = shifted(active, bits, delta)
    for wire in range(3):
        for query in range(50):
            assert number(active[wire, query]) == number(zero[wire, query]) ^ int(bits[wire, query]) * number(delta)
    assert np.array_equal(labels_from_seed(b"s" * 16, 3, 50), active)
    assert not np.array_equal(labels_from_seed(b"t" * 16, 3, 50), active)


def test_an_offset_is_fresh_and_flips_colours():
    offsets = {number(fresh_offset()) for _ in range(50)}
    assert len(offsets) == 50
    assert all(offset & 1 for offset in offsets)


def test_another_block_and_another_phase_have_other_tables():
    circuit = argmax_circuit(3, 4)
    engine, delta = Engine(circuit, 4, ciphers_of(circuit, b"phase 1")), fresh_offset()
    labels = labels_from_seed(bytes(16), circuit.width, 4)
    one = engine.garble(1, delta, labels)[0].copy()
    other, _ = engine.garble(2, delta, labels)
    another, _ = Engine(circuit, 4, ciphers_of(circuit, b"phase 2")).garble(1, delta, labels)
    assert not (one == other).any()
    assert not (one == another).any()


def test_equal_labels_in_two_queries_or_gates_are_hashed_differently():
    circuit = argmax_circuit(2, 2)
    labels = np.broadcast_to(labels_from_seed(bytes(16), 1, 1), (circuit.width, 3, 2)).copy()
    tables, _ = Engine(circuit, 3, ciphers_of(circuit, b"phase")).garble(0, fresh_offset(), labels)
    assert len(np.unique(tables.reshape(-1, 2), axis=0)) == tables.size // 2


def test_a_flipped_bit_in_a_table_is_found_or_changes_nothing():
    circuit = argmax_circuit(4, 5)
    queries = 64
    bits, engine, delta, active, tables, outputs = session(circuit, queries)
    sealed = engine.seal(0, delta, outputs)
    expected = circuit.evaluate(bits)
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(60):
        gate, half, word, place = (int(rng.integers(size)) for size in (*tables.shape[:2], 2, 64))
        altered = tables.copy()
        altered[gate, half, :, word] ^= np.uint64(1) << np.uint64(place)
        values, genuine = engine.open(0, engine.evaluate(0, altered, active), *sealed)
        found += not genuine
        assert not genuine or np.array_equal(values, expected)
    # A ciphertext is used for one of two colours, in 64 queries, so nearly every one is used somewhere.
    assert found >= 55


def test_a_wrong_label_is_found():
    circuit = argmax_circuit(4, 5)
    _, engine, delta, active, tables, outputs = session(circuit, 16)
    sealed = engine.seal(0, delta, outputs)
    for wire in range(circuit.width):
        wrong = active.copy()
        wrong[wire, 3] = np.random.default_rng(wire).integers(0, 2**63, 2)
        assert not engine.open(0, engine.evaluate(0, tables, wrong), *sealed)[1]


def test_sealed_outputs_hold_no_label_and_open_only_with_one():
    circuit = argmax_circuit(4, 5)
    _, engine, delta, _, _, outputs = session(circuit, 16)
    hashes, values = engine.seal(0, delta, outputs)
    labels = set(np.concatenate((outputs, outputs ^ delta)).ravel().tolist())
    assert not labels & set(hashes.ravel().tolist())
    for bit in (0, 1):
        opened, genuine = engine.open(0, outputs ^ (delta * np.uint64(bit)), hashes, values)
        assert genuine
        assert (opened == bit).all()
    assert not engine.open(1, outputs, hashes, values)[1]
