"""An existing cluster is asked whether it can do the work before any work is done.

Found here, within half a minute and in a sentence: an address that nobody answers, somebody else who answers there,
workers without Terrine, workers that do not see the project's folder.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tasks.config.sections import Runner
from terrine.errors import SettingError, TerrineError

ADDRESS = re.compile(r"^(?:(?P<protocol>[a-z]+)://)?(?P<host>[^\s/:]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})/?$")
START = {"dask": "`dask scheduler` and `dask worker` start one", "ray": "`ray start --head` starts one"}


def check_cluster(settings: Runner, root: Path, *, seconds: float = 10) -> list[str]:
    """Check that a cluster is at `runner.address`, where one is set, and can work in the project's folder; return what
    is to be logged. Every answer is waited for `seconds` at most, two are needed.

    Raises SettingError that says what is wrong there and what to do.
    """
    if settings.address is None or settings.address == "auto":
        return []
    _knock(settings.kind, settings.address, seconds)
    return _ask_dask(settings.address, root, seconds) if settings.kind == "dask" else []


def _knock(kind: str, address: str, seconds: float) -> None:
    """Open a connection to the address and close it."""
    parts = ADDRESS.match(address)
    if parts is None:
        example = {"dask": "tcp://head-node:8786", "ray": "ray://head-node:10001"}[kind]
        raise SettingError(f"runner.address={address} is no address of a cluster. Write it like {example}.")
    host, port = parts["host"].strip("[]"), int(parts["port"])
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        reason = f"no answer within {seconds:g} seconds" if isinstance(error, TimeoutError) else str(error)
        raise SettingError(
            f"runner.address={address}: nobody answers there ({reason}). Start the cluster ({START[kind]}), correct "
            "the address, or set runner.address=null to work on this machine."
        ) from error


def _ask_dask(address: str, root: Path, seconds: float) -> list[str]:
    """Ask a Dask scheduler for its workers, and each of them whether it can work in the project's folder."""
    try:
        answers = _within(1.5 * seconds, lambda: _answers_of_workers(address, root, seconds))
    except (OSError, TimeoutError, ValueError) as error:
        raise SettingError(
            f"runner.address={address}: something answers there, but not as a Dask scheduler of this version "
            f"({error}). Point runner.address at the scheduler, and install the same Dask on both sides."
        ) from error
    failed = {worker: answer for worker, answer in answers.items() if answer is not True}
    if failed:
        worker, answer = next(iter(failed.items()))
        raise SettingError(
            f"runner.address={address}: {len(failed)} of {len(answers)} workers cannot work here, the first is "
            f"{worker}: {_reason(answer, root)}"
        )
    if not answers:
        return [f"The cluster at {address} has no worker yet: tasks wait until one joins."]
    return []


def _answers_of_workers(address: str, root: Path, seconds: float) -> dict[str, Any]:
    from distributed import Client

    with Client(address, timeout=seconds, set_as_default=False) as client:
        answers: dict[str, Any] = client.run(can_work, str(root), on_error="return")
    return answers


def _within(seconds: float, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `ask` returns; raise TimeoutError after `seconds`.

    Dask's own timeout covers connecting, not somebody who accepts the connection and then says nothing. The thread that
    waits for him is left behind.
    """
    answer: Future[dict[str, Any]] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="ask the cluster", daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} seconds") from error


def can_work(root: str) -> bool:
    """Say, on a worker, whether it sees the project's folder."""
    return (Path(root) / "params.yaml").is_file()


def _reason(answer: object, root: Path) -> str:
    if answer is False:
        return (
            f"it does not see {root}. Artefacts travel by path: mount the project's folder there under the same path."
        )
    if isinstance(answer, TerrineError):
        return str(answer)
    return f"it cannot run Terrine ({type(answer).__name__}: {answer}). Install the same Terrine there."
