"""A circuit of a known function, by way of labels: AES-128 as the standard has it."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from terrine.collaboration.circuits.garbling import Engine, ciphers_of, fresh_offset, labels_from_seed, shifted
from tests.collaboration_circuits import aes128, bits_of_bytes, bytes_of_bits


def garbled(circuit, bits):
    """The circuit's outputs by way of labels."""
    queries = bits.shape[1]
    engine, delta = Engine(circuit, queries, ciphers_of(circuit, b"test")), fresh_offset()
    active = labels_from_seed(bytes(range(16)), circuit.width, queries)
    tables, outputs = engine.garble(0, delta, shifted(active, bits, delta))
    values, genuine = engine.open(0, engine.evaluate(0, tables, active), *engine.seal(0, delta, outputs))
    assert genuine
    return values


def test_aes_128_encrypts_as_the_standard_does_in_the_open_and_garbled():
    circuit = aes128()
    standard = ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff")
    pairs = [tuple(map(bytes.fromhex, standard))]
    rng = np.random.default_rng(0)
    pairs += [(rng.bytes(16), rng.bytes(16)) for _ in range(3)]
    bits = np.stack([bits_of_bytes(key + block) for key, block in pairs], axis=1)
    expected = [Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block) for key, block in pairs]
    assert expected[0].hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    for values in (circuit.evaluate(bits), garbled(circuit, bits)):
        assert [bytes_of_bits(column) for column in values.T] == expected
