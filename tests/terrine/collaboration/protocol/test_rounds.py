"""The joint computation gives the answers of the plaintext mechanism, and the same ones after any interruption."""

from dataclasses import replace

import numpy as np
import pytest

from terrine.aggregation.gnmax import ConfidentGNMax
from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol import phase
from terrine.collaboration.protocol.agreement import ProtocolError
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.errors import SettingError
from terrine.privacy.noise import ReplayNoise
from tests.collaboration_sessions import (
    Loop,
    Noise,
    agreement,
    answered,
    answered_by,
    confident,
    plaintext,
    random_votes,
    reports_of,
    summing,
)

CASES = {
    "argmax": agreement(),
    "histogram": agreement(reveal="histogram"),
    "confident argmax": confident(),
    "confident histogram": confident(reveal="histogram"),
    "sums": summing(),
    "a later round": summing(round=2, weights=7),
}


def compare(agreed, votes, noise):
    passed, result, loop = answered(agreed, votes, noise)
    answers, expected = plaintext(agreed, votes, noise.drawn)
    np.testing.assert_array_equal(result, answers)
    np.testing.assert_array_equal(passed, expected)
    assert result.dtype == np.int64
    seen = GuardianRound(agreed, loop.facts[0]).passed
    assert seen is None if agreed.threshold is None else np.array_equal(seen, expected)
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
    assert len(loop.record) > 8


def test_one_query_is_enough():
    compare(agreed := confident(queries=1, threshold=-9.0), random_votes(agreed), Noise(agreed))


def test_noise_is_drawn_once_for_each_kind_with_its_shape():
    agreed = confident()
    noise = Noise(agreed)
    loop = answered(agreed, random_votes(agreed), noise)[2]
    loop.close()
    assert noise.calls == ["threshold", "counts"]
    assert noise.drawn["threshold"].shape == (40,)
    assert noise.drawn["counts"].shape == (40, 4)


@pytest.mark.parametrize(
    "draw", [lambda *_: np.zeros(3), lambda _, shape: np.full(shape, np.nan), lambda _, shape: np.zeros(shape, "c8")]
)
def test_a_source_of_noise_that_is_none_settles_nothing(draw):
    loop = Loop(agreement(), reports_of(agreement(), random_votes(agreement())), draw)
    with pytest.raises(SettingError, match="Noise for counts"):
        loop.close()
    assert not loop.facts[0]


def test_the_test_is_that_of_confident_gnmax_with_the_same_secure_lattice():
    agreed = confident(queries=400)
    votes = random_votes(agreed)
    counts = count_votes(votes, agreed.classes)
    tests = ReplayNoise(3).gaussian(agreed.queries, agreed.sigma_threshold)
    numbers = np.rint(ReplayNoise(4).gaussian(counts.shape, agreed.sigma))
    passed, result, _ = answered(agreed, votes, lambda kind, shape: tests if kind == "threshold" else numbers)

    class Same:
        """The noise that the guardian had, in the order in which the mechanism asks for it."""

        kind = "replay"

        def gaussian(self, shape, sigma):
            return tests if np.ndim(shape) == 0 else numbers[passed]

    local = ConfidentGNMax(threshold=agreed.threshold, sigma1=agreed.sigma_threshold, sigma2=agreed.sigma)
    answers = local.answer(counts, epsilon=1e6, delta=1e-5, noise=Same())
    np.testing.assert_array_equal(passed, answers.answered)
    np.testing.assert_array_equal(result, answers.labels)


class Killed(Exception):
    """The process ends here."""


class Mortal(dict):
    """Facts of a process that ends before or after a write."""

    def __init__(self, facts, moment):
        super().__init__(facts)
        self.moment, self.writes = moment, 0

    def setdefault(self, name, value):
        self.writes += 1
        if self.writes == self.moment[0] and self.moment[1] == "before":
            raise Killed
        found = super().setdefault(name, value)
        if self.writes == self.moment[0]:
            raise Killed
        return found


@pytest.mark.parametrize("agreed", CASES.values(), ids=CASES)
def test_a_round_cut_off_at_any_write_of_either_goes_on_with_the_same_bytes(agreed, monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 4)
    agreed = replace(agreed, queries=10)
    votes, noise = random_votes(agreed), Noise(agreed)
    loop = Loop(agreed, reports := reports_of(agreed, votes), noise)
    passed, result = loop.run()
    said = {path: (request, answer) for path, request, answer in loop.record}
    start = {"settled": loop.facts[0]["settled"]}, {"secret": loop.facts[1]["secret"]}
    for victim in (0, 1):
        writes = 0
        for writes in range(1, 200):
            # The guardian's answer to a request that it has stored is lost; the student's is not stored yet.
            for when in (("after",), ("before",))[victim]:
                facts = [dict(one) for one in start]
                facts[victim] = Mortal(facts[victim], (writes, when))
                broken = Loop(agreed, reports, noise, tuple(facts))
                broken.names = loop.names
                try:
                    broken.student().run()
                    over = True
                except Killed:
                    over = False
                again = Loop(agreed, reports, noise, tuple(dict(one) for one in facts))
                again.names = loop.names
                found = again.student().run()
                np.testing.assert_array_equal(found[0], passed)
                np.testing.assert_array_equal(found[1], result)
                for path, request, answer in broken.record + again.record:
                    assert said[path] == (request, answer)
            if over:
                break
        assert agreed.reveal != "argmax" or writes > 3
    assert noise.calls == noise.calls[: len(set(noise.calls))]


