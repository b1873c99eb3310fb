import numpy as np
import pytest

from terrine.collaboration.protocol import phase
from terrine.collaboration.protocol.messages import LARGEST_FRAME, array_bytes
from terrine.collaboration.protocol.phase import argmax_phase, count_blocks, threshold_phase
from terrine.collaboration.protocol.shares import bits_of
from tests.collaboration_sessions import HEADER, agreement, confident


def phases(agreed):
    return [threshold_phase(agreed), argmax_phase(agreed, np.arange(agreed.queries))]


def test_every_phase_of_every_session_has_its_own_ciphers():
    block = bytes(16)
    seen = [
        cipher.update(block)
        for session in ("0" * 32, "1" * 32)
        for planned in phases(confident(session=session))
        for cipher in planned.ciphers
    ]
    gates = [2 * planned.circuit.and_gates + len(planned.circuit.outputs) for planned in phases(confident())]
    assert len(seen) == 2 * sum(gates)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(("classes", "sigma"), [(2, 1.0), (10, 40.0), (150, 40.0), (1_000, 40.0)])
def test_blocks_cover_the_queries_and_their_frames_are_small_enough(classes, sigma):
    for planned in phases(confident(queries=3_000, classes=classes, sigma=sigma)):
        covered = np.concatenate([planned.queries[block] for block in planned.blocks])
        assert np.array_equal(covered, np.arange(3_000))
        for block in (0, len(planned.blocks) - 1):
            for specs in (planned.bits_spec(block), planned.tables_spec(block), planned.opened_spec(block)):
                assert HEADER + sum(map(array_bytes, specs)) <= LARGEST_FRAME
    for block in count_blocks(agreement(classes=classes, queries=3_000), 3_000):
        assert HEADER + array_bytes(("<u4", (block.stop - block.start, classes))) <= LARGEST_FRAME


def test_inputs_are_the_shares_of_the_blocks_queries(monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 4)
    agreed = agreement()
    queries = np.arange(1, 40, 3)
    planned = argmax_phase(agreed, queries)
    shares = np.random.default_rng(0).integers(0, 2**planned.bits, (40, 4)).astype(np.uint32)
    for number, block in enumerate(planned.blocks):
        assert np.array_equal(planned.inputs(shares, number), bits_of(shares[queries[block]], planned.bits))
    # The argmax needs fewer bits than the test, and takes the lowest ones.
    test = threshold_phase(confident())
    wide = np.random.default_rng(1).integers(0, 2**test.bits, (40, 4)).astype(np.uint64)
    assert test.bits > 32 > planned.bits
    assert np.array_equal(test.inputs(wide, 2), bits_of(wide[test.queries[8:12]], test.bits))
    assert np.array_equal(planned.inputs(wide, 0), bits_of(wide[queries[:4]] % 2**planned.bits, planned.bits))
