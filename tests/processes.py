"""Processes of their own for tests: forked from a server that has one thread and has loaded what they need.

A fork of the tests' own process would inherit every lock that a thread of an earlier test held at that moment, and
wait for it for ever.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import cloudpickle

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.party_modules", "pytest"])


def process(work: Callable[..., Any], *arguments: Any) -> multiprocessing.Process:
    """A process that calls a function, which may be one of a test's own; queues and barriers must be arguments."""
    return CONTEXT.Process(target=_call, args=(cloudpickle.dumps(work), *arguments))


def _call(work: bytes, *arguments: Any) -> None:
    cloudpickle.loads(work)(*arguments)
