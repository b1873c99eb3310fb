"""What the crash suite has seen is counted, also when it was stopped, and is not done again."""

import os
import signal
import subprocess
import sys

import pytest

from benchmarks.crash.project import REPOSITORY
from benchmarks.crash.tally import Tally


def test_a_tally_goes_on_where_it_was_stopped_and_counts_what_was_asked_for(tmp_path):
    done = []

    def at(number):
        def once():
            if number == 2 and not done:
                raise KeyboardInterrupt
            return ("late" if number % 2 else "early"), ({"charges"} if number == 1 else set())

        return once

    tally = Tally(tmp_path / "times.jsonl")
    for number in range(2):
        tally.count(str(number), at(number))
    with pytest.raises(KeyboardInterrupt):
        tally.count("2", at(2))
    assert (tally.times, dict(tally.where), dict(tally.wrong)) == (2, {"early": 1, "late": 1}, {"charges": 1})
    assert "| all | 2 |" in tally.tables("runs")
    done.append(True)
    again = Tally(tmp_path / "times.jsonl")
    for number in range(4):
        again.count(str(number), at(number) if number > 1 else pytest.fail)
    assert (again.times, dict(again.where), dict(again.wrong)) == (4, {"early": 2, "late": 2}, {"charges": 1})


STOPPED = """
import sys
from benchmarks.crash import __main__ as suite
from benchmarks.crash.project import Command, small_project

def forever(folder, times, seed, tally):
    tally.count("first", lambda: ("here", {"leftovers"}))
    project = small_project(folder / "project")
    command = Command(project, ["ledger"], fresh=True)
    print("started", command.pid, flush=True)
    while True:
        pass

suite.SUITES["runs"] = (1, forever)
sys.argv = ["crash", "runs", "--kept", sys.argv[1]]
suite.main()
"""


def test_a_part_that_is_stopped_says_what_it_has_seen_and_ends_what_it_started(tmp_path):
    program = [sys.executable, "-c", STOPPED, str(tmp_path)]
    with subprocess.Popen(program, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("started"):
                break
        child = int(line.split()[1])
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
    assert "| leftovers | 1 |" in said
    assert "stopped after" in said
    assert process.returncode == 1
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert (tmp_path / "runs.jsonl").read_text().count("\n") == 1
