"""Properties of every kind of teacher: the interface, fallback votes, memory."""

import logging
from typing import get_args

import numpy as np
import pytest
import torch

from terrine.errors import InputError
from terrine.models.architecture import build_backbone
from terrine.teachers.base import TEACHERS, TeacherContext
from terrine.teachers.ensemble import fallback_votes
from terrine.teachers.memory import is_out_of_memory, train_within_memory
from terrine.teachers.records import Records, count_teachers_missing_class, teacher_rows, vote_type
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
    for teacher, rows in zip((4, 0, 5), teacher_rows(assignment, [4, 0, 5]), strict=True):
        assert rows.tolist() == [record for record in range(50) if assignment[record] == teacher]
    with pytest.raises(InputError, match="Teacher 6 has no record"):
        teacher_rows(assignment, [6])


def test_teachers_that_never_saw_a_class_are_counted():
    generator = np.random.default_rng(0)
    labels, assignment = generator.integers(0, 4, 40), generator.integers(0, 7, 40)
    expected = sum(len(set(labels[assignment == teacher])) < 4 for teacher in range(7))
    assert 0 < expected < 7
    assert count_teachers_missing_class(labels, assignment, 7, 4) == expected


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
    """Only the teacher's records matter; the state is the same in every group; batches of votes are fixed."""
    settings = TEACHERS.of(name)(initialisation=initialisation, **QUICK[name])
    kind = settings.build(IMAGES)
    data, queried = (feature_records, feature_queries) if settings.inputs == "features" else (records, queries)
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
    votes = kind.vote(states.values(), queried, device=device)
    assert votes.shape == (60, 5)
    assert np.array_equal(votes[:, [3]], kind.vote([states[3]], queried, device=device))


@pytest.mark.parametrize("name", TEACHERS.names())
def test_every_kind_is_built_from_its_defaults(name):
    settings = TEACHERS.of(name)(**NEEDED.get(name, {}))
    assert settings == TEACHERS.of(name)(**settings.model_dump(mode="json"))
    kind = settings.build(IMAGES)
    assert kind.min_records >= 0
    assert kind.block > 0
    assert settings.voters(5) == 5


def test_a_vote_is_a_function_of_seed_teacher_and_query_whoever_else_is_asked():
    whole = fallback_votes(range(8), 50, 10, seed=3)
    assert whole.shape == (50, 8)
    assert whole.dtype == np.uint8
    some = fallback_votes([6, 1], 40, 10, seed=3)
    assert some.tolist() == [[int(whole[query, teacher]) for teacher in (6, 1)] for query in range(40)]
    assert not np.array_equal(whole, fallback_votes(range(8), 50, 10, seed=4))
    assert len({column.tobytes() for column in whole.T}) == 8


@pytest.mark.parametrize("classes", [2, 10, 300])
def test_votes_are_spread_evenly_over_the_classes(classes):
    votes = fallback_votes(range(200), 1000, classes, seed=0)
    expected = votes.size / classes
    # Seven standard deviations of a count; the seed is fixed.
    assert np.abs(np.bincount(votes.ravel(), minlength=classes) - expected).max() < 7 * np.sqrt(expected)
    assert votes.max() == classes - 1


def test_no_query_and_no_teacher_give_no_votes():
    assert fallback_votes([], 3, 4, seed=0).shape == (3, 0)
    assert fallback_votes([1], 0, 4, seed=0).shape == (0, 1)


class Machine:
    """Trains teachers one after the other, and runs out in any part of more than `room` teachers, before its last."""

    def __init__(self, room: int, error: Exception) -> None:
        self.room, self.error = room, error
        self.parts: list[list[int]] = []

    def train(self, teachers):
        self.parts.append(list(teachers))
        for position, teacher in enumerate(teachers):
            if position >= self.room:
                raise self.error
            yield teacher, {"number": np.array([teacher])}


def run(machine, teachers, public=True):
    kept = []
    train_within_memory(
        machine.train,
        teachers,
        lambda teacher, state: kept.append((teacher, int(state["number"][0]))),
        public=public,
    )
    return kept


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")


@pytest.mark.parametrize("error", [MemoryError(), torch.cuda.OutOfMemoryError("CUDA out of memory"), CPU])
def test_a_group_that_does_not_fit_is_halved_without_what_it_finished_and_said_so(error, caplog):
    machine = Machine(2, error)
    with caplog.at_level(logging.WARNING):
        kept = run(machine, range(7))
    assert sorted(kept) == [(teacher, teacher) for teacher in range(7)]
    assert machine.parts == [[0, 1, 2, 3, 4, 5, 6], [2, 3, 4], [4], [5, 6]]
    assert "a group of 7 teachers" in caplog.text
    assert "groups of 3 and 2" in caplog.text


def test_one_teacher_that_is_too_large_alone_is_an_error_with_its_number():
    machine = Machine(0, MemoryError("no room"))
    with pytest.raises(MemoryError, match=r"Teacher 3 does not fit into memory \(no room\)"):
        run(machine, [3, 4])
    assert machine.parts == [[3, 4], [3]]


def test_of_private_records_neither_the_log_nor_the_error_has_a_number(caplog):
    with caplog.at_level(logging.INFO), pytest.raises(MemoryError, match=r"A teacher does not fit") as caught:
        run(Machine(0, CPU), range(4), public=False)
    assert not caplog.records
    assert not any(character.isdigit() for character in str(caught.value))
    assert caught.value.__context__ is caught.value.__cause__ is None


def test_what_was_finished_before_is_kept_when_a_later_teacher_fails():
    kept = []
    with pytest.raises(MemoryError, match="Teacher 1 does not fit"):
        train_within_memory(_second_fails, [0, 1], lambda teacher, state: kept.append(teacher), public=True)
    assert kept == [0]


def _second_fails(teachers):
    for teacher in teachers:
        if teacher == 1:
            raise MemoryError
        yield teacher, {}


def test_other_errors_pass_through_and_are_not_tried_again():
    machine = Machine(1, InputError("a record is not finite"))
    with pytest.raises(InputError, match="not finite"):
        run(machine, range(4))
    assert len(machine.parts) == 1


def test_only_allocation_errors_count():
    assert is_out_of_memory(CPU)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_torch_really_says_so_when_the_cpu_has_no_room():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
