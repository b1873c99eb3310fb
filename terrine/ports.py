"""Free ports on this machine, outside the range of outgoing connections."""

import random
import socket
from contextlib import suppress
from pathlib import Path

from terrine.errors import TerrineError

LOWEST = 10_000
HOST = "127.0.0.1"
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 1_000


def free_ports(count: int = 1, *preferred: int) -> list[int]:
    """Return free ports of this machine, beginning with those preferred ports that are free.

    The ports are below the range of ephemeral ports, so no outgoing connection can take one before its server starts.

    Raises:
        TerrineError: This machine does not have enough free ports.
    """
    below = 32_768  # start of Linux's default ephemeral range; other systems start higher
    with suppress(OSError, ValueError, IndexError):
        below = max(LOWEST + _ATTEMPTS, int(_OUTGOING.read_text().split()[0]))
    drawn = random.SystemRandom()
    candidates = [*preferred, *(drawn.randrange(LOWEST, below) for _ in range(_ATTEMPTS))]
    free: list[int] = []
    for port in dict.fromkeys(candidates):
        if len(free) == count:
            break
        with suppress(OSError), socket.socket() as probe:
            probe.bind((HOST, port))
            free.append(port)
    if len(free) < count:
        raise TerrineError(f"There are not enough free ports at {HOST} between {LOWEST} and {below}.")
    return free
