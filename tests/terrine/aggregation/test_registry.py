"""Mechanisms by name, and what holds for all of them."""

import math
import pickle
from typing import Any

import numpy as np
import pytest

from terrine.aggregation.mechanism import MECHANISMS, Mechanism, parse_mechanism
from terrine.errors import SettingError
from terrine.privacy.accounting.events import RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.pricing import claimed_by_moments, price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.statement import MECHANISM_FIELDS, OUTCOME_DEPENDENT

QUERIES = 40
PARAMETERS: dict[str, dict[str, Any]] = {
    "lnmax": {"scale": 20},
    "gnmax": {"sigma": 20},
    "histogram": {"sigma": 20},
    "confident": {"threshold": 40, "sigma1": 30, "sigma2": 20},
    "interactive": {"threshold": 60, "surprise": 10, "sigma1": 30, "sigma2": 20, "confidence": 0.5},
}


def built(name: str) -> Mechanism:
    """A mechanism in a round with an untrained student."""
    mechanism = parse_mechanism({"mechanism": name, **PARAMETERS[name], "teachers": 5})
    assert isinstance(mechanism, Mechanism)
    return mechanism.informed_by(np.full((QUERIES, 3), 1 / 3))


def test_every_mechanism_that_counts_votes_is_tested_here() -> None:
    assert set(PARAMETERS) == {name for name in MECHANISMS.names() if issubclass(MECHANISMS.of(name), Mechanism)}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_mechanism_is_built_by_name_and_describes_itself_with_a_budget_and_without(name: str) -> None:
    mechanism = built(name)
    assert type(mechanism) is MECHANISMS.of(name)
    assert mechanism.describe() == {"mechanism": name, **PARAMETERS[name]}
    assert parse_mechanism(mechanism.describe()) == parse_mechanism({"mechanism": name, **PARAMETERS[name]})
    section = type(mechanism)(epsilon=3, **PARAMETERS[name])
    assert (section.epsilon, section.delta) == (3, 1e-5)
    assert section.describe() == mechanism.describe()
    assert pickle.loads(pickle.dumps(section)) == section


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_statement_knows_the_words_the_fields_and_the_guarantee_of_a_mechanism(name: str) -> None:
    mechanism = built(name)
    assert mechanism.text.endswith(".")
    assert set(mechanism.describe()) <= MECHANISM_FIELDS
    assert mechanism.outcome_dependent == (name in OUTCOME_DEPENDENT)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 30.0])
def test_no_mechanism_spends_more_than_it_reserves_or_reserves_more_than_its_budget(name: str, epsilon: float) -> None:
    histograms = np.random.default_rng(0).multinomial(100, [0.6, 0.3, 0.1], size=QUERIES)
    mechanism = built(name)
    answers = mechanism.answer(histograms, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(0))
    reserved = mechanism.worst_case(QUERIES, epsilon, 1e-5)
    assert price(answers.event, 1e-5) <= price(reserved, 1e-5) <= epsilon
    assert ((answers.labels >= 0) == answers.answered).all()
    assert (answers.labels[answers.queried :] == -1).all()
    assert (answers.histograms is not None) == (mechanism.reveals == "histogram")


@pytest.mark.parametrize("name", PARAMETERS)
def test_permuting_the_classes_permutes_the_answers_where_the_vote_is_clear(name: str) -> None:
    counts = np.full((QUERIES, 3), 10)
    winners = np.arange(QUERIES) % 3
    counts[np.arange(QUERIES), winners] = 10_000
    mechanism = built(name)
    answers = mechanism.answer(counts, epsilon=1.0, delta=1e-5, noise=ReplayNoise(0))
    permuted = mechanism.answer(counts[:, [2, 0, 1]], epsilon=1.0, delta=1e-5, noise=ReplayNoise(0))
    assert answers.queried > 0
    assert answers.labels[: answers.queried].tolist() == winners[: answers.queried].tolist()
    assert permuted.event == answers.event
    assert permuted.labels[: answers.queried].tolist() == ((winners + 1) % 3)[: answers.queried].tolist()


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_calibrated_mechanism_answers_as_much_as_was_asked_for_and_with_less_noise_would_not(name: str) -> None:
    kind: Any = MECHANISMS.of(name)
    noise = "scale" if name == "lnmax" else "sigma2" if "sigma2" in PARAMETERS[name] else "sigma"
    given = {key: value for key, value in PARAMETERS[name].items() if key != noise}
    mechanism = kind.calibrated(epsilon=8, delta=1e-5, answers=QUERIES, **given)
    assert mechanism.certain(QUERIES + 1, 8, 1e-5) == QUERIES
    assert price(mechanism.worst_case(QUERIES, 8, 1e-5), 1e-5) <= 8
    quieter = kind(**given | {noise: 0.999 * getattr(mechanism, noise)})
    assert quieter.certain(QUERIES, 8, 1e-5) < QUERIES


def test_a_calibrated_test_may_be_of_more_queries_than_are_answered() -> None:
    kind: Any = MECHANISMS.of("confident")
    mechanism = kind.calibrated(epsilon=2, delta=1e-5, answers=10, tests=500, threshold=150, sigma1=100)
    assert 1.999 < price(mechanism.cost(500, 10), 1e-5) <= 2
    with pytest.raises(SettingError, match="answer"):
        MECHANISMS.of("lnmax").calibrated(epsilon=2, delta=1e-5, answers=0)  # type: ignore[attr-defined]


def test_a_claim_is_the_price_as_if_one_vote_moved_or_what_the_paper_computes() -> None:
    votes = price(RepeatedEvent(vote_answer(20.0), 30), 1e-5)
    assert built("gnmax").claimed(30, 30, 1e-5) == built("histogram").claimed(30, 30, 1e-5) == votes
    both = price(compose(RepeatedEvent(threshold_test(30.0), 50), RepeatedEvent(vote_answer(20.0), 30)), 1e-5)
    assert built("confident").claimed(50, 30, 1e-5) == both
    assert built("lnmax").claimed(100, 100, 1e-5) == claimed_by_moments(1 / 20, 100, 1e-5)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(SettingError, match=r"Expected one of: confident"):
        parse_mechanism({"mechanism": "median"})


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, own in PARAMETERS.items() for key in own])
@pytest.mark.parametrize("value", [math.nan, math.inf, "much", None])
def test_an_impossible_parameter_is_refused_by_its_name(name: str, key: str, value: Any) -> None:
    given = {"mechanism": name, **PARAMETERS[name], key: value}
    with pytest.raises(SettingError, match=f"mechanism={name}: {key}: "):
        parse_mechanism({k: v for k, v in given.items() if v is not None})
    for low in (0, -1.0) if key.startswith("s") and key != "surprise" else ():
        with pytest.raises(SettingError, match=f"{key}: .*greater than 0"):
            parse_mechanism({**given, key: low})
