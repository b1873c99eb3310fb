"""What a stage does: its tasks, one after the other, or spread over whoever carries tasks.

`dvc repro` gives every stage a process of its own, so each stage imports its own tasks and no other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.execution import Executor, InProcess, executor
from tasks.config.presets import resolve
from tasks.pipeline.graph import MAIN
from tasks.runtime import timing
from tasks.runtime.accounts import budget_explained
from tasks.runtime.code import write_code
from tasks.runtime.graph import PARAMETERS, Pipeline, Stage, load
from tasks.runtime.locks import making
from tasks.runtime.origin import check_records
from tasks.runtime.parameters import write_parameters
from tasks.runtime.progress import CURRENT, progress_reporter
from tasks.runtime.run import Run, open_run
from tasks.runtime.store import Folders
from tasks.runtime.versioning import commit, is_changed
from tasks.transcription.graph import TRANSCRIPTION, pipeline_of
from terrine.errors import ArtefactError


def over_groups(
    run: Run, execute: Executor, task: Any, groups: Sequence[range], *arguments: Any, name: str = ""
) -> None:
    """Call task(run, *arguments, group) for every group of teachers, each in its place, as `name` and who they are."""
    calls = [(execute.place(run, part), *arguments, group) for part, group in enumerate(groups)]
    execute.map(task, calls, [f"{name}{group.start}-{group.stop - 1}" for group in groups])


def _synthesize(run: Run, execute: Executor) -> None:
    from tasks.pipeline import synthesize

    draws = synthesize.plan(run)
    names = [f"{draw.purpose} {draw.kind} {draw.first}" for draw in draws]
    execute.map(synthesize.draw_shard, [(execute.place(run, part), draw) for part, draw in enumerate(draws)], names)
    execute.run(synthesize.assemble_images, run, draws)


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
    report = progress_reporter("average")
    for number in range(rounds(run)):
        report(number / rounds(run), f"round {number + 1} of {rounds(run)}")
        over_groups(run, execute, average.local_steps, groups, number, name=f"round {number + 1}, ")
        execute.run(average.combine, run, number, groups)
    execute.run(average.collect_averages, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks.pipeline import teach
    from tasks.pipeline.sums import sums_over_records

    if sums_over_records(run):
        execute.run(teach.nothing_taught, run)
        return
    execute.run(teach.extract_features, run)
    over_groups(run, execute, teach.train_group, teach.groups(run))
    execute.run(teach.collect_teachers, run)


def _vote(run: Run, execute: Executor) -> None:
    from tasks.pipeline import vote

    over_groups(run, execute, vote.cast_block, vote.blocks(run))
    execute.run(vote.collect_votes, run)


def _teach_clients(run: Run, execute: Executor) -> None:
    from tasks.transcription import clients
    from tasks.transcription import teach as transcribe_teach

    over_groups(run, execute, transcribe_teach.train_clients, clients.groups(run))
    execute.run(transcribe_teach.collect_clients, run)


def _transcribe(run: Run, execute: Executor) -> None:
    from tasks.transcription import session as tasks

    session = tasks.Session(run)
    try:
        execute.run(tasks.begin, session)
        if session.fans_out:
            while session.unfinished:
                if session.waiting:
                    execute.run(tasks.pose, session)
                    number = session.loop.iteration
                    where = (session.folder, number)
                    over_groups(run, execute, tasks.ask, session.groups, *where, name=f"{number + 1}, ")
                execute.run(tasks.learn, session)
        else:
            execute.run(tasks.transcribe_here, session)
        execute.run(tasks.finish, session)
    finally:
        session.abandon()


SPREAD: Mapping[Stage, Callable[[Run, Executor], None]] = {
    MAIN["synthesize"]: _synthesize,
    MAIN["average"]: _average,
    MAIN["teach"]: _teach,
    MAIN["vote"]: _vote,
    TRANSCRIPTION["teach"]: _teach_clients,
    TRANSCRIPTION["transcribe"]: _transcribe,
}
"""Stages whose tasks are not simply called with the run, one after the other."""


def carry_out(stage: Stage, run: Run, execute: Executor) -> None:
    """Do what a stage does, by an executor; what hangs on private records, once these are known to be the run's."""
    if "private/" in stage.needs:
        check_records(run)
    with budget_explained(run):
        if stage in SPREAD:
            SPREAD[stage](run, execute)
            return
        for task in stage.tasks.split():
            execute.run(load(task), run)


def run_through(run: Run, first: str, last: str) -> None:
    """Run the stages from `first` to `last` in this process, without DVC and without a server: for runs apart."""
    for stage in pipeline_of(run.params).between(first, last):
        carry_out(stage, run, InProcess())


def run_stage(root: Path, name: str, stage: str) -> None:
    """Run one stage of a run, wherever we are: inside a flow or as a DVC command."""
    CURRENT.begin(Folders(root, name), stage)
    if stage == PARAMETERS.name:
        run = write_parameters(root, name)
        write_code(run, pipeline_of(run.params))
        return
    run = open_run(root, name)
    known = pipeline_of(run.params)[stage]
    with timing.measured(run, stage):
        carry_out(known, run, executor())


def state_anew(root: Path, name: str) -> None:
    """Write a run's statement anew, which says what was learnt since: an audit's bound, or a search's price.

    The release is stored, so that nothing is drawn or charged. Raises what `check_released` does.
    """
    with making(root, name):
        check_released(root, name)
        run_stage(root, name, "aggregate")
        commit(root, name, "aggregate", pipeline_of(open_run(root, name).params))


def check_released(root: Path, name: str) -> None:
    """Raise ArtefactError unless a run's release and statement are those of what it is now: made anew, they would be
    others."""
    if is_changed(root, name, "aggregate", pipeline_of(open_run(root, name).params)):
        raise ArtefactError(
            f"What run {name} has released was made of other settings, data or code than it has now. Make it first: "
            f"terrine run --preset {name}. Nothing was released."
        )


def make_changed(root: Path, name: str, stages: Sequence[str]) -> None:
    """Run those of some stages of a run that DVC calls changed, and commit them."""
    graph = pipeline_of(resolve(root, name))
    with making(root, name):
        for stage in stages:
            if is_changed(root, name, stage, graph):
                run_stage(root, name, stage)
                commit(root, name, stage, graph)


def begin(root: Path, name: str) -> Pipeline:
    """Return the pipeline that makes a run, once it is known that what can be refused before any work is not."""
    params = resolve(root, name)
    pipeline = pipeline_of(params)
    if pipeline.check is not None:
        load(pipeline.check)(Run(root, name, params))
    return pipeline
