"""kill -9 in the middle: what was finished stays, and the end is the same to the byte."""

import os
import signal
import subprocess
import sys

import pytest

from tasks.run import open_run
from tasks.teach import groups, work_folder
from tests.flows.test_pipeline import _environment

KILL_AT = """
import os, signal, sys
import tasks.teach as teach
plain, calls = teach.train_heads, []
def train_heads(*arguments, **options):
    calls.append(arguments[3])
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **options)
teach.train_heads = train_heads
from flows.stages import run_stage
from pathlib import Path
run_stage(Path(sys.argv[1]), "small", "teach")
"""

COUNT = """
import sys
import tasks.teach as teach
plain = teach.train_heads
def train_heads(*arguments, **options):
    print("trained", arguments[3][0])
    return plain(*arguments, **options)
teach.train_heads = train_heads
teach.features_in_batches = None  # a second pass over the private images would fail
from flows.stages import run_stage
from pathlib import Path
run_stage(Path(sys.argv[1]), "small", "teach")
"""


@pytest.mark.slow
def test_teaching_goes_on_from_the_last_finished_group(project):
    from flows.stages import run_stage

    for stage in ("parameters", "dataset", "partition", "synthesize", "pretrain", "teach"):
        run_stage(project, "small", stage)
    run = open_run(project, "small")
    expected = (run.folders.teachers / "heads.safetensors").read_bytes()
    (run.folders.teachers / "heads.safetensors").unlink()

    killed = subprocess.run([sys.executable, "-c", KILL_AT, str(project)], env=_environment(project), check=False)
    assert killed.returncode == -signal.SIGKILL
    finished = sorted(path.name for path in work_folder(run).glob("group-*"))
    assert len(finished) == 2
    assert not (run.folders.teachers / "heads.safetensors").exists()

    resumed = subprocess.run(
        [sys.executable, "-c", COUNT, str(project)],
        env=_environment(project),
        check=True,
        capture_output=True,
        text=True,
    )
    trained = [line for line in resumed.stdout.splitlines() if line.startswith("trained")]
    assert trained == [f"trained {group.start}" for group in groups(run)[2:]]
    assert (run.folders.teachers / "heads.safetensors").read_bytes() == expected
    assert not os.path.exists(work_folder(run))
