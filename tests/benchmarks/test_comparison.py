"""Comparable figures: what sums cost under both relations, by dp_accounting, and tables with published figures."""

import json

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from benchmarks import comparison
from benchmarks.features import sums_budget
from benchmarks.sums import COMPARED
from benchmarks.tables import written
from terrine.aggregation.sums import Gradients, Moments
from terrine.privacy.noised_sum import ClippedMean

DELTA = 1e-5


def priced(*events):
    """Compute ε by dp_accounting of Gaussian mechanisms, each (sensitivity, σ, repetitions)."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sensitivity, sigma, count in events:
        accountant.compose(dp_accounting.GaussianDpEvent(sigma / sensitivity), count)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("epsilon", [0.07, 1.0, 8.0])
def test_sums_cost_what_dp_accounting_computes_from_their_noise_under_both_relations(epsilon, share):
    mean = ClippedMean.for_share(share, epsilon, DELTA) if share else None
    before, spent = ([(2.0, mean.noise_multiplier, 1)], mean.event) if mean else ([], None)
    own = {} if spent is None else {"spent": spent}
    for mechanism in (Moments(), Gradients()):
        mu, added, replaced = sums_budget(mechanism, epsilon, DELTA, added=True, **own)
        course = mechanism.schedule(mu)
        assert added == pytest.approx(epsilon, rel=1e-6)
        for square, factor, found in ((2.0, 1, added), (4.5, 2, replaced)):
            rounds = [(factor * course.clip, course.sigma_gradients, course.rounds)] if course.rounds else []
            assert found == pytest.approx(priced(*before, (square**0.5, course.sigma, 1), *rounds), rel=2e-3)
        assert sums_budget(mechanism, epsilon, DELTA, **own)[2] == pytest.approx(epsilon, rel=1e-6)
        assert sums_budget(mechanism, epsilon, DELTA, **own)[0] < mu


def test_a_table_has_our_rows_above_the_published_ones_each_with_its_source():
    lines = written("comparison/adult").splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]][:2] == ["| **gradients**", "| its ε if a record is replaced"]
    assert "| S-GBDT 2023, boosted trees | 81.3 | 82.9 at 0.54 | – |" in lines[4]
    assert all(line.split(" | ")[-1].startswith("[") for line in lines[4:])


def test_published_figures_stand_in_columns_that_their_tables_have():
    listed, columns = comparison.listed(), comparison.comparison_columns((0.07, *comparison.PUBLISHED))
    assert set(listed) <= {*COMPARED, "adult"}
    for entries in listed.values():
        for entry in entries:
            assert set(entry) == {"method", "figures", "source"}, entry
            assert entry["figures"], entry
            assert set(entry["figures"]) <= set(columns), entry


def test_rows_replace_those_of_the_same_command_and_leave_others(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "MEASUREMENTS", tmp_path)
    about = {"seeds": 5, "spread": "standard deviation"}
    for command, cell in (("one", "1"), ("two", "2"), ("one", "3 ± 0.1")):
        comparison.store("subject/table", ["", "%"], [["a", cell]], command=command, **about)
    text = (tmp_path / "subject.json").read_text()
    assert '["a", "3 ± 0.1"]' in text
    blocks = json.loads(text)["table"]["measured"]
    assert [(block["command"], block["rows"]) for block in blocks] == [
        ("two", [["a", "2"]]),
        ("one", [["a", "3 ± 0.1"]]),
    ]


def test_a_method_has_the_largest_epsilon_of_its_draws():
    draws = [[{"accuracy": 0.5, "replaced": 1.0}, {"accuracy": 0.7, "replaced": 1.0049}]]
    assert comparison.comparison_rows("sums", draws) == [
        ["**sums**", "60.0 ± 14.1", "measured here"],
        ["its ε if a record is replaced", "1.01", "exact"],
    ]