def test_labels_and_keys_of_another_round_on_the_same_votes_are_fresh():
    agreed = agreement()
    loops = [answered(agreed, random_votes(agreed), Noise(agreed))[2] for _ in range(2)]

    def words(loop):
        data = b"".join(part for path, request, answer in loop.record for part in (request, answer))
        return {data[place : place + 16] for place in range(0, len(data) - 15, 8)}

    shared = words(loops[0]) & words(loops[1])
    assert all(len(set(word)) < 14 for word in shared)  # padding, no label


def test_a_label_that_was_never_made_is_not_opened():
    agreed = confident(queries=20)
    loop = Loop(agreed, reports_of(agreed, random_votes(agreed)), Noise(agreed))

    def spoil(path, request):
        if path == "opened/0":
            wrong = bytearray(request)
            wrong[16 * 7] ^= 4
            with pytest.raises(ProtocolError, match="does not exist"):
                GuardianRound(agreed, loop.facts[0]).opened(0, bytes(wrong))

    loop.before = spoil
    loop.run()


@pytest.mark.parametrize(("place", "queries"), [(3, 1), (16 + 6_400, 20)])
def test_altered_tables_are_found_by_the_student(place, queries):
    agreed = agreement(queries=200)
    loop = Loop(agreed, reports_of(agreed, random_votes(agreed)), Noise(agreed))
    loop.close()

    def post(path, request):
        answer = bytearray(answered_by(GuardianRound(agreed, loop.facts[0]), path, request))
        for query in range(queries * path.startswith("blocks")):  # a ciphertext is used for one of two colours
            answer[place + 16 * query] ^= 1
        return bytes(answer)

    loop.post = post
    with pytest.raises(ProtocolError, match="altered"):
        loop.student().run()


def test_points_outside_the_group_are_refused():
    agreed = agreement()
    loop = Loop(agreed, reports_of(agreed, random_votes(agreed)), Noise(agreed))
    with pytest.raises(ProtocolError, match="group"):
        loop.close().base(b"\1" + bytes(31))
    loop.post = lambda path, request: (b"\1" + bytes(31)) * 128
    with pytest.raises(ProtocolError, match="group"):
        loop.student().run()


def test_questions_out_of_turn_and_malformed_ones_are_refused(monkeypatch):
    monkeypatch.setattr(phase, "_BLOCK", 8)
    agreed = confident()
    loop = Loop(agreed, reports_of(agreed, random_votes(agreed)), Noise(agreed))
    with pytest.raises(ProtocolError, match="not closed"):
        GuardianRound(agreed, {}).base(bytes(32))
    guardian = loop.close()
    requests = {}
    loop.before = lambda path, request: requests.setdefault(path, request)
    with pytest.raises(ProtocolError, match="base transfers come first"):
        guardian.block(0, bytes(len(phase_request(guardian))))
    loop.run()
    fresh = Loop(agreed, loop.reports, loop.noise, ({"settled": loop.facts[0]["settled"]}, dict(loop.facts[1])))
    guardian = GuardianRound(agreed, fresh.facts[0])
    guardian.base(requests["base"])
    for path, request, fault in (
        ("blocks/1", requests["blocks/1"], "comes too early"),
        ("blocks/7", requests["blocks/1"], "does not exist"),
        ("opened/0", requests["opened/0"], "no outputs to open"),
        ("counts/0", b"", "No counts are revealed"),
        ("blocks/0", b"", "are expected here"),
        ("base", bytes(31), "are expected here"),
    ):
        with pytest.raises(ProtocolError, match=fault):
            answered_by(guardian, path, request)
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        path = f"{rng.choice(['base', 'blocks', 'opened', 'counts'])}/{rng.integers(0, 12)}"
        with pytest.raises(ProtocolError):
            answered_by(guardian, path, rng.bytes(rng.integers(0, 64)) + b"x")


def phase_request(guardian):
    plan = guardian._tests
    return bytes(sum(np.prod(shape) for _, shape in plan.phases[0].request_specs(0)))
