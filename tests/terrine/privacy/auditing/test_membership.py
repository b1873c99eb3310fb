import math

import numpy as np
import pytest
from scipy.stats import norm

from terrine.errors import InputError, SettingError
from terrine.privacy.auditing.membership import attack, likelihood_ratios, logit_scores


def shadow_runs(effect, runs=24, records=300, seed=0):
    """Scores that are `effect` standard deviations higher in runs that had the record."""
    rng = np.random.default_rng(seed)
    member = rng.random((runs, records)) < 0.5
    return rng.normal(size=records) * 3 + rng.normal(size=(runs, records)) + effect * member, member


def test_ratios_equal_a_loop_that_leaves_the_attacked_run_out():
    scores, member = shadow_runs(1.0, runs=14, records=12)
    fast = likelihood_ratios(scores, member)
    for run in range(14):
        others = np.arange(14) != run
        deviations, means = {}, {}
        for inside in (True, False):
            squares, freedom = 0.0, 0
            for record in range(12):
                group = scores[others & (member[:, record] == inside), record]
                means[inside, record] = group.mean()
                squares += np.sum((group - group.mean()) ** 2)
                freedom += len(group) - 1
            deviations[inside] = math.sqrt(squares / freedom)
        for record in range(12):
            logs = [norm.logpdf(scores[run, record], means[side, record], deviations[side]) for side in (True, False)]
            assert fast[run, record] == pytest.approx(logs[0] - logs[1], rel=1e-9, abs=1e-9)


def test_a_run_that_remembers_its_records_is_found_out():
    result = attack(*shadow_runs(4.0))
    assert result.auc.low > 0.98
    assert result.members[0.01].low > 0.8
    assert result.others[0.01].low > 0.8
    assert result.epsilon > 1.0


def test_a_run_that_remembers_nothing_gives_nothing_away():
    result = attack(*shadow_runs(0.0))
    assert 0.45 < result.auc.low < 0.5 < result.auc.high < 0.55
    assert result.members[0.1].value < 0.15
    assert result.others[0.1].value < 0.15
    assert result.epsilon < 0.3


def test_logit_scores_are_the_log_odds_of_the_true_label():
    table = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    scores = logit_scores(table, [1, 1])
    assert scores[0] == pytest.approx(math.log(0.2 / 0.8))
    assert np.isfinite(scores[1])
    assert scores[1] > 100


def test_what_cannot_be_attacked_is_refused():
    scores, member = shadow_runs(1.0, runs=8, records=5)
    with pytest.raises(InputError, match="booleans"):
        likelihood_ratios(scores, member.astype(int))
    with pytest.raises(InputError, match="runs, records"):
        likelihood_ratios(scores[:4], member)
    with pytest.raises(InputError, match="finite"):
        likelihood_ratios(np.full_like(scores, np.nan), member)
    with pytest.raises(InputError, match="more shadows"):
        likelihood_ratios(scores, np.ones_like(member))
    with pytest.raises(SettingError, match="guess_share"):
        attack(scores, member, guess_share=0.0)
    with pytest.raises(InputError):
        logit_scores([[0.5, 0.5]], [0, 1])
