"""What papers claim, for the record."""

import pytest

from terrine.errors import SettingError
from terrine.privacy.accounting.claimed import by_moments


def test_the_claim_is_the_papers_table():
    """Dodwadmath and Stich (2022), Table 1: ε = 11.75 at γ = 0.1 and 100 queries, above 20 elsewhere."""
    assert by_moments(0.1, 100, 1e-5) == pytest.approx(11.75, abs=0.01)
    for gamma, queries in ((0.5, 100), (0.1, 1000), (0.5, 1000)):
        assert by_moments(gamma, queries, 1e-5) > 20


def test_an_impossible_claim_is_refused():
    with pytest.raises(SettingError, match="gamma"):
        by_moments(0.0, 100, 1e-5)
