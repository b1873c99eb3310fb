"""kill -9 in the middle: what was finished stays, and the end is the same to the byte."""

import os
import shutil
import signal
from functools import partial

import pytest

from benchmarks.reproduce import main as reproduce
from flows import sweep
from flows.stages import pipeline_of, run_stage
from tasks.artefacts.teachers import teaching_folder
from tasks.config.presets import derive
from tasks.pipeline import teach
from tasks.pipeline.teach import groups
from tasks.runtime.accounts import open_account
from tasks.runtime.run import open_run
from tasks.runtime.store import Folders
from terrine.pretraining import simclr
from terrine.teachers import linear
from tests.flows.conftest import forked, set_small
from tests.processes import arm


def shared_results(root, stage):
    return list((root / "data" / "private" / "shared").glob(f"{stage}-*"))


def ended(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.slow
def test_teaching_goes_on_from_the_last_finished_group(finished, monkeypatch):
    run = open_run(finished, "small")
    heads = run.folders.teachers / "heads.safetensors"
    expected = heads.read_bytes()
    heads.unlink()
    for kept in shared_results(finished, "teach"):
        shutil.rmtree(kept)

    def teach_until_killed():
        arm("terrine.teachers.linear", "train_heads", "before", 3)
        run_stage(finished, "small", "teach")

    assert ended(forked(teach_until_killed)) == -signal.SIGKILL
    made = sorted(path.name for path in teaching_folder(run).glob("group-*"))
    assert len(made) == 2
    assert not heads.exists()

    plain, trained = linear.train_heads, []
    monkeypatch.setattr(
        linear, "train_heads", lambda *given, **options: (trained.append(given[3][0]), plain(*given, **options))[1]
    )
    monkeypatch.setattr(teach, "private_features", None)  # a second pass over the private images would fail
    run_stage(finished, "small", "teach")
    assert trained == [group.start for group in groups(run)[2:]]
    assert heads.read_bytes() == expected
    assert not os.path.exists(teaching_folder(run))


@pytest.mark.slow
def test_pretraining_goes_on_from_the_last_checkpoint(project, monkeypatch):
    images = {"count": 24, "sources": {"gaussian": 1}}
    pretraining = {"images": images, "epochs": 2, "batch": 8, "projection": 8, "checkpoint_minutes": 1e-9}
    set_small(project, backbone={"kind": "small_cnn"}, pretraining=pretraining)
    for stage in ("parameters", "synthesize", "pretrain"):
        run_stage(project, "small", stage)
    run = open_run(project, "small")
    (shared,) = (project / "data" / "public" / "shared").glob("backbone-*")
    expected = (run.folders.backbone / "backbone.safetensors").read_bytes()
    shutil.rmtree(shared)
    shutil.rmtree(run.folders.backbone)

    def pretrain_until_killed():
        arm("terrine.pretraining.simclr", "write_checkpoint", "after", 2)
        run_stage(project, "small", "pretrain")

    assert ended(forked(pretrain_until_killed)) == -signal.SIGKILL
    assert not (run.folders.backbone / "backbone.safetensors").exists()

    plain, steps = simclr.nt_xent, []
    monkeypatch.setattr(simclr, "nt_xent", lambda *given, **options: (steps.append(1), plain(*given, **options))[1])
    run_stage(project, "small", "pretrain")
    assert len(steps) == 2 * 3 - 2
    assert (run.folders.backbone / "backbone.safetensors").read_bytes() == expected


@pytest.mark.slow
def test_a_table_killed_after_a_release_goes_on_with_it_and_pays_once(finished, monkeypatch):
    monkeypatch.setattr(sweep, "make_run", partial(sweep.make_run, with_server=False))
    other = ["aggregation.sigma=7"]
    table = partial(reproduce, ["small", "--seeds", "1", "--set", *other])

    def until_killed():
        arm(
            "flows.stages",
            "commit",
            "before",
            pipeline_of(open_run(finished, "small").params).names.index("student"),
        )
        table()

    assert ended(forked(until_killed)) == -signal.SIGKILL
    folders = Folders(finished, derive(finished, "small", other))
    drawn = {path.name: path.read_bytes() for path in folders.answers.iterdir()}
    assert not folders.student.exists()
    table()
    assert folders.finished
    assert {path.name: path.read_bytes() for path in folders.answers.iterdir()} == drawn
    ledger, dataset = open_account(open_run(finished, folders.run))
    assert len(ledger.events(dataset)) == 2  # the one of `small`, and this one
    assert [len(shared_results(finished, stage)) for stage in ("teach", "vote")] == [1, 1]  # those of `small`
