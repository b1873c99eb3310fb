"""The stages: which tasks each consists of, and in what order.

`dvc repro` gives every stage a process of its own, so each stage imports its own tasks and no other's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flows.execution import Executor, InProcess, executor
from tasks import timing
from tasks.run import Run, open_run, write_parameters


def _dataset(run: Run, execute: Executor) -> None:
    from tasks import dataset

    execute.run(dataset.prepare_dataset, run)


def _partition(run: Run, execute: Executor) -> None:
    from tasks import partition

    execute.run(partition.deal_records, run)


def _synthesize(run: Run, execute: Executor) -> None:
    from tasks import synthesize

    draws = synthesize.plan(run)
    names = [f"{draw.purpose} {draw.kind} {draw.first}" for draw in draws]
    execute.map(synthesize.draw_shard, [(execute.place(run, part), draw) for part, draw in enumerate(draws)], names)
    execute.run(synthesize.assemble_images, run, draws)


def _pretrain(run: Run, execute: Executor) -> None:
    from tasks import pretrain

    execute.run(pretrain.pretrain_backbone, run)


def _average(run: Run, execute: Executor) -> None:
    from tasks import average, teach

    parties = range(run.params.partition.teachers)
    size = run.params.teachers.per_task
    groups = [parties[first : first + size] for first in range(0, len(parties), size)]
    if average.rounds(run):
        execute.run(average.check_budget, run)
        execute.run(teach.extract_features, run)
        execute.run(average.release_centre, run)
    for number in range(average.rounds(run)):
        names = [f"round {number + 1}, {group.start}-{group.stop - 1}" for group in groups]
        calls = [(execute.place(run, part), number, group) for part, group in enumerate(groups)]
        execute.map(average.local_steps, calls, names)
        execute.run(average.combine, run, number, groups)
    execute.run(average.collect_averages, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks import teach

    execute.run(teach.extract_features, run)
    groups = teach.groups(run)
    names = [f"{group.start}-{group.stop - 1}" for group in groups]
    execute.map(teach.train_group, [(execute.place(run, part), group) for part, group in enumerate(groups)], names)
    execute.run(teach.collect_teachers, run)


def _vote(run: Run, execute: Executor) -> None:
    from tasks import vote

    execute.run(vote.collect_votes, run)


def _aggregate(run: Run, execute: Executor) -> None:
    from tasks import aggregate

    execute.run(aggregate.release_answers, run)


def _student(run: Run, execute: Executor) -> None:
    from tasks import student

    execute.run(student.train_student, run)


def _evaluate(run: Run, execute: Executor) -> None:
    from tasks import evaluate

    execute.run(evaluate.evaluate_student, run)


def _distance(run: Run, execute: Executor) -> None:
    from tasks import distance

    execute.run(distance.measure_distance, run)


def _report(run: Run, execute: Executor) -> None:
    from tasks import report, tracking

    execute.run(report.write_report, run)
    execute.run(tracking.log_run, run)


STAGES: dict[str, Callable[[Run, Executor], None]] = {
    "dataset": _dataset,
    "partition": _partition,
    "synthesize": _synthesize,
    "pretrain": _pretrain,
    "average": _average,
    "teach": _teach,
    "vote": _vote,
    "aggregate": _aggregate,
    "student": _student,
    "evaluate": _evaluate,
    "distance": _distance,
    "report": _report,
}


def run_through(run: Run, first: str, last: str) -> None:
    """Run the stages from `first` to `last` in this process, without DVC and without a server: for runs apart."""
    names = list(STAGES)
    for stage in names[names.index(first) : names.index(last) + 1]:
        STAGES[stage](run, InProcess())


def run_stage(root: Path, name: str, stage: str) -> None:
    """Run one stage of a run, wherever we are: inside a flow or as a DVC command."""
    if stage == "parameters":
        write_parameters(root, name)
        return
    run = open_run(root, name)
    with timing.measured(run, stage):
        STAGES[stage](run, executor())
