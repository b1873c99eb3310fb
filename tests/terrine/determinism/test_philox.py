"""Counter-based random numbers against published vectors and a plain integer implementation."""

import numpy as np
import pytest
import torch
from scipy import stats

from terrine.determinism import philox
from terrine.determinism.randomness import derive_seed

MASK = 0xFFFFFFFF

# Random123's known answers for philox4x32-10 (kat_vectors): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def plain_philox(words: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 with Python's integers, as the paper's figure draws it."""
    c0, c1, c2, c3 = words
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


@pytest.mark.parametrize(("words", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(words, key, expected):
    lanes = philox.philox(tuple(torch.tensor([word]) for word in words), key)
    assert tuple(int(lane) for lane in lanes) == expected
    assert plain_philox(words, key) == expected


def test_blocks_are_philox_of_the_draw_and_the_image():
    index = torch.tensor([0, 5, 2**40 + 3])
    lanes = philox.blocks(7, "some name", index, 3, first=2)
    key = derive_seed(7, "some name")
    for i, image in enumerate(index.tolist()):
        for j in range(3):
            expected = plain_philox((2 + j, 0, image & MASK, image >> 32), (key & MASK, key >> 32))
            assert tuple(int(lane[i, j]) for lane in lanes) == expected


def test_blocks_may_start_at_a_place_of_each_image_s_own():
    index = torch.tensor([4, 9])
    together = philox.blocks(0, "a", index, 2, torch.tensor([6, 1]))
    for row, (image, first) in enumerate([(4, 6), (9, 1)]):
        alone = philox.blocks(0, "a", torch.tensor([image]), 2, first)
        assert all(torch.equal(lane[row], one[0]) for lane, one in zip(together, alone, strict=True))
    single = philox.block_at(0, "a", index, torch.tensor([7, 1]))
    assert [int(lane[0]) for lane in single] == [int(lane[0, 1]) for lane in together]


def test_a_word_depends_neither_on_the_batch_nor_on_how_many_are_drawn():
    all_words = philox.words(1, "n", torch.arange(50), 37)
    assert torch.equal(philox.words(1, "n", torch.arange(20, 22), 37), all_words[20:22])
    assert torch.equal(philox.words(1, "n", torch.arange(50), 9), all_words[:, :9])
    assert not torch.equal(philox.words(1, "m", torch.arange(50), 37), all_words)
    assert not torch.equal(philox.words(2, "n", torch.arange(50), 37), all_words)


def test_uniforms_are_uniform_and_normals_are_normal():
    uniform = philox.uniforms(3, "u", torch.arange(100), 1001)
    assert uniform.dtype == torch.float32
    assert uniform.shape == (100, 1001)
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    normal = philox.normals(3, "n", torch.arange(100), 1002)
    assert normal.dtype == torch.float32
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    correlations = np.corrcoef(normal[:, :8].T.numpy())
    assert np.abs(correlations - np.eye(8)).max() < 0.45


def test_below_splits_a_word_into_a_fair_integer_and_a_fresh_word():
    word = philox.words(0, "b", torch.arange(200), 300).flatten()
    value, rest = philox.below(word, 6)
    assert all(divmod(int(w) * 6, 1 << 32) == (int(v), int(r)) for w, v, r in zip(word[:99], value, rest, strict=False))
    assert stats.chisquare(torch.bincount(value, minlength=6).numpy()).pvalue > 1e-3
    assert stats.kstest(rest[value == 2].numpy() / 2**32, "uniform").pvalue > 1e-3
