"""The stages: which tasks each consists of, and in what order.

`dvc repro` gives every stage a process of its own, so each stage imports its own tasks and no other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.execution import Executor, InProcess, executor
from tasks.config.presets import resolve
from tasks.runtime import timing
from tasks.runtime.run import Run, open_run, refuse_transcription, write_parameters

Stages = Mapping[str, Callable[[Run, Executor], None]]
"""What each stage does, in order."""


def over_groups(
    run: Run, execute: Executor, task: Any, groups: Sequence[range], *arguments: Any, name: str = ""
) -> None:
    """Call task(run, *arguments, group) for every group of teachers, each in its place, as `name` and who they are."""
    calls = [(execute.place(run, part), *arguments, group) for part, group in enumerate(groups)]
    execute.map(task, calls, [f"{name}{group.start}-{group.stop - 1}" for group in groups])


def _dataset(run: Run, execute: Executor) -> None:
    from tasks.pipeline import dataset

    execute.run(dataset.prepare_dataset, run)


def _partition(run: Run, execute: Executor) -> None:
    from tasks.pipeline import partition

    execute.run(partition.deal_records, run)


def _synthesize(run: Run, execute: Executor) -> None:
    from tasks.pipeline import synthesize

    draws = synthesize.plan(run)
    names = [f"{draw.purpose} {draw.kind} {draw.first}" for draw in draws]
    execute.map(synthesize.draw_shard, [(execute.place(run, part), draw) for part, draw in enumerate(draws)], names)
    execute.run(synthesize.assemble_images, run, draws)


def _pretrain(run: Run, execute: Executor) -> None:
    from tasks.pipeline import pretrain

    execute.run(pretrain.pretrain_backbone, run)


def _average(run: Run, execute: Executor) -> None:
    from tasks.pipeline.averaging.files import nothing_averaged, rounds

    if not rounds(run):
        execute.run(nothing_averaged, run)
        return
    from tasks.pipeline import teach
    from tasks.pipeline.averaging import rounds as average

    groups = average.groups(run)
    execute.run(average.check_budget, run)
    execute.run(teach.extract_features, run)
    execute.run(average.release_centre, run)
    for number in range(rounds(run)):
        over_groups(run, execute, average.local_steps, groups, number, name=f"round {number + 1}, ")
        execute.run(average.combine, run, number, groups)
    execute.run(average.collect_averages, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks.pipeline import teach

    execute.run(teach.extract_features, run)
    over_groups(run, execute, teach.train_group, teach.groups(run))
    execute.run(teach.collect_teachers, run)


def _vote(run: Run, execute: Executor) -> None:
    from tasks.pipeline import vote

    execute.run(vote.collect_votes, run)


def _aggregate(run: Run, execute: Executor) -> None:
    from tasks.pipeline import aggregate

    execute.run(aggregate.release_answers, run)


def _student(run: Run, execute: Executor) -> None:
    from tasks.pipeline import student

    execute.run(student.train_student, run)


def _evaluate(run: Run, execute: Executor) -> None:
    from tasks.pipeline import evaluate

    execute.run(evaluate.evaluate_student, run)


def _distance(run: Run, execute: Executor) -> None:
    from tasks.pipeline import distance

    execute.run(distance.measure_distance, run)


def _report(run: Run, execute: Executor) -> None:
    from tasks.pipeline import report, tracking

    execute.run(report.write_report, run)
    execute.run(tracking.log_run, run)


STAGES: Stages = {
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


def run_through(run: Run, first: str, last: str, stages: Stages = STAGES) -> None:
    """Run the stages from `first` to `last` in this process, without DVC and without a server: for runs apart."""
    if stages is STAGES:
        refuse_transcription(run.name, run.params)
    names = list(stages)
    for stage in names[names.index(first) : names.index(last) + 1]:
        stages[stage](run, InProcess())


def run_stage(root: Path, name: str, stage: str, stages: Stages = STAGES) -> None:
    """Run one stage of a run, wherever we are: inside a flow or as a DVC command."""
    begins = stage == "parameters"
    run = Run(root, name, resolve(root, name)) if begins else open_run(root, name)
    if stages is STAGES:
        refuse_transcription(name, run.params)
    if begins:
        write_parameters(root, name)
        return
    with timing.measured(run, stage):
        stages[stage](run, executor())
