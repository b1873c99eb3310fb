"""Crash tests: after a crash at any moment, the same command completes with one charge and leaves no leftovers.

    make crash                                              # all of it, as often as it was asked for: a night
    python -m benchmarks.crash runs --times 20              # one part of it

Each part is a module: `kills` (SIGKILL of `terrine run`, of either pipeline), `parties` (SIGKILL of parties), `disks`
(disks that are full in each stage), `power` (cut power lines), `together` (ten runs at once in one folder).
"""
