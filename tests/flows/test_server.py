"""The temporary Prefect server of a run: it ends with the run, however that ends."""

import os
import signal
import subprocess
import sys
import time
from functools import cache

import psutil
import pytest

from flows import server
from terrine.errors import TerrineError

STANDS_IN = """
import http.server, sys, threading
class Healthy(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[-2])), Healthy)
threading.Thread(target=server.serve_forever).start()
"""
STARTS = """
import os, sys
from flows import server
server._PROGRAM = server._PROGRAM.partition("runpy.run_module")[0] + sys.argv[1]
with server.prefect_server():
    from prefect.settings import PREFECT_API_URL
    assert PREFECT_API_URL.value() == os.environ["PREFECT_API_URL"]
    print(PREFECT_API_URL.value(), server.is_temporary(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def started(tmp_path):
    """A process that has started a server, which only says that it is healthy; and that server's process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    program = [sys.executable, "-c", STARTS, STANDS_IN]
    with subprocess.Popen(program, env=clean | {"PREFECT_HOME": str(tmp_path)}, **pipes) as process:
        url, temporary = process.stdout.readline().split()
        assert url.startswith("http://127.0.0.1:")
        assert temporary == "True"
        (child,) = psutil.Process(process.pid).children()
        yield process, child
        process.kill()


@pytest.mark.parametrize("how", ["by itself", "killed"])
def test_it_ends_with_its_process(started, how):
    process, child = started
    if how == "killed":
        process.send_signal(signal.SIGKILL)
    else:
        process.communicate("\n", timeout=60)
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlived its run"
        time.sleep(0.05)


def test_a_server_of_the_users_is_used_and_none_is_started(prefect_server, monkeypatch):
    monkeypatch.setattr(server, "_temporary_server", None)
    with server.prefect_server():
        pass


@pytest.mark.parametrize(
    ("what", "seconds", "said"),
    [
        ("raise SystemExit(3)", 60.0, r"ended at its start \(status 3\): `prefect server start` shows why"),
        ("import time; time.sleep(600)", 1.0, "did not start within 1 seconds"),
    ],
    ids=["ends", "hangs"],
)
def test_one_that_does_not_start_is_an_error_with_a_way_out(monkeypatch, what, seconds, said):
    # Another test of this process may have started a server, which is cached.
    monkeypatch.setattr(server, "_temporary_server", cache(server._temporary_server.__wrapped__))
    monkeypatch.setattr(server, "_PROGRAM", what)
    monkeypatch.setattr(server, "SECONDS", seconds)
    monkeypatch.setattr(server, "END_SECONDS", 0.1)
    with pytest.raises(TerrineError, match=f"{said}.*terrine run --no-server"):
        server._temporary_server()
    assert not server.is_temporary()
