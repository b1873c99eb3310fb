"""Ctrl-C: one line, and everything that this process started is gone, at whatever it was.

Leaving through all that is open (flows, pools, clusters, a server) takes minutes, and every library has a word to say.
It need not be done: artefacts are whole or absent, the ledger survives a kill -9, and a stage goes on from what it had
finished. So a thread of its own waits for the signal, which reaches it whatever the main thread is at, and ends the
process together with its children. Only what may not be cut short is waited for: see `uninterrupted`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

STATUS = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LONGEST = 10.0
"""Seconds from the signal after which the process ends, whatever is still open."""

_watching: list[tuple[threading.Thread, socket.socket]] = []
"""The threads that wait for a signal, the innermost block's last, and what they hear it from."""
_heard = threading.Event()
"""Set when such a thread has heard of all signals until it was asked."""
_whole = threading.Lock()
"""Held while something is done that may not be cut short."""
_actions: list[Callable[[], None]] = []
_say: list[Callable[[str], None]] = [lambda line: print(line, file=sys.stderr, flush=True)]


@contextmanager
def stoppable() -> Iterator[None]:
    """End this process at Ctrl-C or SIGTERM during the block, with one line and status 130.

    Outside the main thread, which alone may choose what a signal does, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    watch = threading.Thread(target=_watch, args=(hears,), daemon=True, name="Ctrl-C")
    watch.start()
    # The interpreter writes a signal's number to `tells` at once, also while the main thread is inside a long call.
    wakeup = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, _nothing) for number in SIGNALS}
    _watching.append((watch, tells))
    try:
        yield
    finally:
        stay_if_stopping()
        _watching.remove((watch, tells))
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        tells.close()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let the block end before the process does: it is short, and half of it would have to be repaired by hand.

    Once the process is ending, nothing comes after the block, and no further one begins.
    """
    stay_if_stopping()
    with _whole:
        yield
    stay_if_stopping()


@contextmanager
def at_the_end(action: Callable[[], None]) -> Iterator[None]:
    """Have the process do this when it is ended during the block, for what the block would do when it is left.

    Once the process is ending, the block is not left: Prefect raises an exception in it at SIGTERM.
    """
    _actions.append(action)
    try:
        yield
    finally:
        stay_if_stopping()
        _actions.remove(action)


@contextmanager
def last_words(say: Callable[[str], None]) -> Iterator[None]:
    """Have the line that Ctrl-C leaves said by `say` during the block, instead of being written to standard error."""
    _say.append(say)
    try:
        yield
    finally:
        _say.remove(say)


def _nothing(*_: object) -> None:
    """What a signal does in the main thread."""


def stay_if_stopping() -> None:
    """Where the process is ending, wait for that: nothing else is to be said or done.

    A signal that came before this call is known of when it returns, though the handler that it has ran first.
    """
    for watch, tells in _watching[-1:]:
        if watch.is_alive():  # it is not, in a process that was forked meanwhile
            with suppress(OSError):  # the block is left
                _heard.clear()
                tells.send(b"\0")
                _heard.wait()


def _watch(hears: socket.socket) -> None:
    with hears:
        while received := hears.recv(64):
            if set(received) & set(SIGNALS):
                _stop()
            if 0 in received:
                _heard.set()


def _stop() -> None:
    last = threading.Timer(LONGEST, os._exit, (STATUS,))
    last.daemon = True
    last.start()
    try:
        # Not imported here: most commands are stopped before they have a stage, and numpy takes longer than they.
        progress = sys.modules.get("tasks.runtime.progress")
        current = progress.CURRENT if progress is not None else None
        where = f" in stage {current.stage}" if current is not None and current.stage else ""
        _say[-1](f"stopped{where}; run again to continue")
        _end_children()
        with _whole:
            if current is not None and current.folders is not None:
                from tasks.runtime import leftovers

                # What runs share may be another one's.
                leftovers.remove(leftovers.of_a_run(current.folders))
            for action in _actions:
                action()
            _end_children()
    finally:
        os._exit(STATUS)


def _end_children() -> None:
    """Kill every process below this one, also those that are started meanwhile to replace one that died."""
    import psutil

    for _ in range(10):
        children = [child for child in psutil.Process().children(recursive=True) if not _ends_itself(child)]
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        if not psutil.wait_procs(children, timeout=0.2)[1]:
            return


def _ends_itself(process: psutil.Process) -> bool:
    """Tell whether a process is multiprocessing's own, which clears away semaphores when all others are gone."""
    import psutil

    try:
        return process.status() == psutil.STATUS_ZOMBIE or any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return True
