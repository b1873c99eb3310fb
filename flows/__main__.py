"""Entry point of `terrine` and `python -m flows`."""

from __future__ import annotations

import os
import signal
import sys

_PARTIES = ("uvicorn", "urllib3", "nacl")
STOPPED = 130
"""Exit status after Ctrl-C."""


def main() -> None:
    """Run the command line. If a package is missing, name the extra that installs it."""
    # An exception in the middle of an import would print a traceback.
    signal.signal(signal.SIGINT, _leave)
    from terrine.extras import OURS, missing

    try:
        from flows.cli import main as command

        signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if type(end) is SystemExit and end.code == STOPPED:  # typer prints nothing
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
