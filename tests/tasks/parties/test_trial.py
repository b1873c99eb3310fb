"""Trials with the processes that a trial starts: parties that are forked from one that has loaded what they need."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.trial import end_all, run_trial, start_party
from tests.party_processes import plain_answers, run, terms_of_gradients, terms_of_sums, trial, until, words

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")


def children(process):
    """The processes that another one has forked."""
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def alive(process):
    """Whether a process is there, and is not one that ended and that nobody has asked for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def waiting(tmp_path):
    """Two teacher parties in processes forked from a third, which wait for a guardian in vain."""
    trial(tmp_path, terms_of_sums(), patience=60.0)
    configs = [tmp_path / name / "party.yaml" for name in ("party-1", "party-2")]
    started = start_party(*configs)
    yield started, until(lambda: len(found := children(started.process.pid)) == 2 and found)
    end_all([started])


def test_each_process_speaks_for_one_party_and_one_that_fails_takes_no_other_with_it(tmp_path):
    terms, votes = trial(tmp_path, terms_of_sums(), deadline=30.0)
    there = {name: own for name, own in votes.items() if name != "party-2"}
    np.save(tmp_path / "party-2" / "votes.npy", votes["party-2"].astype(float))
    run_trial(tmp_path, limit=120.0)
    arrays = read_arrays(read_party(tmp_path / "student" / "party.yaml"))
    np.testing.assert_array_equal(arrays["result"], plain_answers(terms, there)[1])
    assert words(tmp_path, "party-2").startswith("Error: Sums are whole numbers")
    for name in there:
        assert f"{name}: 2 frames of shares are on their way" in words(tmp_path, name)
        assert (tmp_path / name / "state" / "outcome.json").is_file()
        assert not any(other in words(tmp_path, name) for other in terms.teachers if other != name)


def test_one_that_is_killed_leaves_the_others_and_when_the_first_is_ended_all_are(waiting):
    started, (one, other) = waiting
    os.kill(one, signal.SIGKILL)
    until(lambda: not alive(one))
    assert alive(other)
    assert started.process.poll() is None
    end_all([started])
    assert started.process.returncode != 0
    until(lambda: not alive(other))


ASKED_WHILE_IT_FORKS = """
import os, signal, sys, time
from pathlib import Path
from tasks.parties import process

fork = os.fork

def asked():
    if child := fork():
        with open("children", "a") as stream:
            stream.write(f"{child}\\n")
        os.kill(os.getpid(), signal.SIGTERM)
    return child

os.fork = asked
process._forked([Path(config).resolve() for config in sys.argv[1:]])
time.sleep(60)
"""


def test_one_that_is_asked_to_end_while_it_forks_leaves_none_behind(tmp_path):
    configs = [tmp_path / name / "party.yaml" for name in ("party-1", "party-2")]
    for config in configs:
        config.parent.mkdir()
    first = subprocess.Popen([sys.executable, "-c", ASKED_WHILE_IT_FORKS, *map(str, configs)], cwd=tmp_path)
    assert first.wait(60) != 0
    forked = [int(child) for child in (tmp_path / "children").read_text().split()]
    assert len(forked) == 2
    for child in forked:
        until(lambda child=child: not alive(child))


def test_of_many_rounds_a_few_lines_are_said(tmp_path):
    trial(tmp_path, terms_of_gradients(rounds=15))
    names = ["guardian", "student", "party-1", "party-2", "party-3"]
    assert set(run(tmp_path, names).values()) == {0}
    for name in names:
        said = [line.partition(" ")[2] for line in words(tmp_path, name).splitlines()]
        assert f"{name}: 100.0 %  round 15 of 15" in said
        assert 2 <= sum(" of 15" in line for line in said) < 6, said
        assert len({*said}) == len(said), said
    assert "guardian: the shares of 3 parties are counted" in words(tmp_path, "guardian")
