"""Two datasets that differ under one name, whoever carries the teachers' tasks."""

import pytest
from prefect import flow

from flows.execution import executor
from flows.runners import task_runner
from flows.stages import carry_out, run_through
from tasks.config.runner import Runner
from tasks.pipeline.graph import MAIN
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.kinds import KINDS
from tests.neighbours.runs import outcome, settle

FORM = FORMATS["npz with ids"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes", "dask"])
def test_a_record_moves_one_teacher_whoever_carries_them(tmp_path, prefect_server, kind):
    world = worlds.base()
    changed = worlds.STEPS["record"]["replaced"].make(world, "record", "r211", FORM.positional, FORM.classes)
    runs = [
        settle(tmp_path / str(number), FORM, data, **KINDS["linear, adam"])
        for number, data in enumerate((world, changed))
    ]

    @flow(task_runner=task_runner(Runner(kind=kind, workers=2)), validate_parameters=False)
    def teach_both():
        for run in runs:
            carry_out(MAIN["teach"], run, executor())

    for run in runs:
        run_through(run, "dataset", "average")
    teach_both()
    for run in runs:
        run_through(run, "vote", "vote")
    before, after = map(outcome, runs)
    assert len(before.dealt(after)) == 1
    assert before.moved(after) == before.dealt(after)
