"""Execution of a run's stages.

`dvc repro` starts a process for every stage, so a stage's tasks are imported only when it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.execution import Executor, executor
from flows.terminal import SHOWN
from tasks.config.presets import resolve
from tasks.pipeline.graph import MAIN
from tasks.pipeline.mlflow_runs import tracked
from tasks.runtime.accounts import budget_explained
from tasks.runtime.approval import require_approval
from tasks.runtime.code_digest import write_code
from tasks.runtime.locks import making, when_alone
from tasks.runtime.parameters import write_parameters
from tasks.runtime.progress import CURRENT, measured, progress_reporter
from tasks.runtime.reuse import kept_folder, reuse_outputs, share_outputs
from tasks.runtime.run import Run, open_run
from tasks.runtime.stage_graph import PARAMETERS, Pipeline, Stage, load
from tasks.runtime.staleness import check_records
from tasks.runtime.store import Folders, project_leftovers, remove_leftovers, run_leftovers
from tasks.runtime.versioning import changed_stages, commit, is_changed, refresh, select
from tasks.transcription.graph import TRANSCRIPTION, pipeline_of
from terrine.errors import ArtefactError


def over_groups(
    run: Run, execute: Executor, task: Any, groups: Sequence[range], *arguments: Any, name: str = ""
) -> None:
    """Call task(run, *arguments, group) for every group of teachers, each on its device.

    Args:
        run: The run.
        execute: Executor that runs the calls.
        task: The task.
        groups: Groups of teachers.
        *arguments: Arguments between the run and the group.
        name: Prefix of the names of the task runs.
    """
    calls = [(execute.place(run, part), *arguments, group) for part, group in enumerate(groups)]
    execute.map(task, calls, [f"{name}{group.start}-{group.stop - 1}" for group in groups])


def _synthesize(run: Run, execute: Executor) -> None:
    from tasks.pipeline import synthesize

    draws = synthesize.plan(run)
    names = [f"{draw.purpose} {draw.kind} {draw.first}" for draw in draws]
    execute.map(synthesize.draw_shard, [(execute.place(run, part), draw) for part, draw in enumerate(draws)], names)
    execute.run(synthesize.assemble_images, run, draws)


def _average(run: Run, execute: Executor) -> None:
    from tasks.artefacts.averages import nothing_averaged, rounds

    if not rounds(run):
        execute.run(nothing_averaged, run)
        return
    from tasks.pipeline import average, teach

    groups = average.groups(run)
    execute.run(average.check_budget, run)
    execute.run(teach.extract_features, run)
    execute.run(average.release_centre, run)
    report = progress_reporter(run.name, "average")
    for number in range(rounds(run)):
        report(number / rounds(run), f"round {number + 1} of {rounds(run)}")
        over_groups(run, execute, average.local_steps, groups, number, name=f"round {number + 1}, ")
        execute.run(average.combine, run, number, groups)
    execute.run(average.collect_averages, run)


def _teach(run: Run, execute: Executor) -> None:
    from tasks.artefacts.released import sums_over_records
    from tasks.pipeline import teach

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
                    over_groups(run, execute, tasks.contribute, session.groups, *where, name=f"{number + 1}, ")
                execute.run(tasks.learn, session)
        else:
            execute.run(tasks.transcribe_in_process, session)
        execute.run(tasks.finish, session)
    finally:
        session.abandon()


_BODIES: Mapping[Stage, Callable[[Run, Executor], None]] = {
    MAIN["synthesize"]: _synthesize,
    MAIN["average"]: _average,
    MAIN["teach"]: _teach,
    MAIN["vote"]: _vote,
    TRANSCRIPTION["teach"]: _teach_clients,
    TRANSCRIPTION["transcribe"]: _transcribe,
}
"""Functions for stages that do more than call each task with the run."""


def run_tasks(stage: Stage, run: Run, execute: Executor) -> None:
    """Run the tasks of a stage. If it reads private records, first check that they match the run's settings."""
    if "private/" in stage.needs:
        check_records(run)
    with budget_explained(run):
        if stage in _BODIES:
            _BODIES[stage](run, execute)
            return
        for task in stage.tasks.split():
            execute.run(load(task), run)


