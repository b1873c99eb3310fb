"""Teachers from scratch: their start, and what statistics mean for them."""

from typing import get_args

import numpy as np
import pytest
import torch

from terrine.queries import Queries
from terrine.teachers.network_training import load_state
from terrine.teachers.networks import Architecture, ScratchKind, ScratchTeachers

CLASSES = 3


def scratch(architecture="small_cnn", **settings):
    defaults = {"epochs": 2, "batch": 8}
    return ScratchKind(ScratchTeachers(architecture=architecture, **(defaults | settings)), 1, 8, CLASSES)


def start_of(kind, records, **settings):
    """States after one step so small that they are the start."""
    return dict(kind(epochs=1, batch=None, learning_rate=1e-12, **settings).train(records, range(3), seed=4))


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_trains_and_votes_with_both_statistics(records, queries, architecture):
    few = Queries(queries.inputs[:8], [np.arange(8)])
    for statistics in ("current", "original"):
        kind = scratch(architecture, epochs=1, batch=None, statistics=statistics)
        ((teacher, state),) = kind.train(records, [3], seed=0)
        votes = kind.vote([state], few)
        assert teacher == 3
        assert votes.shape == (8, 1)
        assert votes.max() < CLASSES
        recorded = any("running" in name for name in state)
        assert recorded == (statistics == "original" and architecture not in ("cryptonet", "pate_cnn"))


def test_a_shared_start_is_one_for_all_teachers_and_an_own_start_is_each_its_own(records):
    shared, own = start_of(scratch, records), start_of(scratch, records, initialisation="own")
    for states, equal in ((shared, True), (own, False)):
        for name in ("network.0.weight", "head.weight"):
            assert np.allclose(states[0][name], states[1][name], atol=1e-9) == equal
    again = dict(scratch(epochs=1, batch=None, learning_rate=1e-12, initialisation="own").train(records, [2], seed=4))
    assert all(np.array_equal(again[2][name], own[2][name]) for name in again[2])


def test_original_statistics_are_those_of_the_teachers_own_records_under_its_final_weights(records):
    kind = scratch(statistics="original", batch=8)
    state = dict(kind.train(records, [0], seed=0))[0]
    classifier = kind.classifier(0)
    load_state(classifier, state)
    own = torch.from_numpy(records.inputs[records.assignment == 0]).float() / 255
    with torch.no_grad():
        maps = [classifier.network[0](batch) for batch in torch.tensor_split(own, 3)]
    mean = sum(batch.mean(dim=(0, 2, 3)) for batch in maps) / 3
    variance = sum(batch.transpose(0, 1).flatten(1).var(dim=1) for batch in maps) / 3
    np.testing.assert_allclose(state["network.1.running_mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["network.1.running_var"], variance, rtol=1e-4)


def test_under_original_statistics_a_vote_does_not_depend_on_the_batch(records, queries):
    kind = scratch(statistics="original")
    states = [state for _, state in kind.train(records, [0, 1], seed=0)]
    alone = type(queries)(queries.inputs, [np.array([number]) for number in range(60)])
    assert np.array_equal(kind.vote(states, queries), kind.vote(states, alone))
