"""Size of an ensemble: from public quantities, within its budget, with a warning if the signal is too weak."""

import math

import pytest

from terrine.planning import (
    ADVISED,
    COST_OF_NOISE,
    ENOUGH,
    UNITS_EACH,
    advise,
    advised_epsilon,
    advised_units,
    ample,
    judge_sums,
    noise_of_count,
    plan,
    signal,
)
from terrine.privacy.accounting.events import GaussianEvent, RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.accounting.pricing import price


@pytest.mark.parametrize("epsilon", [0.5, 1, 4, 8])
@pytest.mark.parametrize("queries", [None, 1, 777])
def test_all_queries_and_the_counting_before_them_cost_the_budget_and_no_more(epsilon, queries):
    noise = noise_of_count(epsilon, 1e-5)
    chosen = plan(20_000, classes=10, epsilon=epsilon, delta=1e-5, queries=queries, counted=noise)
    answers = RepeatedEvent(vote_answer(chosen.sigma), chosen.queries)
    whole = price(compose(GaussianEvent(1.0, noise), answers), 1e-5)
    assert epsilon * (1 - 1e-6) < whole <= epsilon
    alone = plan(20_000, classes=10, epsilon=epsilon, delta=1e-5, queries=queries)
    assert 1 < chosen.sigma / alone.sigma < 1.01  # counting takes a 64th of μ²


def test_teachers_are_ample_where_there_are_units_and_as_many_as_units_allow_where_there_are_not():
    many = [plan(units, classes=10, epsilon=4, delta=1e-5) for units in (10_000, 100_000, 10_000_000)]
    assert len({chosen.teachers for chosen in many}) == 1
    assert many[0].signal == pytest.approx(ample(10), rel=0.01) == pytest.approx(many[0].ample, rel=0.01)
    few = plan(600, classes=10, epsilon=4, delta=1e-5)
    assert few.teachers == 200
    assert few.useful
    groups = plan(300, classes=10, epsilon=4, delta=1e-5, unit="group")
    assert groups.teachers == 250


def test_a_class_has_as_many_teachers_for_itself_however_many_classes_there_are():
    two, ten = (plan(100_000, classes=classes, epsilon=4, delta=1e-5) for classes in (2, 10))
    assert ten.teachers == pytest.approx(5 * two.teachers, rel=0.01)


def test_of_several_findings_each_has_the_ample_signal_of_two_classes():
    two = plan(100_000, classes=2, epsilon=4, delta=1e-5)
    for moved in (1, 6):
        findings = plan(100_000, classes=14, epsilon=4, delta=1e-5, moved=moved)
        assert findings.ample == two.ample == pytest.approx(findings.signal, rel=0.02)


@pytest.mark.parametrize("counted", [0.0, 8.0])
@pytest.mark.parametrize("units", [1, 5, 60, 61, 1000])
def test_a_plan_never_has_more_teachers_than_units_but_where_there_are_hardly_any(units, counted):
    assert plan(units, classes=3, epsilon=4, delta=1e-5, unit="group", counted=counted).teachers <= max(2, units)


@pytest.mark.parametrize(("units", "classes", "unit"), [(60, 10, "group"), (60, 2, "record"), (300, 8, "record")])
def test_what_is_advised_against_too_few_units_is_useful(units, classes, unit):
    settings = {"classes": classes, "delta": 1e-5, "unit": unit}
    assert not plan(units, epsilon=1, **settings).useful
    larger = advised_epsilon(units, **settings)
    more = advised_units(units, ADVISED, signal(units / UNITS_EACH[unit], mu_of(1, 1e-5), classes))
    counted = noise_of_count(larger, 1e-5)
    for chosen in (
        plan(units, epsilon=larger, **settings),
        plan(units, epsilon=larger, counted=counted, **settings),
        plan(more, epsilon=1, counted=noise_of_count(1, 1e-5), **settings),
    ):
        assert chosen.useful


def test_more_queries_give_each_more_noise_and_all_of_them_the_same_signal():
    few, many = (plan(9_000, classes=4, epsilon=2, delta=1e-6, queries=count) for count in (100, 10_000))
    assert many.sigma == pytest.approx(10 * few.sigma, rel=1e-6)
    assert (many.teachers, many.signal) == (few.teachers, few.signal)
    assert many.signal == pytest.approx(few.teachers * math.sqrt(2 * 100) / few.sigma / math.sqrt(4), rel=1e-6)


def test_given_teachers_stay_and_the_signal_says_what_they_are_worth():
    chosen = plan(12_000, classes=10, epsilon=4, delta=1e-5, teachers=50)
    assert chosen.teachers == 50
    assert chosen.signal < ENOUGH


def test_a_signal_of_sums_is_judged_by_what_noise_cost():
    assert "too weak (needed: 1)" in judge_sums(0.99)
    assert "noise cost 2 to 17 points" in judge_sums(4.8)
    assert "at most 2 points of" in judge_sums(400.0)
    most = [high for _, high in COST_OF_NOISE.values()]
    assert (sorted(COST_OF_NOISE), sorted(most, reverse=True)) == (list(COST_OF_NOISE), most)


def test_the_advised_budget_of_sums_is_the_smallest_of_its_grid_that_is_enough():
    settings = {"classes": 10, "features": 200, "delta": 1e-5}
    weak = advise(150, epsilon=0.5, **settings)
    assert not weak.useful
    assert advise(150, epsilon=weak.epsilon, **settings).useful
    assert not advise(150, epsilon=weak.epsilon / 2, **settings).useful
