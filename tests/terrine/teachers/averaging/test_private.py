"""Private averages: clipped, noised, priced with the votes; and what an attacker who sees everything can prove."""

import math

import numpy as np
import pytest

from terrine.aggregation.gnmax import GaussianHistogram
from terrine.aggregation.votes import count_votes
from terrine.errors import SettingError
from terrine.privacy.accounting.events import RepeatedEvent, compose, vote_answer
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.auditing.audit import audit_scores
from terrine.privacy.noise import ReplayNoise
from terrine.queries import Queries
from terrine.teachers.averaging.averaged import AveragedKind, AveragedTeachers, RoundState
from terrine.teachers.averaging.learners import LinearLearner
from terrine.teachers.averaging.private import PrivateAveraging, calibrated
from terrine.teachers.averaging.ttac import Average, average_teachers, derived_control, local_round, server_step
from terrine.teachers.records import Records
from tests.noises import Silence
from tests.terrine.teachers.averaging.helpers import averaged, sorted_records

SETTINGS = averaged(rounds=4, steps=3, learning_rate=0.7, step_decay=0.5, batch=5)
DELTA = 1e-5


def made_private(settings, **own):
    """The same rounds with averages that are released."""
    private = {"mode": "private", "statistics": "original", "clip": 1.0, "budget_share": 0.7}
    return AveragedTeachers(**(settings.model_dump() | private | own))


@pytest.fixture(scope="module")
def parties():
    return sorted_records(4, 13, 6, 3)


def test_without_clipping_and_noise_the_private_step_is_the_published_one(parties):
    learner = LinearLearner(6, 3)
    averaging = PrivateAveraging(made_private(SETTINGS, clip=1e3), 1.0)
    published, _ = average_teachers(learner, parties, range(4), SETTINGS, rounds=3, seed=7)
    private, _ = average_teachers(
        learner, parties, range(4), SETTINGS, rounds=3, seed=7, combine=averaging.combine(Silence())
    )
    np.testing.assert_allclose(private.value, published.value, atol=1e-5)
    np.testing.assert_allclose(private.control, published.control, atol=1e-5)


def test_each_update_is_clipped_by_itself_before_the_mean(parties):
    learner = LinearLearner(6, 3)
    start, own = Average.start(learner), np.zeros((4, learner.length), np.float32)
    local = local_round(learner, start, own, parties, range(4), SETTINGS, 0, seed=7)
    norms = np.linalg.norm(local.update, axis=1)
    clip = float(np.median(norms))
    released = PrivateAveraging(made_private(SETTINGS, clip=clip), 2.0).release([local.update], Silence())
    plain = sum(update * min(1.0, clip / norm) for update, norm in zip(local.update, norms, strict=True)) / 4
    np.testing.assert_allclose(released, plain, atol=1e-6)
    assert (norms > clip).any()


def test_a_round_releases_one_vector_and_the_centre_is_one_more():
    plain, centred = (PrivateAveraging(made_private(SETTINGS, centre=kind), 5.0) for kind in ("none", "shared"))
    assert mu_squared(plain.event(3)) == pytest.approx(3 * (2 / 5) ** 2)
    assert mu_squared(plain.whole_event()) == pytest.approx(3 * (2 / 5) ** 2)
    assert mu_squared(centred.whole_event()) == pytest.approx(4 * (2 / 5) ** 2)


@pytest.mark.parametrize("epsilon", [2.0, 6.0, 10.0])
@pytest.mark.parametrize("centre", ["none", "shared"])
def test_averages_take_their_share_and_leave_the_rest_to_the_votes_exactly(epsilon, centre):
    averaging = calibrated(made_private(SETTINGS, centre=centre), epsilon=epsilon, delta=DELTA)
    limit = mu_of(epsilon, DELTA) ** 2
    averages = averaging.whole_event()
    assert mu_squared(averages) == pytest.approx(0.7 * limit, rel=1e-7)
    sigma = 50.0
    answers = GaussianHistogram(sigma=sigma).certain(10**9, epsilon, DELTA, averages)
    assert answers == math.floor(0.3 * limit * sigma**2 / 2)
    whole = compose(averages, RepeatedEvent(vote_answer(sigma), answers))
    assert epsilon - 0.05 < epsilon_of(math.sqrt(mu_squared(whole)), DELTA) <= epsilon


