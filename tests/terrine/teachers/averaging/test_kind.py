"""Averaged teachers as a kind: alone, in groups that vote as one, and from an average."""

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.queries import Queries
from terrine.teachers.averaging.averaged import AveragedKind, RoundState, assign_blocks, centre_records, party_means
from terrine.teachers.averaging.learners import LinearLearner, ModuleLearner, centre_queries
from terrine.teachers.averaging.ttac import average_teachers, unit_rows
from terrine.teachers.network_training import Classifier
from terrine.teachers.records import Records
from tests.terrine.teachers.averaging.helpers import averaged, plain_ttac, sorted_records

ALONE = averaged(averaging="none", correction="none", rounds=3, steps=4, learning_rate=1.0, batch=6)
BLOCKS = averaged(averaging="blocks", block=3, rounds=3, steps=4, learning_rate=1.0, batch=6)


@pytest.fixture(scope="module")
def parties():
    return sorted_records(12, 11, 5, 4)


def linear(centred=False):
    return LinearLearner(5, 4, centred=centred)


def weights(state):
    return np.concatenate([state["weight"].ravel(), state["bias"]])


def test_conventional_teachers_equal_plain_gradient_descent_of_one_party_each(parties):
    kind = AveragedKind(ALONE, linear(), 12)
    states = dict(kind.train(parties, range(12), seed=3))
    for teacher in (0, 5, 11):
        rows = parties.assignment == teacher
        alone = Records(parties.inputs[rows], parties.labels[rows], np.full(rows.sum(), teacher), 4)
        moved = Records(alone.inputs, alone.labels, np.zeros(rows.sum(), np.int64), 4)
        expected = one_party(moved, teacher)
        np.testing.assert_allclose(weights(states[teacher]), expected, atol=1e-5)


def one_party(records, teacher):
    """A party's own steps, round after round, with the batches of its number."""
    from tests.terrine.teachers.averaging.helpers import plain_batches, plain_gradient

    theta = np.zeros(4 * 6)
    for number in range(ALONE.rounds):
        for batch in plain_batches(np.arange(len(records.inputs)), ALONE, 3, number, teacher):
            inputs = records.inputs[batch].astype(np.float64)
            theta = theta - ALONE.rate(number) * plain_gradient(theta, inputs, records.labels[batch], 4)
    return theta


def test_a_group_votes_with_the_average_of_its_own_parties_after_the_last_round(parties):
    kind = AveragedKind(BLOCKS, linear(), 12)
    states = dict(kind.train(parties, range(4), seed=3))
    for block, members in enumerate(assign_blocks(12, 3, 3)):
        own = np.isin(parties.assignment, members)
        renumbered = Records(
            parties.inputs[own], parties.labels[own], np.searchsorted(members, parties.assignment[own]), 4
        )
        theta, *_ = average_of(renumbered, members)
        np.testing.assert_allclose(weights(states[block]), theta, atol=1e-5)


def average_of(records, members):
    """Algorithm 1 within a group; its batches go by the parties' own numbers."""
    import tests.terrine.teachers.averaging.helpers as plain

    batches = plain.plain_batches
    try:
        plain.plain_batches = lambda rows, s, seed, number, i: batches(rows, s, seed, number, int(members[i]))
        return plain_ttac(records, len(members), BLOCKS, BLOCKS.rounds, seed=3)
    finally:
        plain.plain_batches = batches


@pytest.mark.parametrize(("settings", "teachers"), [(ALONE, 12), (BLOCKS, 4)])
@pytest.mark.parametrize("centred", [False, True])
def test_a_record_touches_one_voter_and_grouping_touches_none(parties, settings, teachers, centred):
    """The assumption behind the price of a vote."""
    kind = AveragedKind(settings, linear(centred), 12)
    before = dict(kind.train(parties, range(teachers), seed=3))
    parts = [dict(kind.train(parties, part, seed=3)) for part in (range(1), range(1, teachers))]
    for teacher, state in (parts[0] | parts[1]).items():
        np.testing.assert_array_equal(weights(state), weights(before[teacher]))
    changed = parties.inputs.copy()
    changed[40] = 100 * np.array([1, -1, 1, -1, 1])
    after = dict(kind.train(Records(changed, parties.labels, parties.assignment, 4), range(teachers), seed=3))
    touched = [t for t in range(teachers) if (weights(before[t]) != weights(after[t])).any()]
    party = parties.assignment[40]
    blocks = assign_blocks(12, 3, 3)
    expected = party if settings is ALONE else next(b for b, members in enumerate(blocks) if party in members)
    assert touched == [expected]


