"""Processes of their own for tests: forked from a server that has one thread and has loaded what they need.

A fork of the tests' own process would inherit every lock that a thread of an earlier test held at that moment, and
wait for it for ever.
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
