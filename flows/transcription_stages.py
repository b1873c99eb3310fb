"""The stages of a transcription (transcribe/dvc.yaml): which tasks each consists of, and in what order.

As in `flows.stages`, each stage imports its own tasks and no other's.
"""

from __future__ import annotations

from typing import Any

from flows import stages
from flows.execution import Executor
from flows.stages import Stages, over_groups
from tasks.runtime.run import Run


def _partition(run: Run, execute: Executor) -> None:
    from tasks.transcription import teach

    execute.run(teach.deal_clients, run)


def _labels(run: Run, execute: Executor) -> None:
    from tasks.transcription import teach

    execute.run(teach.respond, run)


def _start(run: Run, execute: Executor) -> None:
    from tasks.transcription import start

    execute.run(start.prepare_start, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks.transcription import clients, teach

    over_groups(run, execute, teach.train_clients, clients.groups(run))
    execute.run(teach.collect_clients, run)


def _transcribe(run: Run, execute: Executor) -> None:
    from tasks.transcription import session as tasks

    session = tasks.Session(run)
    try:
        execute.run(tasks.begin, session)
        if session.fans_out:
            while session.unfinished:
                if session.waiting:
                    _ask_the_clients(session, execute)
                execute.run(tasks.learn, session)
        else:
            execute.run(tasks.transcribe_here, session)
        execute.run(tasks.finish, session)
    finally:
        session.abandon()


def _ask_the_clients(session: Any, execute: Executor) -> None:
    from tasks.transcription import session as tasks

    execute.run(tasks.pose, session)
    number = session.loop.iteration
    over_groups(session.run, execute, tasks.ask, session.groups, session.folder, number, name=f"{number + 1}, ")


def _report(run: Run, execute: Executor) -> None:
    from tasks.transcription import report

    execute.run(report.write_report, run)
    execute.run(report.log_run, run)


STAGES: Stages = {
    "dataset": stages.STAGES["dataset"],
    "partition": _partition,
    "labels": _labels,
    "start": _start,
    "teach": _teach,
    "transcribe": _transcribe,
    "evaluate": stages.STAGES["evaluate"],
    "report": _report,
}


def run_through(run: Run, first: str, last: str) -> None:
    """Run the stages from `first` to `last` in this process: see `flows.stages.run_through`."""
    stages.run_through(run, first, last, STAGES)