def run_through(run: Run, first: str, last: str) -> None:
    """Run the stages from `first` to `last` in this process, without DVC and Prefect."""
    for stage in pipeline_of(run.params).between(first, last):
        run_tasks(stage, run, Executor())


def run_stage(root: Path, name: str, stage: str) -> None:
    """Run one stage of a run, inside or outside a Prefect flow."""
    CURRENT.begin(stage)
    if stage == PARAMETERS.name:
        run = write_parameters(root, name)
        write_code(run, pipeline_of(run.params))
        return
    run = open_run(root, name)
    known = pipeline_of(run.params)[stage]
    settings, device, fans_out = run.params.runner, run.params.device, known.fans_out(run.params)
    with measured(run, stage), executor(settings, device, fans_out=fans_out) as execute:
        if "private/" in known.needs:
            check_records(run)
        kept = kept_folder(run, known)
        if not reuse_outputs(run, known, kept):
            if known.releases:
                require_approval(run, load(known.releases)(run))
            run_tasks(known, run, execute)
            share_outputs(run, known, kept)


def run_stages(
    root: Path,
    run: str,
    run_one: Callable[[Path, str, str], None],
    logger: logging.Logger | logging.LoggerAdapter,
    *,
    selects: bool,
) -> None:
    """Run and commit every stage that DVC reports as changed.

    Other processes may run other runs of the project. Temporary files of killed processes are removed first.

    Args:
        root: The project.
        run: The name of the run.
        run_one: Function that runs a stage, called with the project, the run and the stage.
        logger: Receives a line for each stage.
        selects: Whether later commands refer to this run.
    """
    clear(root, run)
    run_one = tracked(run_one)
    with making(root, run):
        pipeline, lines = check_run(root, run), SHOWN.get()
        if selects:
            select(root, run, pipeline)
        refresh(root, run, pipeline)
        for stage in pipeline.names:
            CURRENT.begin(stage)
            if lines is not None:
                lines.begin(pipeline.names, stage)
            changed = is_changed(root, run, stage, pipeline)
            if changed:
                run_one(root, run, stage)
                commit(root, run, stage, pipeline)
            logger.info("%s %s: %s", run, stage, "finished" if changed else "unchanged")
            if lines is not None:
                lines.end(made=changed)


def clear(root: Path, run: str) -> None:
    """Remove the run's temporary files from killed processes, and the project's if no process is working in it."""
    when_alone(root, lambda: remove_leftovers(project_leftovers(root)))
    with making(root, run):
        remove_leftovers(run_leftovers(Folders(root, run)))


def is_complete(root: Path, run: str) -> bool:
    """Return whether a run is finished and DVC reports no stage as changed."""
    return Folders(root, run).finished and not changed_stages(root, run, pipeline_of(resolve(root, run)))


def rewrite_statement(root: Path, name: str) -> None:
    """Write a run's statement again with newer facts: the result of an audit or the cost of a search.

    The release is stored, so no noise is drawn and nothing is charged.

    Raises:
        ArtefactError: See `check_released`.
    """
    with making(root, name):
        check_released(root, name)
        run_stage(root, name, "aggregate")
        commit(root, name, "aggregate", pipeline_of(open_run(root, name).params))


def check_released(root: Path, name: str) -> None:
    """Check that a run's release belongs to its current settings, data and code.

    Raises:
        ArtefactError: If running the stage again would make another release.
    """
    if is_changed(root, name, "aggregate", pipeline_of(open_run(root, name).params)):
        raise ArtefactError(
            f"The release of run {name} was made with other settings, data or code than it has now. Run "
            f"`terrine run {name}` first. Nothing was released."
        )


def make_changed(root: Path, name: str, stages: Sequence[str]) -> None:
    """Run and commit the given stages that DVC reports as changed."""
    graph = pipeline_of(resolve(root, name))
    with making(root, name):
        for stage in stages:
            if is_changed(root, name, stage, graph):
                run_stage(root, name, stage)
                commit(root, name, stage, graph)


def check_run(root: Path, name: str) -> Pipeline:
    """Perform all checks that are possible before any work, and return the run's pipeline."""
    params = resolve(root, name)
    pipeline = pipeline_of(params)
    if pipeline.check is not None:
        load(pipeline.check)(Run(root, name, params))
    return pipeline