def test_groups_are_drawn_once_cover_all_parties_and_none_is_small():
    for parties, size in ((12, 3), (200, 7), (11, 4), (10, 5), (9, 4)):
        blocks = assign_blocks(parties, size, seed=1)
        assert sorted(np.concatenate(blocks).tolist()) == list(range(parties))
        assert min(map(len, blocks)) * 2 >= size
        assert all((a == b).all() for a, b in zip(blocks, assign_blocks(parties, size, seed=1), strict=True))
    assert len(assign_blocks(200, 7, 1)) == round(200 / 7)
    with pytest.raises(SettingError, match="one group"):
        assign_blocks(5, 5, 0)


def test_teachers_that_averaged_agree_where_conventional_ones_do_not(parties):
    settings = averaged(rounds=20, steps=5, learning_rate=2.0, batch=11)
    queries = Queries(parties.inputs, [np.arange(len(parties.inputs))])
    alone = AveragedKind(ALONE, linear(), 12)
    conventional = alone.vote([s for _, s in alone.train(parties, range(12), seed=3)], queries)
    average, own = average_teachers(LinearLearner(5, 4), parties, range(12), settings, rounds=19, seed=3)
    kind = AveragedKind(settings, linear(), 12, lambda: RoundState(average, own))
    together = kind.vote([s for _, s in kind.train(parties, range(12), seed=3)], queries)
    right = [(votes == parties.labels[:, None]).mean() for votes in (conventional, together)]
    assert right[0] < 0.45
    assert right[1] > 0.8


def test_without_an_average_there_is_nothing_to_start_from(parties):
    with pytest.raises(InputError, match="Run the stage 'average'"):
        list(AveragedKind(averaged(), linear(), 12).train(parties, range(2), seed=0))
    average, own = average_teachers(LinearLearner(5, 4), parties, range(12), averaged(), rounds=1, seed=3)
    kind = AveragedKind(averaged(), linear(centred=True), 12, lambda: RoundState(average, own))
    with pytest.raises(InputError, match="have no centre"):
        list(kind.train(parties, range(2), seed=0))


def test_networks_vote_with_what_they_learned_together(records, queries):
    backbone = build_backbone("pate_cnn", channels=1, size=8, seed=0)
    form = ModuleLearner(Classifier(backbone.network, backbone.feature_dim, 3, 0))
    settings = averaged(rounds=6, steps=5, learning_rate=0.05, batch=16)
    average, own = average_teachers(form, records, range(5), settings, rounds=5, seed=0)
    kind = AveragedKind(settings, form, 5, lambda: RoundState(average, own))
    states = dict(kind.train(records, range(5), seed=0))
    assert not kind.stacked
    votes = kind.vote(states.values(), queries)
    labels = queries.inputs[:, 0, 1::2].mean(axis=2).argmax(axis=1)
    assert votes.shape == (60, 5)
    assert (votes == labels[:, None]).mean() > 0.9


def test_the_centre_is_the_mean_of_the_parties_means_of_unit_vectors(parties):
    means = party_means(parties, range(12))
    for party in range(12):
        rows = [row / np.sqrt((row**2).sum()) for row in parties.inputs[parties.assignment == party]]
        np.testing.assert_allclose(means[party], np.mean(rows, axis=0), atol=1e-6)
    assert np.linalg.norm(means, axis=1).max() <= 1 + 1e-6


def test_centred_records_and_queries_equal_a_plain_loop(parties):
    centre = party_means(parties, range(12)).mean(axis=0)
    found = centre_records(parties, [3, 7], centre)
    kept = np.flatnonzero(np.isin(parties.assignment, [3, 7]))
    for row, record in zip(found.inputs, kept, strict=True):
        unit = parties.inputs[record] / np.linalg.norm(parties.inputs[record]) - centre
        np.testing.assert_allclose(row, unit / np.linalg.norm(unit), atol=1e-5)
    np.testing.assert_array_equal(found.labels, parties.labels[kept])
    np.testing.assert_array_equal(found.assignment, parties.assignment[kept])
    batches = [np.arange(0, 20, 2), np.arange(1, 20, 2)]
    queries = centre_queries(Queries(parties.inputs[:20], batches)).inputs
    for batch in batches:
        unit = unit_rows(parties.inputs[batch])
        expected = unit - unit.mean(axis=0)
        np.testing.assert_allclose(
            queries[batch], expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5
        )
