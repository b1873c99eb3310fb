"""Mechanisms by name, and what holds for all of them."""

from typing import Any

import numpy as np
import pytest

from terrine.aggregation.mechanism import Mechanism
from terrine.aggregation.registry import MECHANISMS, build
from terrine.errors import SettingError
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise

QUERIES = 40
PARAMETERS: dict[str, dict[str, Any]] = {
    "lnmax": {"scale": 20},
    "gnmax": {"sigma": 20},
    "histogram": {"sigma": 20},
    "confident": {"threshold": 40, "sigma1": 30, "sigma2": 20},
    "interactive": {
        "threshold": 60,
        "surprise": 10,
        "sigma1": 30,
        "sigma2": 20,
        "confidence": 0.5,
        "probabilities": np.full((QUERIES, 3), 1 / 3),
    },
}


def test_every_mechanism_is_tested_here() -> None:
    assert set(PARAMETERS) == set(MECHANISMS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_mechanism_is_built_by_name_and_describes_itself(name: str) -> None:
    mechanism = build(name, PARAMETERS[name])
    assert isinstance(mechanism, Mechanism)
    assert mechanism.describe()["mechanism"] == mechanism.name == name
    as_floats = {key: float(value) if isinstance(value, int) else value for key, value in PARAMETERS[name].items()}
    assert build(name, as_floats).describe() == mechanism.describe()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 30.0])
def test_no_mechanism_spends_more_than_it_reserves_or_reserves_more_than_its_budget(name: str, epsilon: float) -> None:
    histograms = np.random.default_rng(0).multinomial(100, [0.6, 0.3, 0.1], size=QUERIES)
    mechanism = build(name, PARAMETERS[name])
    answers = mechanism.answer(histograms, epsilon=epsilon, delta=1e-5, noise=ReplayNoise(0))
    reserved = mechanism.worst_case(QUERIES, epsilon, 1e-5)
    assert price(answers.event, 1e-5) <= price(reserved, 1e-5) <= epsilon
    assert ((answers.labels >= 0) == answers.answered).all()
    assert (answers.labels[answers.asked :] == -1).all()


@pytest.mark.parametrize("name", PARAMETERS)
def test_permuting_the_classes_permutes_the_answers_where_the_vote_is_clear(name: str) -> None:
    counts = np.full((QUERIES, 3), 10)
    winners = np.arange(QUERIES) % 3
    counts[np.arange(QUERIES), winners] = 10_000
    mechanism = build(name, PARAMETERS[name])
    answers = mechanism.answer(counts, epsilon=1.0, delta=1e-5, noise=ReplayNoise(0))
    permuted = mechanism.answer(counts[:, [2, 0, 1]], epsilon=1.0, delta=1e-5, noise=ReplayNoise(0))
    assert answers.asked > 0
    assert answers.labels[: answers.asked].tolist() == winners[: answers.asked].tolist()
    assert permuted.event == answers.event
    assert permuted.labels[: answers.asked].tolist() == ((winners + 1) % 3)[: answers.asked].tolist()


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("median", {}, "choose one of confident, gnmax"),
        ("gnmax", {}, "lacks sigma"),
        ("gnmax", {"sigma": 1.0, "scale": 2.0}, "does not take scale"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build(name, parameters)
