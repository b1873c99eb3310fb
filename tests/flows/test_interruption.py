"""kill -9 in the middle: what was finished stays, and the end is the same to the byte."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from flows.stages import run_stage
from tasks.pipeline import teach
from tasks.pipeline.teach import groups, work_folder
from tasks.runtime.run import open_run
from terrine.pretraining import simclr
from terrine.teachers import linear
from tests.flows.conftest import environment_of, set_small

KILL_AT = """
import os, signal, sys
import terrine.teachers.linear as linear
plain, calls = linear.train_heads, []
def train_heads(*arguments, **options):
    calls.append(arguments[3])
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **options)
linear.train_heads = train_heads
from flows.stages import run_stage
from pathlib import Path
run_stage(Path(sys.argv[1]), "small", "teach")
"""


@pytest.mark.slow
def test_teaching_goes_on_from_the_last_finished_group(project, monkeypatch):
    for stage in ("parameters", "dataset", "partition", "synthesize", "pretrain", "teach"):
        run_stage(project, "small", stage)
    run = open_run(project, "small")
    expected = (run.folders.teachers / "heads.safetensors").read_bytes()
    (run.folders.teachers / "heads.safetensors").unlink()

    killed = subprocess.run([sys.executable, "-c", KILL_AT, str(project)], env=environment_of(project), check=False)
    assert killed.returncode == -signal.SIGKILL
    finished = sorted(path.name for path in work_folder(run).glob("group-*"))
    assert len(finished) == 2
    assert not (run.folders.teachers / "heads.safetensors").exists()

    plain, trained = linear.train_heads, []
    monkeypatch.setattr(
        linear, "train_heads", lambda *given, **options: (trained.append(given[3][0]), plain(*given, **options))[1]
    )
    monkeypatch.setattr(teach, "private_features", None)  # a second pass over the private images would fail
    run_stage(project, "small", "teach")
    assert trained == [group.start for group in groups(run)[2:]]
    assert (run.folders.teachers / "heads.safetensors").read_bytes() == expected
    assert not os.path.exists(work_folder(run))


KILL_AFTER_A_CHECKPOINT = """
import os, signal, sys
import terrine.pretraining.simclr as simclr
plain, calls = simclr.write_checkpoint, []
def write_checkpoint(*arguments):
    plain(*arguments)
    calls.append(arguments[0])
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
simclr.write_checkpoint = write_checkpoint
from flows.stages import run_stage
from pathlib import Path
run_stage(Path(sys.argv[1]), "small", "pretrain")
"""


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

    program = [sys.executable, "-c", KILL_AFTER_A_CHECKPOINT, str(project)]
    killed = subprocess.run(program, env=environment_of(project), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (run.folders.backbone / "backbone.safetensors").exists()

    plain, steps = simclr.nt_xent, []
    monkeypatch.setattr(simclr, "nt_xent", lambda *given, **options: (steps.append(1), plain(*given, **options))[1])
    run_stage(project, "small", "pretrain")
    assert len(steps) == 2 * 3 - 2
    assert (run.folders.backbone / "backbone.safetensors").read_bytes() == expected
