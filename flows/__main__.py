"""`terrine`, and `python -m flows`: the commands, or which extra brings what they need."""

from __future__ import annotations

import sys

from terrine.extras import OURS, missing

_PARTIES = ("grpc", "cryptography", "nacl")


def main() -> None:
    """Run the command line; where a package is missing, say which extra brings it."""
    try:
        from flows.cli import main as command

        command()
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if not name or name in OURS:
            raise
        sys.exit(missing(name, "parties" if name in _PARTIES else "pipeline", "This and other commands"))


if __name__ == "__main__":
    main()
