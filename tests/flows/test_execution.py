"""Tasks are carried out in a flow or in this process; failures are told together; arguments are small."""

import time

import cloudpickle
import pytest

from flows.execution import Executor, executor
from tasks.config.params import validate
from tasks.config.sections import Runner
from tasks.runtime.run import Run
from tasks.runtime.step import step
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


def map_in_flow(settings, task, calls, labels):
    from prefect import flow

    @flow
    def parts():
        with executor(settings, "cpu", fans_out=True) as execute:
            assert execute._runner is not None
            execute.map(task, calls, labels)

    parts()


def test_all_parts_are_tried_and_the_failed_ones_named():
    with pytest.raises(
        RuntimeError,
        match=r"2 of 5 parts of 'odd numbers fail' failed \(odd numbers fail 1: RuntimeError: number 1; .*3: .*ber 3",
    ):
        Executor().map(work, [(number,) for number in range(5)], names(range(5)))
    assert sorted(set(CALLS)) == [0, 1, 2, 3, 4]
    assert CALLS.count(1) == 2


def test_an_error_of_the_user_is_not_retried_and_stays_one():
    with pytest.raises(InputError, match="record 7 is no image"):
        Executor().map(refuse, [(7,)], ["7"])
    assert CALLS == [7]


def test_in_a_flow_the_same_holds(prefect_server):
    threads = Runner(kind="threads", workers=2)
    with pytest.raises(RuntimeError, match=r"1 of 3 parts of 'odd numbers fail' failed \(odd numbers fail 3: "):
        map_in_flow(threads, work, [(2,), (3,), (4,)], ["2", "3", "4"])
    assert sorted(CALLS) == [2, 3, 3, 4]
    CALLS.clear()
    with pytest.raises(InputError, match="record 7 is no image"):
        map_in_flow(threads, refuse, [(7,)], ["7"])
    assert CALLS == [7]


def test_what_is_submitted_in_a_flow_is_no_more_than_run_and_range(prefect_server, tmp_path, monkeypatch):
    from prefect.task_runners import ThreadPoolTaskRunner

    submitted = []
    plain = ThreadPoolTaskRunner.submit

    def submit(self, task, parameters, *arguments, **options):
        submitted.append(len(cloudpickle.dumps(parameters)))
        return plain(self, task, parameters, *arguments, **options)

    monkeypatch.setattr(ThreadPoolTaskRunner, "submit", submit)
    run = Run(tmp_path, "small", validate({"data": {"public_benchmark": True}}))
    map_in_flow(Runner(kind="threads", workers=1), take, [(run, range(7)), (run, range(7, 14))], ["0-6", "7-13"])
    assert len(submitted) == 2
    assert max(submitted) < 10_000


@step("take a run")
def take(run, teachers):
    time.sleep(0)
