import numpy as np
import pytest

from terrine.collaboration.protocol import phase
from tests.collaboration_sessions import Noise, agreement, answered, confident, plaintext, random_votes, summing


def compare(agreed, votes, noise):
    guardian, student, loop = answered(agreed, votes, noise)
    answers, passed = plaintext(agreed, votes, noise.drawn)
    assert np.array_equal(student.result, answers)
    assert student.result.dtype == np.int64
    assert np.array_equal(student.passed, passed)
    if agreed.threshold is None:
        assert guardian.result is None
    else:
        assert np.array_equal(guardian.result, passed)
    return answers, passed, loop


@pytest.mark.parametrize("classes", [2, 8, 10, 150])
@pytest.mark.parametrize("reveal", ["argmax", "histogram"])
@pytest.mark.parametrize("threshold", [None, 3.0])
def test_answers_are_those_of_the_plaintext_mechanism(classes, reveal, threshold):
    test = {} if threshold is None else {"threshold": threshold, "sigma_threshold": 1.0}
    agreed = agreement(classes=classes, queries=8 if classes == 150 else 100, reveal=reveal, **test)
    answers, passed, _ = compare(agreed, random_votes(agreed, classes), Noise(agreed, classes))
    assert len(np.unique(answers[passed])) > 1
    assert threshold is None or 0 < passed.sum() < agreed.queries


def test_sums_are_those_of_whole_numbers_to_the_last():
    agreed = summing(queries=500)
    answers, _, _ = compare(agreed, random_votes(agreed), Noise(agreed))
    assert np.abs(answers).max() > 2**58
    assert (answers < 0).any()


def test_ties_go_to_the_lowest_class():
    agreed = agreement(queries=300, classes=3, sigma=0.1)
    votes = np.random.default_rng(0).integers(0, 3, (300, 5))
    noise = Noise(agreed)
    compare(agreed, votes, noise)
    assert not np.floor(noise.drawn["counts"] + 0.5).any()
    counts = np.sort(np.stack([(votes == label).sum(axis=1) for label in range(3)], axis=1), axis=1)
    assert (counts[:, -1] == counts[:, -2]).sum() > 30


def test_noise_larger_than_every_vote_is_carried_with_its_sign():
    agreed = agreement(sigma=40.0, queries=100)
    compare(agreed, random_votes(agreed), Noise(agreed))


@pytest.mark.parametrize("reveal", ["argmax", "histogram"])
@pytest.mark.parametrize("threshold", [-50.0, 50.0])
def test_all_queries_or_none_may_pass(reveal, threshold):
    agreed = confident(threshold=threshold, reveal=reveal)
    _, passed, _ = compare(agreed, random_votes(agreed), Noise(agreed))
    assert np.unique(passed).tolist() == [threshold < 0]


@pytest.mark.parametrize("agreed", [agreement(queries=61), confident(queries=61)], ids=["plain", "confident"])
def test_blocks_of_any_size_give_the_same(agreed, monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 8)
    _, _, loop = compare(agreed, random_votes(agreed), Noise(agreed))
    assert len(loop.record) > 3 * 8


def test_one_query_is_enough():
    agreed = confident(queries=1, threshold=-9.0)
    compare(agreed, random_votes(agreed), Noise(agreed))


def test_the_student_asks_only_a_few_blocks_ahead(monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 4)
    agreed = agreement(queries=80)
    _, _, loop = answered(agreed, random_votes(agreed), Noise(agreed))
    asked = evaluated = ahead = 0
    for sender, receiver, frame in loop.record:
        asked += (sender, receiver, frame[6]) == (agreed.student, agreed.guardian, 7)
        evaluated += (sender, receiver, frame[6]) == (agreed.guardian, agreed.student, 8)
        ahead = max(ahead, asked - evaluated)
    assert asked == evaluated == 20
    assert 1 < ahead <= phase.WINDOW + 1
