"""Whatever dies, at whatever moment: the same command again completes, with one charge, and nothing is left over.

    make crash                                              # all of it, as often as it was asked for: a night
    python -m benchmarks.crash runs --times 20              # one part of it

Each part is a module: `kills` (SIGKILL of `terrine run`, of either pipeline), `parties` (SIGKILL of parties), `disks`
(disks that are full in each stage), `power` (cut power lines), `together` (ten runs at once in one folder).
"""