def test_averages_and_votes_cost_what_dp_accounting_composes():
    from dp_accounting.pld import privacy_loss_distribution as pld

    averaging = calibrated(made_private(SETTINGS, centre="shared"), epsilon=4.0, delta=DELTA)
    sigma, answers = 90.0, 400
    whole = compose(averaging.whole_event(), RepeatedEvent(vote_answer(sigma), answers))
    grid = 1e-3
    # Four vectors of sensitivity 2S with noise zS, and votes that move by the square root of two.
    vectors = pld.from_gaussian_mechanism(averaging.noise_multiplier / 2, value_discretization_interval=grid)
    votes = pld.from_gaussian_mechanism(sigma / math.sqrt(2), value_discretization_interval=grid)
    oracle = vectors.self_compose(4).compose(votes.self_compose(answers)).get_epsilon_for_delta(DELTA)
    ours = epsilon_of(math.sqrt(mu_squared(whole)), DELTA)
    assert ours <= oracle <= ours + grid * 404


def test_averages_without_noise_are_not_private():
    with pytest.raises(SettingError):
        PrivateAveraging(made_private(SETTINGS), 0.0)


def test_a_party_that_diverges_counts_as_nothing_and_the_average_stays_finite(parties):
    inputs = parties.inputs.copy()
    inputs[parties.assignment == 1] = np.inf
    broken = Records(inputs, parties.labels, parties.assignment, 3)
    combine = PrivateAveraging(made_private(SETTINGS), 3.0).combine(Silence())
    average, _ = average_teachers(
        LinearLearner(6, 3),
        broken,
        range(4),
        SETTINGS,
        rounds=1,
        seed=7,
        combine=combine,
    )
    rest, _ = average_teachers(
        LinearLearner(6, 3),
        parties,
        [0, 2, 3],
        SETTINGS,
        rounds=1,
        seed=7,
        combine=combine,
    )
    np.testing.assert_allclose(average.value * 4, rest.value * 3, atol=1e-6)


# An audit on the smallest case: ten parties in the plane, two classes, one record whose label is exchanged. The
# attacker knows everything but which of the two data sets it is: other records, settings, and all that was released.

PARTIES, LEARNER = 10, LinearLearner(2, 2)
ROUNDS = averaged(rounds=3, steps=2, learning_rate=2.0, batch=1)


def neighbours():
    """Two data sets that differ in the label of one record, which is all its party has."""
    angles = np.linspace(-1.2, 1.2, PARTIES)
    labels = (angles > 0).astype(np.int64)
    inputs = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    other = labels.copy()
    other[-1] = 0
    assignment = np.arange(PARTIES)
    return Records(inputs, labels, assignment, 2), Records(inputs, other, assignment, 2)


def queried():
    """Directions all around."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    return Queries(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), [np.arange(40)])


def votes_from(records, average, own):
    kind = AveragedKind(ROUNDS, LEARNER, PARTIES, lambda: RoundState(average, own))
    states = [state for _, state in kind.train(records, range(PARTIES), seed=0)]
    return count_votes(kind.vote(states, queried()), 2)


def test_the_published_form_is_caught_when_its_claim_is_audited_as_if_it_held():
    """One record moves the votes of many teachers at once, and the noise was measured for one."""
    histograms = []
    for records in neighbours():
        average, own = average_teachers(LEARNER, records, range(PARTIES), ROUNDS, rounds=2, seed=0)
        histograms.append(votes_from(records, average, own))
    moved = histograms[1] - histograms[0]
    most = np.abs(moved).max()
    assert most > 3
    sigma = 10.0
    claimed = RepeatedEvent(vote_answer(sigma), len(moved))
    noise = ReplayNoise(1)
    scores = []
    for histogram in histograms:
        released = histogram + noise.gaussian((2000, *histogram.shape), sigma)
        scores.append((released * moved).sum(axis=(1, 2)))
    bound = audit_scores(*scores, delta=DELTA, confidence=0.999)
    assert bound.mu > 1.5 * math.sqrt(mu_squared(claimed))
    # An upper bound for every training: a record moves all votes.
    assert bound.mu <= PARTIES * math.sqrt(mu_squared(claimed))


def test_conventional_teachers_pass_the_same_audit():
    settings = averaged(averaging="none", correction="none", rounds=3, steps=2, learning_rate=2.0, batch=1)
    kind = AveragedKind(settings, LEARNER, PARTIES)
    one, other = (
        count_votes(kind.vote([s for _, s in kind.train(r, range(PARTIES), seed=0)], queried()), 2)
        for r in neighbours()
    )
    assert np.abs(one - other).max() == 1


def repeated(records, runs):
    """The same records once for every run, so that all runs learn as one problem."""
    count = len(records.labels)
    assignment = np.repeat(np.arange(runs), count) * PARTIES + np.tile(records.assignment, runs)
    return Records(np.tile(records.inputs, (runs, 1)), np.tile(records.labels, runs), assignment, 2)


def learned(records, average, own, number):
    """Local results of the parties of all runs in a round, given each run's average [runs, P]."""
    each = Average(np.repeat(average.value, PARTIES, axis=0), np.repeat(average.control, PARTIES, axis=0))
    return local_round(LEARNER, each, own, records, range(len(own)), ROUNDS, number, seed=0)


