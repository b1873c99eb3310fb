"""Query selection against the rules written as loops."""

import numpy as np
import pytest

from terrine.students.selection import RULES, Pool, select

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(60, 5)).astype(np.float32)
PROBABILITIES = GENERATOR.dirichlet([0.5] * 3, size=60)
CANDIDATES = np.flatnonzero(GENERATOR.random(60) < 0.7)


def test_the_most_uncertain_queries_have_the_largest_entropy() -> None:
    entropies = {}
    for query in CANDIDATES:
        entropies[query] = -sum(p * np.log(p) for p in PROBABILITIES[query] if p > 0)
    expected = sorted(CANDIDATES, key=lambda query: -entropies[query])
    assert select("uncertain", Pool(CANDIDATES, FEATURES, PROBABILITIES), 5).tolist() == expected


def test_balanced_classes_are_dealt_one_query_at_a_time_to_the_class_that_has_fewest() -> None:
    guesses = PROBABILITIES.argmax(axis=1)
    have = [0, 0, 0]
    for query in range(60):
        if query not in CANDIDATES:
            have[guesses[query]] += 1
    waiting = {number: [query for query in CANDIDATES if guesses[query] == number] for number in range(3)}
    expected = []
    while any(waiting.values()):
        number = min((n for n in waiting if waiting[n]), key=lambda n: (have[n], n))
        expected.append(waiting[number].pop(0))
        have[number] += 1
    assert select("balanced", Pool(CANDIDATES, FEATURES, PROBABILITIES), 5).tolist() == expected


@pytest.mark.parametrize("all_may_be_asked", [True, False])
def test_diverse_queries_are_each_the_farthest_from_all_before(all_may_be_asked: bool) -> None:
    candidates = np.arange(60) if all_may_be_asked else CANDIDATES
    taken = [query for query in range(60) if query not in candidates]
    expected = []
    for _ in range(12):
        left = [query for query in candidates if query not in taken]
        if taken:
            nearest = [min(np.sum((FEATURES[query] - FEATURES[other]) ** 2) for other in taken) for query in left]
            best = left[int(np.argmax(nearest))]
        else:
            mean = FEATURES.mean(axis=0)
            best = min(left, key=lambda query: np.sum((FEATURES[query] - mean) ** 2))
        taken.append(best)
        expected.append(best)
    assert select("diverse", Pool(candidates, FEATURES), 12).tolist() == expected


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("probabilities", [None, PROBABILITIES])
def test_every_rule_names_candidates_alone_and_each_once(rule: str, probabilities: np.ndarray | None) -> None:
    found = select(rule, Pool(CANDIDATES, FEATURES, probabilities), 8)
    assert len(found) >= 8
    assert len(set(found)) == len(found)
    assert set(found) <= set(CANDIDATES)


def test_more_than_there_are_gives_all_there_are() -> None:
    assert sorted(select("diverse", Pool(CANDIDATES, FEATURES), 1000)) == CANDIDATES.tolist()
