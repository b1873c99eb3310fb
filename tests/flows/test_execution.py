"""Tasks are carried out in a flow or in this process; failures are told together; arguments are small."""

import os
import signal
import time
from pathlib import Path

import cloudpickle
import pytest

from flows.execution import InFlow, InProcess, executor
from flows.runners import task_runner
from tasks.config.params import validate
from tasks.config.runner import Runner
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


@step("groups", retries=1)
def fail_or_finish(folder, number):
    """Leave a file for every attempt; number 3 fails always, number 4 kills its process, number 5 fails once."""
    attempts = len(list(Path(folder).glob(f"{number}-*")))
    (Path(folder) / f"{number}-{attempts}").touch()
    if number == 3 or (number == 5 and attempts == 0):
        raise RuntimeError(f"attempt {attempts}")
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()


def names(numbers):
    return [str(number) for number in numbers]


def map_in_flow(settings, task, calls, labels):
    from prefect import flow

    @flow(task_runner=task_runner(settings))
    def parts():
        assert isinstance(executor(), InFlow)
        executor().map(task, calls, labels)

    parts()


def test_outside_a_flow_tasks_run_in_this_process():
    assert isinstance(executor(), InProcess)


def test_a_fan_out_of_nothing_does_nothing(prefect_server):
    map_in_flow(Runner(kind="threads"), work, [], [])
    InProcess().map(work, [], [])
    assert CALLS == []


def test_all_parts_are_tried_and_the_failed_ones_named():
    with pytest.raises(
        RuntimeError,
        match=r"2 of 5 parts of 'odd numbers fail' failed \(odd numbers fail 1: RuntimeError: number 1; .*3: .*ber 3",
    ):
        InProcess().map(work, [(number,) for number in range(5)], names(range(5)))
    assert sorted(set(CALLS)) == [0, 1, 2, 3, 4]
    assert CALLS.count(1) == 2


def test_many_failures_are_all_named_and_five_explained():
    with pytest.raises(RuntimeError, match=r"7 of 7 parts.* 9: RuntimeError: number 9; and 2 more: 11, 13\)"):
        InProcess().map(work, [(number,) for number in range(1, 15, 2)], names(range(1, 15, 2)))


def test_an_error_of_the_user_is_not_retried_and_stays_one():
    with pytest.raises(InputError, match="record 7 is no image"):
        InProcess().map(refuse, [(7,)], ["7"])
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


@pytest.mark.slow
def test_a_part_that_kills_its_process_is_reported_and_the_others_finish(prefect_server, tmp_path):
    numbers = [1, 3, 4, 5]
    # One worker at a time, for each is a process that imports for seconds: 5 is always waiting behind 4 when it dies.
    with pytest.raises(RuntimeError, match=r"2 of 4 parts of 'groups' failed \(groups 3: RuntimeError") as caught:
        map_in_flow(
            Runner(kind="processes", workers=1),
            fail_or_finish,
            [(str(tmp_path), number) for number in numbers],
            names(numbers),
        )
    assert "groups 4: its worker process was killed" in str(caught.value)
    attempts = [len(list(tmp_path.glob(f"{number}-*"))) for number in numbers]
    assert attempts[0] >= 1  # finished
    assert attempts[1] >= 2  # retried, and failed again
    assert attempts[2] == 3  # in the first pool, in a fresh one, and alone
    assert attempts[3] >= 2  # retried, and finished


def test_what_travels_to_a_worker_is_small_however_large_the_data_are(tmp_path):
    run = Run(tmp_path, "small", validate({"data": {"public_benchmark": True}}))
    before = len(cloudpickle.dumps((run, range(0, 50))))
    run.folders.dataset.mkdir(parents=True)
    (run.folders.dataset / "train_images.npy").write_bytes(bytes(10_000_000))
    assert len(cloudpickle.dumps((run, range(0, 50)))) == before < 10_000
    assert len(cloudpickle.dumps((run, range(0, 5000)))) - before < 100


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
