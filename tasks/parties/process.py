"""One party as a process: `python -m tasks.parties.process CONFIG`, what `terrine party vote` runs.

It loads neither torch nor Prefect (a teacher party that trains its own teachers loads torch when it does), so fifty
parties fit on one machine. Of several configurations each gets a process, forked when what parties need is loaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.parties.config import PartyConfig, read_party
from terrine.errors import TerrineError

if TYPE_CHECKING:
    from tasks.parties.host import Host
    from tasks.parties.votes import Given

LOG = "log.txt"
"""What a party of a trial said, in its folder."""


def run_party(path: Path, *, stay: bool = False) -> dict[str, Any]:
    """Run the party that a configuration describes to its end; return what came out, which is written down: `Host.run`.

    stay: a guardian stays for parties that were late, to tell them so.
    """
    return host_of(read_party(path)).run(stay=stay)


def host_of(config: PartyConfig, given: Given | None = None) -> Host:
    """Return the host of a party's role. given: what a teacher party shares, if not what its configuration names."""
    # Each loads what it needs: a teacher party has no use for a ledger.
    if config.role == "guardian":
        from tasks.parties.guardian import GuardianHost

        return GuardianHost(config)
    if config.role == "student":
        from tasks.parties.student import StudentHost

        return StudentHost(config)
    from tasks.parties.teacher import TeacherHost

    return TeacherHost(config, given)


def show_progress() -> None:
    """Write what happens to standard error, a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("terrine.party")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _forked(configs: list[Path]) -> Path:
    """Fork a process for each party, in its folder, with what it says in its log; return the configuration of each.

    The process that forks ends here, when all of them have ended; asked to end, it ends them.
    """
    import tasks.parties.teacher  # noqa: F401

    processes: list[int] = []

    def end(*_: Any) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    # Whoever asks while there are some waits until there are all: none is left behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for config in configs:
        if not (process := os.fork()):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            with open(config.parent / LOG, "ab") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            os.chdir(config.parent)
            return config
        processes.append(process)
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0 for process in processes))


def main() -> None:
    """Run one party; a user's error is one line on standard error, and exit code 1."""
    first, *more = map(Path, sys.argv[1:])
    config = _forked([first, *more]) if more else first
    show_progress()
    try:
        run_party(config)
    except TerrineError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
