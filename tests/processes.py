"""Processes for tests, forked from a single-threaded server with loaded modules.

A fork of the test process would inherit locks that threads of earlier tests hold, and wait for them forever.
"""

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import cloudpickle

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest"])


def process(work: Callable[..., Any], *arguments: Any) -> multiprocessing.Process:
    """A process that calls a function, which may be one of a test's own; queues and barriers must be arguments."""
    return CONTEXT.Process(target=_call, args=(cloudpickle.dumps(work), *arguments))


def _call(work: bytes, *arguments: Any) -> None:
    cloudpickle.loads(work)(*arguments)


def arm(module: str, qualified: str, when: str, count: int) -> None:
    """Have this process kill itself before or after the so-manyth call of a function."""
    owner = importlib.import_module(module)
    *path, name = qualified.split(".")
    for part in path:
        owner = getattr(owner, part)
    plain, calls = getattr(owner, name), []

    def armed(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if when == "before" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if when == "after" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)
