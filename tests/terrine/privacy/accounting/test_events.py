import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrine.errors import SettingError
from terrine.privacy.accounting.events import (
    ComposedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    RandomisedResponseEvent,
    RepeatedEvent,
    UnsupportedEventError,
    compose,
    from_json,
    of_several,
    threshold_test,
    to_json,
    vote_answer,
)
from terrine.privacy.accounting.gaussian import mu_squared

positive = st.floats(1e-6, 1e6)
leaves = st.one_of(
    st.builds(GaussianEvent, positive, positive),
    st.builds(LaplaceEvent, positive, positive),
    st.builds(RandomisedResponseEvent, positive, st.integers(2, 100)),
    st.just(NonPrivateEvent()),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(RepeatedEvent, inner, st.integers(0, 1000)),
        st.builds(lambda parts: ComposedEvent(tuple(parts)), st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@given(trees)
def test_an_event_survives_json_exactly(event):
    assert from_json(json.loads(json.dumps(to_json(event), allow_nan=False))) == event


@given(st.lists(trees, max_size=4))
def test_compose_counts_every_leaf(events):
    def leaves_of(event, times=1):
        match event:
            case ComposedEvent():
                return [pair for part in event.events for pair in leaves_of(part, times)]
            case RepeatedEvent():
                return leaves_of(event.event, times * event.count)
        return [(event, times)]

    def total(pairs):
        counts = {}
        for event, times in pairs:
            counts[event] = counts.get(event, 0) + times
        return {event: times for event, times in counts.items() if times}

    assert total(leaves_of(compose(*events))) == total(pair for event in events for pair in leaves_of(event))


def test_a_run_in_pieces_is_the_same_event_as_the_run_in_one():
    answer, test = vote_answer(40), threshold_test(150)
    pieces = compose(compose(test, answer), test, compose(test, answer))
    assert pieces == compose(RepeatedEvent(test, 3), RepeatedEvent(answer, 2))


def test_one_vote_moves_an_answer_by_root_two_and_a_test_by_one():
    assert vote_answer(40).sensitivity == math.sqrt(2)
    assert threshold_test(150).sensitivity == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: GaussianEvent(1, 0),
        lambda: GaussianEvent(-1, 1),
        lambda: GaussianEvent(1, math.inf),
        lambda: GaussianEvent(1, math.nan),
        lambda: GaussianEvent(True, 1),
        lambda: LaplaceEvent(1, "2"),
        lambda: RandomisedResponseEvent(1, 1),
        lambda: RandomisedResponseEvent(-1, 2),
        lambda: RepeatedEvent(vote_answer(1), -1),
        lambda: RepeatedEvent(vote_answer(1), 1.5),
        lambda: RepeatedEvent(3, 1),
        lambda: ComposedEvent([vote_answer(1)]),
        lambda: ComposedEvent((1,)),
        lambda: compose(3),
    ],
)
def test_an_impossible_event_is_refused(build):
    with pytest.raises(SettingError):
        build()


@pytest.mark.parametrize(
    "tree",
    [
        {"event": "gaussian", "sensitivity": 1.0},
        {"event": "gaussian", "sensitivity": 1.0, "sigma": 2.0, "note": "cheap"},
        {"event": "free"},
        {"sigma": 1.0},
        {"event": "composed", "of": {"event": "non_private"}},
        "gaussian",
    ],
)
def test_a_stored_event_that_is_not_understood_is_refused(tree):
    with pytest.raises(UnsupportedEventError):
        from_json(tree)


@pytest.mark.parametrize("units", [1, 2])
def test_votes_of_teachers_at_several_parties_move_counts_as_far_as_several_units_are_priced(units):
    """By brute force: all votes of four teachers, and all votes that differ in at most `units` teachers."""
    voted = list(itertools.product(range(3), repeat=4))
    near = [
        (np.bincount(votes, minlength=3), np.bincount(others, minlength=3))
        for votes, others in itertools.product(voted, voted)
        if sum(one != other for one, other in zip(votes, others, strict=True)) <= units
    ]
    farthest = max(float(np.linalg.norm(one - other)) for one, other in near)
    assert of_several(vote_answer(5.0), units).sensitivity == pytest.approx(farthest)
    assert of_several(threshold_test(5.0), units).sensitivity == max(abs(int(a.max() - b.max())) for a, b in near)


@given(st.builds(GaussianEvent, positive, positive), st.integers(0, 1000), st.integers(2, 5))
def test_several_units_cost_a_gaussian_event_so_many_times_the_mu(event, count, units):
    event = ComposedEvent((RepeatedEvent(event, count), vote_answer(3.0)))
    assert mu_squared(of_several(event, units)) == pytest.approx(units**2 * mu_squared(event))
    assert of_several(event, 1) is event


def test_what_has_no_sensitivity_and_no_unit_at_all_are_refused():
    with pytest.raises(UnsupportedEventError, match="RandomisedResponseEvent has no sensitivity"):
        of_several(compose(vote_answer(1.0), RandomisedResponseEvent(1.0, 2)), 2)
    with pytest.raises(SettingError, match="one unit or more"):
        of_several(vote_answer(1.0), 0)


def test_an_event_of_another_class_has_no_stored_form():
    class Unknown(Event):
        pass

    with pytest.raises(UnsupportedEventError):
        to_json(Unknown())
