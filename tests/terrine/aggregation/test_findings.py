"""Several findings: the effect of one unit on all possible votes, and its charge."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine.aggregation.gnmax import ConfidentGNMax, GaussianHistogram, GNMax
from terrine.aggregation.lnmax import LNMax
from terrine.aggregation.votes import bounded, charged, count_finding_votes, movable
from terrine.errors import InputError
from terrine.privacy.accounting.events import compose, threshold_test, vote_answer
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.noise import ReplayNoise
from tests.spending import Spending

BOUNDS = [(findings, bound) for findings in (2, 3, 4, 5) for bound in (None, *range(1, findings + 1))]


def votes_within(findings: int, bound: int | None) -> list[np.ndarray]:
    votes = map(np.array, itertools.product((0, 1), repeat=findings))
    return [vote for vote in votes if bound is None or vote.sum() <= bound]


@pytest.mark.parametrize(("findings", "bound"), BOUNDS)
def test_a_query_is_charged_for_as_far_as_any_two_votes_of_a_teacher_lie_apart(
    findings: int, bound: int | None
) -> None:
    others = np.ones((findings, 3), dtype=np.int64)
    others[:, 0] = 0 if bound is not None else 1
    others[1:, 1:] = 0
    farthest, tests = 0.0, 0
    for one, other in itertools.product(votes_within(findings, bound), repeat=2):
        before, after = (count_finding_votes(np.column_stack([others, vote]), findings, bound) for vote in (one, other))
        farthest = max(farthest, float(np.square(before - after).sum()))
        tests = max(tests, int(np.square(before.max(axis=1) - after.max(axis=1)).sum()))
    mechanism = GaussianHistogram(sigma=10.0, findings=findings, findings_bound=bound)
    assert mu_squared(mechanism.cost(findings, findings)) == pytest.approx(farthest / 10.0**2)
    confident = ConfidentGNMax(threshold=2, sigma1=5.0, sigma2=10.0, findings=findings, findings_bound=bound)
    whole = mu_squared(confident.cost(findings, findings))
    assert whole >= tests / 5.0**2 + farthest / 10.0**2 - 1e-12
    assert whole == pytest.approx(movable(findings, bound) * (1 / 5.0**2 + 2 / 10.0**2))


@pytest.mark.parametrize(("findings", "bound"), BOUNDS)
def test_of_the_answers_that_are_given_as_many_are_charged_as_any_two_votes_differ_in(
    findings: int, bound: int | None
) -> None:
    votes = votes_within(findings, bound)
    for given_ in itertools.product((False, True), repeat=findings):
        answered = np.array(given_)
        most = max(int((one != other)[answered].sum()) for one, other in itertools.product(votes, repeat=2))
        assert int(charged(answered, findings, movable(findings, bound)).sum()) == most


def test_without_a_bound_answers_cost_what_as_many_single_questions_cost() -> None:
    single = GaussianHistogram(sigma=20.0)
    several = GaussianHistogram(sigma=20.0, findings=7)
    assert several.cost(7 * 30, 7 * 30) == single.cost(210, 210)
    assert several.certain(10**6, 3.0, 1e-5) == single.certain(10**6, 3.0, 1e-5)


@pytest.mark.parametrize("mechanism", [GaussianHistogram(sigma=20.0), GNMax(sigma=20.0)])
@pytest.mark.parametrize(("findings", "bound"), [(5, 1), (6, 2), (4, 3)])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_as_many_answers_are_given_as_a_loop_over_questions_can_pay(
    mechanism: GaussianHistogram, findings: int, bound: int, epsilon: float
) -> None:
    several = mechanism.model_copy(update={"findings": findings, "findings_bound": bound})
    event, budget, queried = vote_answer(20.0), Spending(epsilon, 1e-5), 0
    for number in range(40 * findings):
        free = number % findings >= min(findings, 2 * bound)
        if not free and not budget.affords(event):
            break
        if not free:
            budget.spend(event)
        queried += 1
    histograms = np.tile([60, 40], (40 * findings, 1))
    found = several.answer(histograms, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(0))
    assert found.queried == queried == several.certain(40 * findings, epsilon, 1e-5)
    assert found.event == several.worst_case(40 * findings, epsilon, 1e-5)
    assert mu_squared(found.event) == pytest.approx(budget.mu_squared_spent)


def test_laplace_noise_is_charged_for_the_answers_that_one_unit_moves() -> None:
    several = LNMax(scale=40.0, findings=5, findings_bound=1)
    assert several.cost(12, 12) == LNMax(scale=40.0).cost(6, 6)
    assert several.certain(10**4, 2.0, 1e-5) // 5 == LNMax(scale=40.0).certain(10**4, 2.0, 1e-5) // 2


@settings(deadline=None, max_examples=60)
@given(
    yes=st.lists(st.integers(0, 100), min_size=30, max_size=30),
    findings=st.sampled_from([2, 3, 5, 6]),
    bound=st.sampled_from([None, 1, 2]),
    epsilon=st.floats(0.05, 3),
)
def test_confident_answers_as_a_loop_over_questions_does_and_never_passes_its_reservation(
    yes: list[int], findings: int, bound: int | None, epsilon: float
) -> None:
    counts = np.column_stack([100 - np.array(yes), yes])
    mechanism = ConfidentGNMax(threshold=70, sigma1=30.0, sigma2=15.0, findings=findings, findings_bound=bound)
    moved = movable(findings, bound)
    budget, noise = Spending(epsilon, 1e-5), ReplayNoise(3)
    test, answer = threshold_test(30.0), vote_answer(15.0)
    outcomes = noise.gaussian(len(counts), 30.0)
    queried, answered, tests, answers = 0, 0, 0, 0
    for number, histogram in enumerate(counts):
        place = number % findings
        answered = 0 if place == 0 else answered
        if not budget.affords(compose(*[test] * (place < moved), answer)):
            break
        queried += 1
        if place < moved:
            budget.spend(test)
            tests += 1
        if histogram.max() + outcomes[number] >= 70:
            if answered < moved:
                budget.spend(answer)
                answers += 1
            answered += 1
    found = mechanism.answer(counts, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(3))
    assert found.queried == queried
    assert mu_squared(found.event) == pytest.approx(tests / 30.0**2 + answers * 2 / 15.0**2)
    assert mu_squared(found.event) <= mu_squared(mechanism.worst_case(len(counts), epsilon, 1e-5))


def test_a_bound_keeps_the_largest_scores_and_votes_over_it_are_refused() -> None:
    scores = np.array([[0.9, -0.2, 0.4, 0.6], [0.1, 0.1, 0.1, -1.0], [-1.0, -1.0, -1.0, 0.5]])
    assert bounded(scores, None).tolist() == [[1, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert bounded(scores, 2).tolist() == [[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 1]]
    votes = bounded(scores, None).reshape(-1, 1)
    with pytest.raises(InputError, match="Teacher 0 says yes to 3 findings of query 0"):
        count_finding_votes(votes, 4, 2)
    with pytest.raises(InputError, match="not a multiple of 5 findings"):
        count_finding_votes(votes, 5, None)
    assert count_finding_votes(votes, 4, 3)[:4].tolist() == [[0, 1], [1, 0], [0, 1], [0, 1]]


def test_a_mechanism_says_how_many_findings_there_are_and_nothing_where_there_are_none() -> None:
    assert GaussianHistogram(sigma=3.0).describe() == {"mechanism": "histogram", "sigma": 3.0}
    several = GaussianHistogram(sigma=3.0, findings=4, findings_bound=2).describe()
    assert several == {"mechanism": "histogram", "sigma": 3.0, "findings": 4, "findings_bound": 2}
