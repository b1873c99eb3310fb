import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import beta, norm

from terrine.aggregation.gnmax import ConfidentGNMax, GaussianHistogram, GNMax
from terrine.aggregation.lnmax import LNMax
from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.events import Event, RepeatedEvent, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of
from terrine.privacy.auditing.audit import audit_mechanism, audit_scores, clopper_pearson
from terrine.privacy.noise import ReplayNoise
from tests.noises import QuieterNoise

TIE, MOVED = [50, 50], [51, 49]


@dataclass(frozen=True)
class WithoutTests:
    """A release that forgets to charge its threshold tests."""

    labels: np.ndarray
    histograms: None
    event: Event


def runner(mechanism, noise):
    return lambda counts: mechanism.answer(counts, epsilon=1e8, delta=1e-5, noise=noise)


@pytest.mark.parametrize("confidence", [0.9, 0.975])
@pytest.mark.parametrize("trials", [1, 7, 200])
def test_clopper_pearson_bounds_are_the_exact_quantiles(trials, confidence):
    hits = np.arange(trials + 1)
    low, high = clopper_pearson(hits, trials, confidence)
    for k in hits:
        assert low[k] == pytest.approx(0 if k == 0 else beta.ppf(1 - confidence, k, trials - k + 1))
        assert high[k] == pytest.approx(1 if k == trials else beta.ppf(confidence, k + 1, trials - k))


def test_bounds_of_a_sound_mechanism_are_too_high_no_more_often_than_stated():
    rng = np.random.default_rng(0)
    mu, delta, confidence, audits = 1.0, 1e-5, 0.8, 300
    true_epsilon = epsilon_of(mu, delta)
    wrong = np.zeros(2)
    for _ in range(audits):
        bound = audit_scores(rng.normal(size=60), rng.normal(mu, size=60), delta, confidence)
        wrong += bound.mu > mu, bound.epsilon > true_epsilon
    # 4 standard deviations of a binomial above the allowed 20 %.
    assert np.all(wrong / audits <= 0.2 + 4 * math.sqrt(0.2 * 0.8 / audits))


def test_many_runs_come_close_to_the_truth():
    rng = np.random.default_rng(1)
    bound = audit_scores(rng.normal(size=40_000), rng.normal(1.0, size=40_000), 1e-5)
    assert 0.93 < bound.mu <= 1.0
    response = rng.random((2, 40_000)) < np.array([[1 / (1 + math.e)], [math.e / (1 + math.e)]])
    assert 0.93 < audit_scores(response[0], response[1], 1e-5).epsilon <= 1.0


def test_equal_inputs_show_nothing():
    rng = np.random.default_rng(2)
    bound = audit_scores(rng.normal(size=500), rng.normal(size=500), 1e-5)
    assert bound.mu < 0.3
    assert bound.epsilon < 0.3


@pytest.mark.parametrize(
    ("mechanism", "queries"),
    [
        (GNMax(sigma=10.0), 110),
        (GaussianHistogram(sigma=10.0), 110),
        (ConfidentGNMax(threshold=50.0, sigma1=20.0, sigma2=10.0), 60),
    ],
)
def test_a_gaussian_mechanism_with_its_noise_halved_is_caught(mechanism, queries):
    options = {"queries": queries, "runs": 300, "delta": 1e-5}
    share = 0.5 if mechanism.mechanism != "confident" else 0.4
    assert audit_mechanism(runner(mechanism, QuieterNoise(share)), TIE, MOVED, **options).caught
    assert not audit_mechanism(runner(mechanism, QuieterNoise(1.0)), TIE, MOVED, **options).caught


def test_lnmax_with_its_noise_halved_is_caught():
    options = {"queries": 1, "runs": 40_000, "delta": 1e-5}
    for share, caught in ((0.5, True), (1.0, False)):
        verdict = audit_mechanism(runner(LNMax(scale=4.0), QuieterNoise(share)), [55, 45], [56, 44], **options)
        assert verdict.caught is caught
        assert verdict.mu_charged is None
        assert verdict.epsilon_charged == pytest.approx(0.5, abs=1e-4)


def test_a_threshold_test_left_uncharged_is_caught():
    honest = ConfidentGNMax(threshold=80.0, sigma1=10.0, sigma2=40.0)

    def forgetful(counts):
        release = runner(honest, noise)(counts)
        answers = int(release.answered.sum())
        return WithoutTests(release.labels, None, RepeatedEvent(vote_answer(40.0), answers))

    options = {"queries": 400, "runs": 300, "delta": 1e-5}
    noise = ReplayNoise(3)
    assert audit_mechanism(forgetful, [60, 40], [61, 39], **options).caught
    noise = ReplayNoise(3)
    assert not audit_mechanism(runner(honest, noise), [60, 40], [61, 39], **options).caught


def test_the_charge_of_the_costliest_run_counts():
    verdict = audit_mechanism(runner(GNMax(sigma=10.0), ReplayNoise(0)), TIE, MOVED, queries=50, runs=20, delta=1e-5)
    assert verdict.mu_charged == pytest.approx(1.0)
    assert verdict.epsilon_charged == pytest.approx(epsilon_of(1.0, 1e-5))


def test_labels_are_scored_by_their_likelihood_ratio():
    """One query per run: the found μ of a tie is that of the labels' own trade-off, not of the noise."""
    sigma, runs = 3.0, 40_000
    verdict = audit_mechanism(runner(GNMax(sigma=sigma), ReplayNoise(0)), TIE, MOVED, queries=1, runs=runs, delta=1e-5)
    right = norm.cdf(2 / (math.sqrt(2) * sigma))
    assert verdict.bound.mu == pytest.approx(norm.ppf(right), abs=0.05)


@pytest.mark.parametrize(
    "pair",
    [([50, 50], [50, 50]), ([50, 50], [52, 48]), ([50, 50], [51, 50]), ([50, 50], [51, 49, 0]), ([0, 5], [-1, 6])],
)
def test_histograms_that_are_not_neighbours_are_refused(pair):
    with pytest.raises(InputError):
        audit_mechanism(runner(GNMax(sigma=10.0), ReplayNoise(0)), *pair, queries=2, runs=20, delta=1e-5)


def test_impossible_audits_are_refused():
    with pytest.raises(SettingError):
        audit_mechanism(runner(GNMax(sigma=10.0), ReplayNoise(0)), TIE, MOVED, queries=0, runs=20, delta=1e-5)
    with pytest.raises(SettingError):
        audit_mechanism(runner(GNMax(sigma=10.0), ReplayNoise(0)), TIE, MOVED, queries=2, runs=10, delta=1e-5)
    for scores in (([0.0] * 3, [0.0] * 3), ([0.0] * 4, [0.0] * 5), ([0.0] * 4, [math.nan] * 4)):
        with pytest.raises(InputError):
            audit_scores(*scores, 1e-5)
    with pytest.raises(SettingError):
        audit_scores([0.0] * 8, [1.0] * 8, 0.0)
    with pytest.raises(SettingError):
        audit_scores([0.0] * 8, [1.0] * 8, 1e-5, confidence=1.0)
