"""Private figures agree with the accountant, and a histogram has no data-dependent ε."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tasks.pipeline.vote_costs import private_figures
from tasks.runtime.store import write_json
from terrine.aggregation.mechanism import parse_mechanism
from terrine.privacy.accounting import data_dependent, renyi

HISTOGRAMS = np.array([[50, 0, 0], [30, 15, 5], [20, 20, 10], [0, 49, 1]])


def release(labels):
    labels = np.asarray(labels)
    return SimpleNamespace(
        arrays={"answered": labels >= 0, "labels": labels, "round": np.zeros(len(labels), dtype=np.int64)}
    )


def figures_of(mechanism, histograms, of_release):
    return private_figures(parse_mechanism(mechanism), 1e-5, histograms, of_release)


def test_consensus_and_agreement_are_those_of_the_votes():
    figures = figures_of({"mechanism": "histogram", "sigma": 5}, HISTOGRAMS, release([0, 0, 2, -1]))
    assert figures["consensus_mean"] == pytest.approx((50 + 30 + 20 + 49) / 200)
    assert figures["released_agrees_with_votes"] == pytest.approx(2 / 3)
    assert figures["votes_per_class"] == [100, 84, 16]


def test_the_data_dependent_figure_counts_tests_of_all_asked_and_answers_of_those_given():
    orders = renyi.default_orders()
    settings = {"mechanism": "confident", "threshold": 25, "sigma1": 10, "sigma2": 8}
    curve = 0
    for votes, answered in zip(HISTOGRAMS, [True, True, False, True], strict=True):
        log_p = data_dependent.log_p_answered(votes.max(keepdims=True), 25, 10)
        curve = curve + data_dependent.threshold_rdp(log_p, 10, orders)[0]
        if answered:
            curve = curve + data_dependent.gnmax_rdp(data_dependent.log_q_gnmax(votes[None], 8), 8, orders)[0]
    epsilon, order = renyi.convert(orders, curve, 1e-5)
    figures = figures_of(settings, HISTOGRAMS, release([0, 0, -1, 1]))
    assert figures["epsilon_data_dependent"] == pytest.approx(epsilon, rel=1e-12)
    assert figures["order"] == order


def test_queries_the_budget_did_not_reach_are_not_counted():
    settings = {"mechanism": "gnmax", "sigma": 8}
    whole = figures_of(settings, HISTOGRAMS[:2], release([0, 0]))
    cut = release([0, 0, -1, -1])
    cut.arrays["round"] = np.where(np.arange(len(cut.arrays["labels"])) < 2, 0, -1)
    assert figures_of(settings, HISTOGRAMS, cut)["epsilon_data_dependent"] == whole["epsilon_data_dependent"]


def test_nothing_answered_has_no_agreement_and_the_figures_are_json(tmp_path):
    figures = figures_of({"mechanism": "histogram", "sigma": 5}, HISTOGRAMS, release([-1] * 4))
    assert figures["released_agrees_with_votes"] is None
    write_json(tmp_path / "figures.json", figures)
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
