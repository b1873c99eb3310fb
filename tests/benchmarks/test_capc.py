"""CaPC's greedy teacher and fair teachers."""

import math

import numpy as np
import pytest

from benchmarks.capc import epsilon_together, fair_share, fair_teachers, greedy_teacher
from terrine.aggregation.gnmax import ConfidentGNMax, GNMax
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.noise import ReplayNoise
from tests.noises import Silence


def some_votes(queries=300, teachers=20, classes=5, seed=3):
    generator = np.random.default_rng(seed)
    truth = generator.integers(classes, size=queries)
    votes = np.where(
        generator.random((queries, teachers)) < 0.7,
        truth[:, None],
        generator.integers(classes, size=(queries, teachers)),
    )
    return votes.astype(np.uint8), truth


def test_a_party_does_not_vote_on_its_own_images():
    votes, _ = some_votes(teachers=3)
    votes[:, 0], votes[:, 1:] = 4, np.array([1, 1])
    labelled = greedy_teacher(votes, 5, 0, np.arange(9), GNMax(sigma=1.0), epsilon=50, delta=1e-5, noise=Silence())
    assert labelled.labels.tolist() == [1] * 9
    votes[:, 1] = 4
    labelled = greedy_teacher(votes, 5, 1, np.arange(9), GNMax(sigma=1.0), epsilon=50, delta=1e-5, noise=Silence())
    assert set(labelled.labels.tolist()) == {1}  # 1 and 4 have one vote each, and the lower class wins


def test_the_greedy_teacher_is_the_mechanism_on_the_others_votes_in_its_own_order():
    votes, _ = some_votes()
    order = np.random.default_rng(0).permutation(300)[:250]
    mechanism = ConfidentGNMax(threshold=10, sigma1=8, sigma2=5)
    labelled = greedy_teacher(votes, 5, 7, order, mechanism, epsilon=6, delta=1e-5, noise=ReplayNoise(5))

    histograms = np.zeros((250, 5), np.int64)
    for row, query in enumerate(order):
        for teacher in range(20):
            if teacher != 7:
                histograms[row, votes[query, teacher]] += 1
    plain = mechanism.answer(histograms, epsilon=6, delta=1e-5, noise=ReplayNoise(5))
    rows = [row for row in range(250) if plain.answered[row]]
    assert labelled.queries.tolist() == [order[row] for row in rows]
    assert labelled.labels.tolist() == [plain.labels[row] for row in rows]
    assert (labelled.queried, labelled.event) == (plain.queried, plain.event)
    assert 0 < len(rows) < plain.queried < 250


@pytest.mark.parametrize(("epsilon", "teachers"), [(10.0, 200), (2.0, 50), (0.5, 7)])
def test_equal_shares_compose_to_the_whole_budget(epsilon, teachers):
    share = fair_share(epsilon, 1e-5, teachers)
    together = epsilon_of(math.sqrt(teachers) * mu_of(share, 1e-5), 1e-5)
    assert together == pytest.approx(epsilon, rel=1e-6)
    assert share > epsilon / teachers  # dividing ε itself would give away most of the budget


def test_fair_teachers_stay_within_their_shares_and_together_within_the_budget():
    votes, truth = some_votes(queries=600)
    parts = np.array_split(np.random.default_rng(1).permutation(600), 20)
    mechanism = GNMax(sigma=6.0)
    labelled = fair_teachers(votes, 5, parts, mechanism, epsilon=8, delta=1e-5, noise=ReplayNoise(2))
    share = fair_share(8, 1e-5, 20)
    for teacher, (part, own) in enumerate(zip(parts, labelled, strict=True)):
        assert own.teacher == teacher
        assert set(own.queries) <= set(part)
        assert epsilon_of(math.sqrt(mu_squared(own.event)), 1e-5) <= share
        # One more question would not have fitted.
        assert own.queried == len(part) or mu_squared(own.event) + 2 / 36 > mu_of(share, 1e-5) ** 2 * (1 - 1e-9)
    assert 0 < epsilon_together(labelled, 1e-5) <= 8
    greedy = greedy_teacher(votes, 5, 0, np.arange(600), mechanism, epsilon=8, delta=1e-5, noise=ReplayNoise(2))
    assert sum(own.queried for own in labelled) <= greedy.queried
    agree = np.mean([truth[q] == label for own in labelled for q, label in zip(own.queries, own.labels, strict=True)])
    assert agree > 0.4


def test_a_share_too_small_for_one_question_asks_none():
    votes, _ = some_votes()
    parts = np.array_split(np.arange(300), 20)
    labelled = fair_teachers(votes, 5, parts, GNMax(sigma=1.0), epsilon=1, delta=1e-5, noise=ReplayNoise(2))
    assert [own.queried for own in labelled] == [0] * 20
    assert epsilon_together(labelled, 1e-5) == 0


def test_queries_are_asked_about_once():
    votes, _ = some_votes()
    arguments = {"epsilon": 1, "delta": 1e-5, "noise": Silence()}
    with pytest.raises(InputError, match="twice"):
        greedy_teacher(votes, 5, 0, np.array([3, 3]), GNMax(sigma=5.0), **arguments)
    with pytest.raises(InputError, match="does not exist"):
        greedy_teacher(votes, 5, 0, np.array([300]), GNMax(sigma=5.0), **arguments)
    with pytest.raises(InputError, match="give each its own"):
        fair_teachers(votes, 5, [np.arange(3)], GNMax(sigma=5.0), **arguments)
    with pytest.raises(InputError, match="twice"):
        fair_teachers(votes, 5, [np.arange(3)] * 20, GNMax(sigma=5.0), **arguments)
    with pytest.raises(SettingError):
        fair_share(1.0, 1e-5, 0)
