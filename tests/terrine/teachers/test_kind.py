from typing import get_args

import numpy as np
import pytest

from terrine.errors import InputError, SettingError
from terrine.models.architecture import build_backbone
from terrine.teachers.base import TEACHERS, TeacherContext
from terrine.teachers.records import Records, rows_of, teachers_missing_a_class, vote_type
from tests.devices import DEVICES

IMAGES = TeacherContext(3, 1, 8, lambda: build_backbone("small_cnn", channels=1, size=8, seed=0), parties=5)
NETWORK = {"epochs": 1, "batch": 8}
QUICK = {
    "averaged": {"averaging": "none", "learner": "network", "rounds": 2, "steps": 2, "batch": 8},
    "estimator": {"estimator": {"options": {"n_estimators": 3}}},
    "finetune": NETWORK,
    "linear": {"optimiser": "adam", **NETWORK},
    "prompt": {"prompt": {"epochs": 1}},
    "scratch": NETWORK,
}
NEEDED = {"averaged": {"clip": 1.0, "budget_share": 0.5}}
"""Settings that a kind has no default for."""
STARTS = [
    (name, start)
    for name in TEACHERS.names()
    for start in get_args(TEACHERS.of(name).model_fields["initialisation"].annotation)
]


def test_rows_are_each_teachers_own_in_ascending_order():
    assignment = np.random.default_rng(0).integers(0, 6, 50)
    for teacher, rows in zip((4, 0, 5), rows_of(assignment, [4, 0, 5]), strict=True):
        assert rows.tolist() == [record for record in range(50) if assignment[record] == teacher]
    with pytest.raises(InputError, match="Teacher 6 has no record"):
        rows_of(assignment, [6])


def test_teachers_that_never_saw_a_class_are_counted():
    generator = np.random.default_rng(0)
    labels, assignment = generator.integers(0, 4, 40), generator.integers(0, 7, 40)
    expected = sum(len(set(labels[assignment == teacher])) < 4 for teacher in range(7))
    assert 0 < expected < 7
    assert teachers_missing_a_class(labels, assignment, 7, 4) == expected


def test_records_that_do_not_fit_together_are_refused():
    with pytest.raises(InputError, match="do not fit together"):
        Records(np.zeros((3, 2), np.float32), np.zeros(2, int), np.zeros(3, int), 2)
    with pytest.raises(InputError, match=r"outside 0\.\.1"):
        Records(np.zeros((3, 2), np.float32), np.array([0, 1, 2]), np.zeros(3, int), 2)


def test_votes_take_the_smallest_type():
    assert [vote_type(classes) for classes in (2, 256, 257)] == [np.uint8, np.uint8, np.uint16]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "initialisation"), STARTS)
def test_every_kind_keeps_what_the_protocol_promises(
    name, initialisation, device, records, queries, feature_records, feature_queries
):
    """Own records alone, the same state in any group, votes in the same fixed batches."""
    settings = TEACHERS.of(name)(initialisation=initialisation, **QUICK[name])
    kind = settings.build(IMAGES)
    data, asked = (feature_records, feature_queries) if settings.inputs == "features" else (records, queries)
    states = dict(kind.train(data, range(5), seed=1, device=device))
    assert list(states) == list(range(5))
    for group in ([0, 1], [4], [2, 3]):
        for teacher, state in kind.train(data, group, seed=1, device=device):
            assert state.keys() == states[teacher].keys()
            for entry, value in state.items():
                if settings.shares_passes:  # equal within floating point
                    np.testing.assert_allclose(value, states[teacher][entry], atol=2e-3)
                else:
                    assert value.tobytes() == states[teacher][entry].tobytes()
    inputs = data.inputs.copy()
    record = int(np.flatnonzero(data.assignment == 2)[0])
    inputs[record] = inputs[record][..., ::-1]
    changed = dict(kind.train(Records(inputs, data.labels, data.assignment, 3), range(5), seed=1, device=device))
    for teacher in range(5):
        same = all(np.array_equal(changed[teacher][entry], states[teacher][entry]) for entry in states[teacher])
        assert same == (teacher != 2)
    votes = kind.vote(states.values(), asked, device=device)
    assert votes.shape == (60, 5)
    assert np.array_equal(votes[:, [3]], kind.vote([states[3]], asked, device=device))


@pytest.mark.parametrize("name", TEACHERS.names())
def test_every_kind_is_built_from_its_defaults(name):
    settings = TEACHERS.of(name)(**NEEDED.get(name, {}))
    assert settings == TEACHERS.of(name)(**settings.model_dump(mode="json"))
    kind = settings.build(IMAGES)
    assert kind.least >= 0
    assert kind.block > 0
    assert settings.voters(5) == 5


def test_an_unknown_kind_is_named_with_the_known():
    known = "averaged, estimator, finetune, linear, prompt, scratch"
    with pytest.raises(SettingError, match=rf"there is no 'forest'\. Known: {known}"):
        TEACHERS.of("forest")
