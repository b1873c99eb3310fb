"""Prefect server of a run: the one that PREFECT_API_URL names, or else a temporary one that this process starts.

The latter is `prefect server start` on a free port of 127.0.0.1, on Prefect's usual database, so `prefect server start`
shows finished runs later. The server ends when this process ends, even if the process is killed.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from terrine.errors import TerrineError
from terrine.ports import free_ports

SECONDS = 300.0
"""Time limit for the start of the server, in seconds."""
END_SECONDS = 5.0
"""Time limit for stopping the server, in seconds."""

_PROGRAM = """
import os, runpy, signal, sys, threading, time
def end_with_the_run():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)
    os._exit(0)
threading.Thread(target=end_with_the_run, daemon=True).start()
runpy.run_module("prefect", run_name="__main__", alter_sys=True)
"""


@contextmanager
def prefect_server() -> Iterator[None]:
    """Have Prefect use the user's server in the block if one is configured, else a temporary one.

    Raises:
        TerrineError: If the temporary server does not start.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    url = _temporary_server()
    # Log lines go to the run's log. Worker processes read these variables from the environment.
    os.environ.update(PREFECT_API_URL=url, PREFECT_LOGGING_TO_API_ENABLED="false")
    with temporary_settings({PREFECT_API_URL: url, PREFECT_LOGGING_TO_API_ENABLED: False}):
        yield


def is_temporary() -> bool:
    """Return whether the server is this process's own, which other machines cannot reach."""
    return _temporary_server.cache_info().currsize > 0


@cache
def _temporary_server() -> str:
    """Start a server that runs as long as this process, and return the URL of its API."""
    (port,) = free_ports()
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, "server", "start", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must not reach the server, to which this process still reports
    )
    atexit.register(_end, process)
    url, deadline = f"http://127.0.0.1:{port}/api", time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return url
        time.sleep(0.1)
    status = process.poll()
    failed = f"did not start within {SECONDS:g} seconds" if status is None else f"ended at its start (status {status})"
    _end(process)
    raise TerrineError(
        f"The Prefect server of this run {failed}: `prefect server start` shows why. "
        "`terrine run --no-server` runs the tasks without one, one after the other."
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server after it has stored all received data."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
