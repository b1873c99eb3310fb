"""Linear teachers of several findings: a score for each, votes within a bound, the same in any group."""

import numpy as np
import pytest

from terrine.aggregation.votes import Findings, bounded
from terrine.queries import Queries
from terrine.teachers.ensemble import votes_without_records
from terrine.teachers.linear import LinearKind, LinearTeachers, train_heads
from terrine.teachers.records import Records

KINDS = {
    "ridge": LinearTeachers(ridge=0.2),
    "adam": LinearTeachers(optimiser="adam", epochs=30, batch=16, learning_rate=0.05),
}
FEATURES, FINDINGS, TEACHERS = 12, 3, 9


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels of which the last finding is rare, and parts of two sizes."""
    generator = np.random.default_rng(0)
    labels = (generator.random((400, FINDINGS)) < (0.5, 0.3, 0.1)).astype(np.int64)
    features = generator.normal(size=(400, FEATURES)).astype(np.float32) + 5
    features[:, :FINDINGS] += 2 * labels
    return features, labels, np.minimum(np.arange(400) % 10, TEACHERS - 1)


@pytest.mark.parametrize("name", KINDS)
def test_a_score_above_0_says_likelier_than_among_the_teachers_own_records(name: str, records) -> None:
    features, labels, assignment = records
    heads = train_heads(features, labels, assignment, range(TEACHERS), FINDINGS, KINDS[name], seed=0)
    for teacher in range(TEACHERS):
        own = assignment == teacher
        scores = features[own] @ heads.weight[teacher].T + heads.bias[teacher]
        if name == "ridge":
            np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-3)
            centred, wanted = features[own] - features[own].mean(0), labels[own] - labels[own].mean(0)
            penalty = 0.2 * np.square(centred).sum() / own.sum()
            plain = np.linalg.solve(centred.T @ centred + penalty * np.eye(FEATURES), centred.T @ wanted)
            np.testing.assert_allclose(heads.weight[teacher].T, plain, atol=1e-4)
    kind = LinearKind(KINDS[name], findings=Findings(FINDINGS))
    states = [{"weight": weight, "bias": bias} for weight, bias in zip(heads.weight, heads.bias, strict=True)]
    votes = kind.vote(states, Queries(features, [np.arange(400)])).reshape(400, FINDINGS, TEACHERS)
    there = labels == 1
    assert votes[there].mean() > votes[~there].mean() + 0.3
    assert votes[there[:, 2], 2].mean() > 0.4  # the rare one is named, too


@pytest.mark.parametrize("name", KINDS)
def test_a_head_is_the_same_to_the_bit_whoever_shares_its_stack(name: str, records) -> None:
    features, labels, assignment = records
    together = train_heads(features, labels, assignment, range(TEACHERS), FINDINGS, KINDS[name], seed=0)
    for teacher in range(TEACHERS):
        alone = train_heads(features, labels, assignment, [teacher], FINDINGS, KINDS[name], seed=0)
        np.testing.assert_array_equal(alone.weight[0], together.weight[teacher])
        np.testing.assert_array_equal(alone.bias[0], together.bias[teacher])


@pytest.mark.parametrize("bound", [None, 1, 2])
def test_votes_are_those_of_the_scores_query_by_query(bound: int | None, records) -> None:
    features, labels, assignment = records
    kind = LinearKind(KINDS["ridge"], findings=Findings(FINDINGS, bound))
    trained = dict(kind.train(Records(features, labels, assignment, FINDINGS), range(TEACHERS), seed=0))
    votes = kind.vote(trained.values(), Queries(features, [np.arange(400)]))
    assert votes.shape == (400 * FINDINGS, TEACHERS)
    for teacher, state in trained.items():
        scores = features @ state["weight"].T + state["bias"]
        near = np.abs(np.diff(np.sort(np.column_stack([scores, np.zeros(400)]), axis=1), axis=1)).min(axis=1) < 1e-5
        own = votes[:, teacher].reshape(400, FINDINGS)
        np.testing.assert_array_equal(own[~near], bounded(scores, bound)[~near])
        assert bound is None or own.sum(axis=1).max() <= bound


@pytest.mark.parametrize("bound", [None, 1])
def test_a_teacher_without_records_votes_within_the_bound_and_the_same_whenever_it_is_asked(bound: int | None) -> None:
    findings = Findings(4, bound)
    votes = votes_without_records([3, 8], 200, 4, seed=1, findings=findings).reshape(200, 4, 2)
    assert votes.sum(axis=1).max() <= (bound or 4)
    assert 0.1 < votes.mean() < 0.6
    fewer = votes_without_records([8], 150, 4, seed=1, findings=findings).reshape(150, 4)
    np.testing.assert_array_equal(fewer, votes[:150, :, 1])
