"""Ctrl-C in the middle of a run: one line, nothing left running, nothing half-written, and the next run goes on."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

HANG = """
import subprocess, sys, threading, time
from pathlib import Path
from flows.stopping import stoppable
from tasks.runtime.progress import CURRENT
from tasks.runtime.store import Folders, atomic_file, atomic_folder
STUBBORN = '''
import signal, time
for kind in (signal.SIGINT, signal.SIGTERM):
    signal.signal(kind, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
'''
folders = Folders(Path(sys.argv[1]), "small")
with stoppable():
    CURRENT.begin("teach")
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
    (folders.work / "teach-1").mkdir(parents=True)
    (folders.work / "teach-1" / "group-0.safetensors").touch()
    def write():
        with atomic_file(folders.work / "teach-1" / "group-1.safetensors"), atomic_folder(folders.teachers):
            print(child.pid, flush=True)
            time.sleep(600)
    threading.Thread(target=write).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_stage_says_one_line_leaves_nothing_running_and_keeps_what_is_finished(tmp_path, number):
    program = [sys.executable, "-c", HANG, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(program, start_new_session=True, **pipes) as process:
        child = psutil.Process(int(process.stdout.readline()))
        os.killpg(process.pid, number)  # as a terminal does, and once more
        process.send_signal(number)
        try:
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert error == "stopped in stage teach; run again to continue\n"
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    # A thread cannot be interrupted: what it was writing is removed by the next run.
    assert "data/private/small/work/teach-1/group-0.safetensors" in left
    assert "data/private/small/work/teach-1/group-1.safetensors" not in left


IN_A_FLOW = """
import os, sys, threading, time
os.environ |= {"PREFECT_LOGGING_LEVEL": "CRITICAL"}
from prefect import flow
from flows.execution import executor
from flows.stopping import stoppable
from tasks.config.sections import Runner
from tasks.runtime.step import step
@step("hang")
def hang():
    print("begun", flush=True)
    time.sleep(600)
@flow(name="NAME")
def run():
    with executor(Runner(), "cpu", fans_out=True) as execute:
        (execute.map(hang, [()], ["0"]) if sys.argv[1] == "threads" else execute.run(hang))
with stoppable():
    run()
"""


@pytest.mark.parametrize("where", ["main thread", "threads"])
def test_a_stopped_flow_run_has_crashed_and_its_process_is_gone_within_five_seconds(prefect_server, where):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName
    from prefect.settings import PREFECT_API_URL

    name = f"stopped-in-{where.replace(' ', '-')}"
    program = [sys.executable, "-c", IN_A_FLOW.replace("NAME", name), where]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value()}
    with subprocess.Popen(program, env=environment, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "stopped; run again to continue\n"
    with get_client(sync_client=True) as client:
        queried = FlowFilter(name=FlowFilterName(any_=[name]))
        (flow_run,) = client.read_flow_runs(flow_filter=queried)
    assert flow_run.state.is_crashed()


def test_the_command_line_itself_is_stopped_without_a_traceback():
    program = "import flows.__main__ as command, os, signal, sys\nsys.meta_path.insert(0, command)\n"
    program += "command.find_spec = lambda *_: os.kill(os.getpid(), signal.SIGINT)\ncommand.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")
