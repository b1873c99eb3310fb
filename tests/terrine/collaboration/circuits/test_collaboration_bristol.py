import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from terrine.collaboration.circuits.garbling import Engine, ciphers_of, fresh_offset, labels_from_seed, shifted
from terrine.errors import InputError
from tests.collaboration_bristol import read, write
from tests.collaboration_circuits import aes128, bits_of_bytes, bytes_of_bits, padded, random_circuit, sha256_block

OLD = """3 5
1 1   1

2 1 0 1 2 XOR
2 1 0 1 3 AND
2 1 2 3 4 XOR
"""
FASHION = """3 5
2 1 1
1 1

2 1 0 1 2 AND
1 1 2 3 INV
1 1 3 4 EQW
"""


def garbled(circuit, bits):
    """The circuit's outputs by way of labels."""
    queries = bits.shape[1]
    engine, delta = Engine(circuit, queries, ciphers_of(circuit, b"test")), fresh_offset()
    active = labels_from_seed(bytes(range(16)), circuit.width, queries)
    tables, outputs = engine.garble(0, delta, shifted(active, bits, delta))
    values, genuine = engine.open(0, engine.evaluate(0, tables, active), *engine.seal(0, delta, outputs))
    assert genuine
    return values


@pytest.mark.parametrize(("text", "outputs"), [(OLD, [0, 1, 1, 1]), (FASHION, [1, 1, 1, 0])])
def test_both_formats_are_read(text, outputs):
    circuit = read(text)
    assert circuit.inputs == (1, 1)
    assert circuit.evaluate(np.array([[0, 0, 1, 1], [0, 1, 0, 1]])).tolist() == [[bool(bit) for bit in outputs]]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_as_the_same_circuit(seed):
    circuit = random_circuit(seed, 150)
    again = read(write(circuit))
    bits = np.random.default_rng(seed).integers(0, 2, (circuit.width, 64))
    assert (again.inputs, again.widths) == (circuit.inputs, circuit.widths)
    assert np.array_equal(again.evaluate(bits), circuit.evaluate(bits))


def test_aes_128_encrypts_as_the_standard_does_in_the_open_and_garbled():
    circuit = read(write(aes128()))
    standard = ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff")
    pairs = [tuple(map(bytes.fromhex, standard))]
    rng = np.random.default_rng(0)
    pairs += [(rng.bytes(16), rng.bytes(16)) for _ in range(3)]
    bits = np.stack([bits_of_bytes(key + block) for key, block in pairs], axis=1)
    expected = [Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block) for key, block in pairs]
    assert expected[0].hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    for values in (circuit.evaluate(bits), garbled(circuit, bits)):
        assert [bytes_of_bits(column) for column in values.T] == expected


def test_sha_256_hashes_as_the_standard_does_in_the_open_and_garbled():
    circuit = read(write(sha256_block()))
    messages = [b"abc", b"", b"a" * 55, np.random.default_rng(0).bytes(40)]
    bits = np.stack([bits_of_bytes(padded(message)) for message in messages], axis=1)
    expected = [hashlib.sha256(message).digest() for message in messages]
    assert expected[0].hex().startswith("ba7816bf")
    for values in (circuit.evaluate(bits), garbled(circuit, bits)):
        assert [bytes_of_bits(column) for column in values.T] == expected


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("3 5\n", "3 x\n", "Line 1"),
        ("3 5\n", "3 9\n", "Line 3"),
        ("3 5\n", "99999999999 5\n", "Line 1"),
        ("2 1 1\n", "3 1 1\n", "Line 2"),
        ("2 1 0 1 2 AND", "2 1 0 1 2 NAND", "Line 5"),
        ("2 1 0 1 2 AND", "2 1 0 4 2 AND", "Line 5"),
        ("2 1 0 1 2 AND", "2 1 0 1 -1 AND", "Line 5"),
        ("2 1 0 1 2 AND", "2 1 0 1 0 AND", "Line 5"),
        ("2 1 0 1 2 AND", "2 1 0 z 2 AND", "Line 5"),
        ("1 1 3 4 EQW\n", "", "2 of 3 gates"),
    ],
)
def test_a_file_that_is_no_circuit_is_refused_by_its_line(old, new, line):
    with pytest.raises(InputError, match=line):
        read(FASHION.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "\n", "3\n", "3 5\n"])
def test_a_file_that_ends_early_is_refused(text):
    with pytest.raises(InputError):
        read(text)
