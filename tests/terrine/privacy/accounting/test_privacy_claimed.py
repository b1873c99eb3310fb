"""What papers claim, for the record."""

import pytest

from terrine.errors import SettingError
from terrine.privacy.accounting.claimed import by_moments, claimed_epsilon
from terrine.privacy.accounting.events import RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.pricing import price


def test_the_claim_is_the_papers_table():
    """Dodwadmath and Stich (2022), Table 1: ε = 11.75 at γ = 0.1 and 100 queries, above 20 elsewhere."""
    assert by_moments(0.1, 100, 1e-5) == pytest.approx(11.75, abs=0.01)
    for gamma, queries in ((0.5, 100), (0.1, 1000), (0.5, 1000)):
        assert by_moments(gamma, queries, 1e-5) > 20


def test_for_gaussian_mechanisms_the_claim_is_the_price_as_if_one_vote_moved():
    votes = price(RepeatedEvent(vote_answer(40.0), 30), 1e-5)
    assert claimed_epsilon({"mechanism": "gnmax", "sigma": 40.0}, 30, 30, 1e-5) == votes
    assert claimed_epsilon({"mechanism": "histogram", "sigma": 40.0}, 30, 30, 1e-5) == votes
    confident = {"mechanism": "confident", "threshold": 9.0, "sigma1": 100.0, "sigma2": 40.0}
    both = price(compose(RepeatedEvent(threshold_test(100.0), 50), RepeatedEvent(vote_answer(40.0), 30)), 1e-5)
    assert claimed_epsilon(confident, 50, 30, 1e-5) == both
    assert claimed_epsilon({"mechanism": "lnmax", "scale": 10.0}, 100, 100, 1e-5) == by_moments(0.1, 100, 1e-5)


def test_an_impossible_claim_is_refused():
    with pytest.raises(SettingError, match="gamma"):
        by_moments(0.0, 100, 1e-5)
