"""Ctrl-C in the middle of a run: one line, nothing left running, nothing half-written, and the next run goes on."""

import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import psutil
import pytest

HANG = """
import hashlib, subprocess, sys, threading, time
from pathlib import Path
from flows import stopping
from flows.stopping import at_the_end, stoppable
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
stopping.LONGEST = 600  # a machine with much else to do may take long for what takes no time
with stoppable(), at_the_end((folders.root / "ended").touch):
    CURRENT.begin(folders, "teach")
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    child.stdout.readline()
    (folders.work / "teach-1").mkdir(parents=True)
    (folders.work / "teach-1" / "group-0.safetensors").touch()
    def write():
        with atomic_file(folders.work / "teach-1" / "group-1.safetensors"), atomic_folder(folders.teachers):
            print(child.pid, flush=True)
            time.sleep(600)
    threading.Thread(target=write).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # one long call, which no exception would end
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
    assert left == ["data/private/small/work/teach-1/group-0.safetensors", "ended"]


LEFT = """
import signal, sys, time
from functools import partial
from pathlib import Path
from flows.stopping import at_the_end, stoppable
def leave(*_):
    raise RuntimeError("as Prefect does in a flow")
with stoppable(), at_the_end(partial(time.sleep, 0.5)):
    with at_the_end(Path(sys.argv[1]).touch):
        signal.signal(signal.SIGTERM, leave)
        print("begun", flush=True)
        time.sleep(60)
"""


def test_what_is_to_be_done_at_the_end_is_done_though_an_exception_leaves_the_block_meanwhile(tmp_path):
    program = [sys.executable, "-c", LEFT, str(tmp_path / "done")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=120) == ("", "stopped; run again to continue\n")
    assert process.returncode == 130
    assert (tmp_path / "done").exists()


FLOW_RUN, TASK_RUN = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"
AS_A_FLOW = f"""
import time
from types import SimpleNamespace
from prefect.states import Crashed
from flows import pipeline
from flows.stopping import stoppable
pipeline.flow_run = SimpleNamespace(id="{FLOW_RUN}")
with stoppable(), pipeline.told_when_stopped(Crashed(message="its machine told it to end")):
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("was", "ended"), [("RUNNING", "CRASHED"), ("CANCELLING", "CANCELLED")])
def test_a_server_of_ones_own_is_told_that_a_stopped_flow_run_and_its_tasks_are_over(tmp_path, was, ended):
    told, accepted = [], json.dumps({"state": None, "status": "ACCEPT", "details": {"type": "accept_details"}})
    task_run = {"id": TASK_RUN, "task_key": "teach", "dynamic_key": "0", "flow_run_id": FLOW_RUN}
    read = {"id": FLOW_RUN, "flow_id": FLOW_RUN, "name": "teach", "state": {"type": was, "name": was.title()}}

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path.endswith("/set_state"):
                told.append((self.path, asked["state"]["type"], asked["force"]))
            if len(told) == 2:
                self.send_error(500)  # whatever it says, the process ends
                return
            self.answer(json.dumps([task_run]) if self.path.endswith("/filter") else accepted)

        def do_GET(self):
            if self.path.endswith(FLOW_RUN):
                self.answer(json.dumps(read))
            else:
                self.send_error(404)  # it wants no token against forged requests

        def answer(self, text):
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        own = {"PREFECT_API_URL": f"http://127.0.0.1:{server.server_port}/api", "PREFECT_HOME": str(tmp_path)}
        with subprocess.Popen(
            [sys.executable, "-c", AS_A_FLOW], stdout=subprocess.PIPE, text=True, env=os.environ | own
        ) as process:
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        server.shutdown()
    assert told == [
        (f"/api/flow_runs/{FLOW_RUN}/set_state", ended, True),
        (f"/api/task_runs/{TASK_RUN}/set_state", ended, True),
    ]


COMMIT = """
import sys, time
from pathlib import Path
from flows.stopping import stoppable, uninterrupted
with stoppable():
    with uninterrupted():
        print("begun", flush=True)
        time.sleep(0.5)
        Path(sys.argv[1]).touch()
    print("went on", flush=True)
"""


def test_what_may_not_be_cut_short_is_finished_and_nothing_comes_after_it(tmp_path):
    program = [sys.executable, "-c", COMMIT, str(tmp_path / "whole")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=120)
    assert (process.returncode, output, error) == (130, "", "stopped; run again to continue\n")
    assert (tmp_path / "whole").exists()


FORKED = """
import os, sys
from flows.stopping import stoppable, uninterrupted
with stoppable():
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with uninterrupted():
        pass
print("left", flush=True)
"""


def test_a_process_that_was_forked_meanwhile_waits_for_no_signal():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_the_command_line_itself_is_stopped_without_a_traceback():
    program = "import flows.__main__ as command, os, signal, sys\nsys.meta_path.insert(0, command)\n"
    program += "command.find_spec = lambda *_: os.kill(os.getpid(), signal.SIGINT)\ncommand.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")