def private_runs(hypothesis, runs, averaging, sigma, noise):
    """Private runs on one of the data sets: the attacker's log likelihood ratio of all that each released, [runs]."""
    sides = [repeated(records, runs) for records in neighbours()]
    average = Average(np.zeros((runs, LEARNER.length)), np.zeros((runs, LEARNER.length)))
    own = [np.zeros((runs * PARTIES, LEARNER.length), np.float32)] * 2
    ratio = np.zeros(runs)

    def each_run(values):
        return values.reshape(runs, PARTIES, -1)

    for number in range(ROUNDS.rounds - 1):
        mechanism = averaging.mechanism
        local = [learned(records, average, mine, number) for records, mine in zip(sides, own, strict=True)]
        updates = each_run(local[hypothesis].update)
        mean = np.stack([averaging.release([update], noise) for update in updates])
        seen = mean * PARTIES
        clean = [each_run(mechanism.clipped(part.update)).sum(axis=1) for part in local]
        ratio += (((seen - clean[0]) ** 2) - ((seen - clean[1]) ** 2)).sum(axis=1) / (2 * mechanism.sigma**2)
        change = derived_control(average, mean, averaging.settings, number)
        average, own = server_step(average, mean, change, ROUNDS), [part.own for part in local]
    histograms = []
    for records, mine in zip(sides, own, strict=True):
        values = np.repeat(average.value, PARTIES, axis=0) + learned(records, average, mine, ROUNDS.rounds - 1).update
        votes = LEARNER.vote([LEARNER.state(weights) for weights in values], queried())
        ones = votes.T.reshape(runs, PARTIES, -1).sum(axis=1)
        histograms.append(np.stack([PARTIES - ones.astype(np.int64), ones.astype(np.int64)], axis=2))
    assert np.abs(histograms[0] - histograms[1]).max() <= 1
    seen = histograms[hypothesis] + noise.gaussian(histograms[0].shape, sigma)
    return ratio + (((seen - histograms[0]) ** 2) - ((seen - histograms[1]) ** 2)).sum(axis=(1, 2)) / (2 * sigma**2)


def test_the_private_form_withstands_the_best_attack_there_is_and_the_attack_is_no_weak_one():
    """The exact likelihood ratio, of averages and votes together. It comes near what is charged, and not above."""
    averaging, sigma = PrivateAveraging(made_private(ROUNDS, clip=0.3), 2.0), 15.0
    charged = math.sqrt(mu_squared(compose(averaging.event(2), RepeatedEvent(vote_answer(sigma), 40))))
    noise = ReplayNoise(3)
    scores = [private_runs(side, 500, averaging, sigma, noise) for side in (0, 1)]
    bound = audit_scores(*scores, delta=DELTA, confidence=0.99)
    assert 0.4 * charged < bound.mu <= charged
    assert bound.epsilon <= epsilon_of(charged, DELTA)
    # The ratio of a μ-GDP mechanism grows by μ² at most from one side to the other.
    assert np.mean(scores[1]) - np.mean(scores[0]) < 1.15 * charged**2


def test_the_same_attack_catches_averages_with_less_noise_than_is_charged():
    """The test above can fail: averages with a tenth of the noise, charged as if they had all of it."""
    pretended, drawn = (PrivateAveraging(made_private(ROUNDS, clip=0.3), multiplier) for multiplier in (2.0, 0.2))
    sigma = 15.0
    charged = math.sqrt(mu_squared(compose(pretended.event(2), RepeatedEvent(vote_answer(sigma), 40))))
    noise = ReplayNoise(4)
    scores = [private_runs(side, 200, drawn, sigma, noise) for side in (0, 1)]
    assert audit_scores(*scores, delta=DELTA, confidence=0.99).mu > charged
