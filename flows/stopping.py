"""End a run on Ctrl-C or SIGTERM with one line and exit status 130, leaving no processes behind.

An interrupted run is in the same state as a killed one: artefacts are complete or absent, the ledger is consistent, and
finished parts are kept. The signal may therefore interrupt any computation. Afterwards Prefect has a few seconds to
record that the run has crashed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STATUS = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 3.0
"""Seconds from the signal until the process ends, even if threads of a task are still running."""


class Stopped(SystemExit):
    """Exit after a signal, with the line about it already printed."""


@contextmanager
def stoppable() -> Iterator[None]:
    """End this process with one line and status 130 on Ctrl-C or SIGTERM within the block.

    A second signal ends the process at once. Only the main thread can handle signals; in other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal, stopping = os.dup(2), threading.Event()  # a run redirects its outputs to its log

    def say() -> None:
        if not stopping.is_set():
            stopping.set()
            progress = sys.modules.get("tasks.runtime.progress")
            stage = progress.CURRENT.stage if progress is not None else ""
            os.write(terminal, f"stopped{f' in stage {stage}' * bool(stage)}; run again to continue\n".encode())

    def end(*_: object) -> None:
        say()
        _kill_children()
        os._exit(STATUS)

    def stop(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, end)
        timer = threading.Timer(GRACE, end)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        say()
        raise Stopped(STATUS) from None
    finally:
        if not stopping.is_set():
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(terminal)


def _kill_children() -> None:
    """Kill all descendants of this process, including replacements that are started in the meantime."""
    import psutil

    for _ in range(10):
        children = psutil.Process().children(recursive=True)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        if not psutil.wait_procs(children, timeout=0.2)[1]:
            return
