"""Memory that runs out halves the group, and nothing is trained twice."""

import logging

import numpy as np
import pytest
import torch

from terrine.errors import InputError
from terrine.teachers.memory import is_out_of_memory, train_within_memory


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
    with pytest.raises(MemoryError, match=r"Teacher 3 alone does not fit into memory \(no room\)"):
        run(machine, [3, 4])
    assert machine.parts == [[3, 4], [3]]


def test_of_private_records_neither_the_log_nor_the_error_has_a_number(caplog):
    with caplog.at_level(logging.INFO), pytest.raises(MemoryError, match=r"A teacher alone does not fit") as caught:
        run(Machine(0, CPU), range(4), public=False)
    assert not caplog.records
    assert not any(character.isdigit() for character in str(caught.value))
    assert caught.value.__context__ is caught.value.__cause__ is None


def test_what_was_finished_before_is_kept_when_a_later_teacher_fails():
    kept = []
    with pytest.raises(MemoryError, match="Teacher 1 alone"):
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
