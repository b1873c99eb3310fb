"""`terrine`, and `python -m flows`: the commands, or which extra brings what they need."""

from __future__ import annotations

import os
import signal
import sys

_PARTIES = ("grpc", "cryptography", "nacl")
STOPPED = 130
"""The status that shells give what Ctrl-C ended."""


def main() -> None:
    """Run the command line; where a package is missing, say which extra brings it."""
    # Until a command is there to say how it ends: an exception in the middle of an import is a traceback at best.
    signal.signal(signal.SIGINT, _leave)
    from terrine.extras import OURS, missing

    try:
        from flows.cli import main as command

        signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if end.code == STOPPED:  # by typer, which says nothing
            _leave()
        raise
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name in OURS:
            raise
        sys.exit(missing(name, "parties" if name in _PARTIES else "pipeline", "This and other commands"))


def _leave(*_: object) -> None:
    os.write(2, b"stopped\n")
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
