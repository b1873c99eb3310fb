"""Published releases at their exact ε."""

import pytest

from benchmarks.published import exact, rows
from benchmarks.tables import measurements
from terrine.privacy.accounting.gaussian import epsilon_of


@pytest.mark.parametrize("name", rows())
def test_the_tables_of_published_releases_are_what_they_cost(name):
    (block,) = measurements()[name]["measured"]
    assert block["rows"] == rows()[name]


def test_a_release_of_tests_and_answers_costs_what_its_noise_says():
    """640 tests and 286 answers: μ² = 640/150² + 2·286/40²."""
    mu = (640 / 150**2 + 2 * 286 / 40**2) ** 0.5
    assert float(exact((640, 150, 286, 40), 1e-5)) == pytest.approx(epsilon_of(mu, 1e-5), abs=1e-3)
