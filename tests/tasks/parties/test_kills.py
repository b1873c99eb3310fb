"""Parties that are killed at any moment of a session of one round: real processes on loopback with mutual TLS."""

import pytest

from tests.party_kills import OF_ONE_ROUND, check_killed


@pytest.mark.parametrize(
    ("case", "terms", "kill"), OF_ONE_ROUND, ids=[f"{case}-{terms.mechanism}" for case, terms, _ in OF_ONE_ROUND]
)
def test_a_party_killed_at_any_moment_comes_back_and_the_batch_is_answered_once(case, terms, kill, tmp_path):
    check_killed(case, terms, kill, tmp_path)
