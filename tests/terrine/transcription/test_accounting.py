"""Sound and claimed figures, and what would meet a budget."""

import math

import pytest

from terrine.errors import BudgetError, SettingError
from terrine.privacy.accounting.events import GaussianEvent, RandomisedResponseEvent, RepeatedEvent
from terrine.privacy.accounting.gaussian import epsilon_of
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noised_sum import noise_multiplier_for
from terrine.transcription.accounting import answer_for, check_budget, claimed, event_of
from terrine.transcription.settings import Transcription

DELTA = 1e-5
PUBLISHED = 256 * 200


def settings(budget=10.0, protect="data", noise="secure", iterations=200, batch=256, **annotation):
    return Transcription(
        protect=protect, noise=noise, epsilon=budget, delta=DELTA, iterations=iterations, batch=batch,
        annotation=annotation,
    )  # fmt: skip


@pytest.mark.parametrize(("norm", "epsilon", "releases"), [("batch", 1.0608, 200), ("sample", 28.8387, PUBLISHED)])
def test_the_published_setting_costs_what_its_reading_of_the_norm_implies(norm, epsilon, releases):
    published = settings(sigma=100.0, beta=1e-3, norm=norm)
    assert price(event_of(published, 10), DELTA) == pytest.approx(epsilon, abs=1e-4)
    assert epsilon_of(math.sqrt(4 * releases / 100.0**2), DELTA) == pytest.approx(epsilon, abs=1e-4)
    assert claimed(published, 10) < 0.05
    # With the sensitivity of the paper's Lemma 1, 2β√c, which is larger than need be.
    lemma = RepeatedEvent(GaussianEvent(2 * math.sqrt(10), 100.0), PUBLISHED)
    assert price(lemma, DELTA) == pytest.approx(162.56, abs=0.01)


@pytest.mark.parametrize("beta", [1e-4, 1e-3, 5e-3, 1.0])
def test_the_claim_is_the_minimum_of_theorem_1(beta):
    """Against a plain search over a grid of orders."""
    slope = 2 * beta**2 * 10 * PUBLISHED / 100.0**2

    def theorem(order):
        return slope * order + math.log((order - 1) / order) - math.log(order * DELTA) / (order - 1)

    grid = min(theorem(1 + 10 ** (place / 200)) for place in range(-600, 1600))
    assert claimed(settings(sigma=100.0, beta=beta), 10) == pytest.approx(max(0.0, grid), rel=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_the_sigma_of_a_budget_meets_it_and_hardly_more_noise_than_needed(epsilon):
    sigma = noise_multiplier_for(epsilon, DELTA, 1, 1000)
    assert epsilon_of(math.sqrt(4 * 1000 / sigma**2), DELTA) <= epsilon
    assert epsilon_of(math.sqrt(4 * 1000 / (sigma * 0.999) ** 2), DELTA) > epsilon


def test_the_answer_of_a_budget_meets_it():
    answer = answer_for(4.0, DELTA, 500, 3)
    assert price(RepeatedEvent(RandomisedResponseEvent(answer, 3), 500), DELTA) <= 4.0
    assert price(RepeatedEvent(RandomisedResponseEvent(answer * 1.01, 3), 500), DELTA) > 4.0


@pytest.mark.parametrize(
    ("over", "within", "message"),
    [
        ({"sigma": 5.0, "norm": "batch"}, {"sigma": 14.14, "norm": "batch"}, r"annotation\.sigma to 14\.14 or more"),
        ({"sigma": 100.0}, {"sigma": 226.23}, r"ε=28\.83.*budget of ε=10 .*annotation\.sigma to 226\.23 or more"),
        (
            {"protect": "answers", "epsilon": 1.0},
            {"protect": "answers", "epsilon": 0.01081},
            r"annotation\.epsilon to 0\.01081 or less, annotate fewer",
        ),
        ({"protect": "labels", "epsilon": 11.0}, {"protect": "labels", "epsilon": 10.0}, "to 10 or less, or raise"),
    ],
)
def test_a_run_over_budget_is_refused_with_what_would_meet_it(over, within, message):
    with pytest.raises(BudgetError, match=message):
        check_budget(settings(**over), 10)
    check_budget(settings(**within), 10)


def test_what_guarantees_nothing_has_no_budget():
    nothing = settings(1.0, noise="none", sigma=0)
    check_budget(nothing, 10)
    assert price(event_of(nothing, 10), DELTA) == math.inf


def test_a_budget_that_the_lattice_alone_would_use_up_is_refused():
    with pytest.raises(SettingError, match="lattice"):
        check_budget(settings(40.0, iterations=10**5, batch=100, sigma=1.0), 10)


@pytest.mark.parametrize("beta", [1e-5, 1e-3, 1.0])
@pytest.mark.parametrize(("norm", "count"), [("batch", 3), ("sample", 6)])
def test_a_batch_or_a_sample_is_a_gaussian_with_sensitivity_two_for_every_beta(beta, norm, count):
    event = event_of(settings(iterations=3, batch=2, sigma=7.0, beta=beta, norm=norm), 10)
    assert event == RepeatedEvent(GaussianEvent(2.0, 7.0), count)
