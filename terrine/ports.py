"""Ports for servers on this machine: no connection of another program can take one before its server listens."""

import random
import socket
from pathlib import Path

from terrine.errors import TerrineError

LOWEST = 10_000
HOST = "127.0.0.1"
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 1_000


def free_ports(count: int = 1, *preferred: int) -> list[int]:
    """Draw ports of this machine that nobody listens at now; the preferred ones first, where they are free.

    The system gives outgoing connections, and servers that ask for port 0, ports from a range of its own. A port of
    that range may be free now and somebody's connection when its server starts; these lie below it.

    Raises:
        TerrineError: so many ports are not free.
    """
    below = _first_outgoing()
    drawn = random.SystemRandom()
    candidates = [*preferred, *(drawn.randrange(LOWEST, below) for _ in range(_ATTEMPTS))]
    free: list[int] = []
    for port in dict.fromkeys(candidates):
        if len(free) == count:
            break
        if _is_free(port):
            free.append(port)
    if len(free) < count:
        raise TerrineError(f"No free port at {HOST} between {LOWEST} and {below}.")
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _first_outgoing() -> int:
    """The first port the system gives out by itself; 32768 where it does not say (Linux; others begin higher)."""
    try:
        return max(LOWEST + _ATTEMPTS, int(_OUTGOING.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return 32_768
