"""Tasks are carried out in a flow or in this process, and failures are told together."""

import pytest

from flows.execution import InFlow, InProcess, executor, task_runner
from tasks.params import Runner
from tasks.step import step
from terrine.errors import InputError

CALLS: list[int] = []


@step("odd numbers fail", retries=1)
def work(number):
    CALLS.append(number)
    if number % 2:
        raise RuntimeError(f"number {number}")


@step("user's fault", retries=2)
def refuse(number):
    CALLS.append(number)
    raise InputError(f"record {number} is no image")


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()


def names(numbers):
    return [str(number) for number in numbers]


def test_outside_a_flow_tasks_run_in_this_process():
    assert isinstance(executor(), InProcess)


def test_all_parts_are_tried_and_the_failed_ones_named():
    with pytest.raises(RuntimeError, match=r"2 part\(s\).*1: number 1; 3: number 3.*run again"):
        InProcess().map(work, [(number,) for number in range(5)], names(range(5)))
    assert sorted(set(CALLS)) == [0, 1, 2, 3, 4]
    assert CALLS.count(1) == 2


def test_an_error_of_the_user_is_not_retried_and_stays_one():
    with pytest.raises(InputError, match="record 7 is no image"):
        InProcess().map(refuse, [(7,)], ["7"])
    assert CALLS == [7]


def test_in_a_flow_the_same_holds(prefect_server):
    from prefect import flow

    @flow(task_runner=task_runner(Runner(kind="threads", workers=2)))
    def parts(task, numbers):
        assert isinstance(executor(), InFlow)
        executor().map(task, [(number,) for number in numbers], names(numbers))

    with pytest.raises(RuntimeError, match=r"1 part\(s\).*3: number 3"):
        parts(work, [2, 3, 4])
    assert sorted(set(CALLS)) == [2, 3, 4]
    CALLS.clear()
    with pytest.raises(InputError, match="record 7 is no image"):
        parts(refuse, [7])
    assert CALLS == [7]
