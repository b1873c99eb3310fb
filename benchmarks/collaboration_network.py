"""Five hosts with addresses of their own, one of which is cut off in the middle. Needs root and `ip netns` (Linux).

    python benchmarks/collaboration_network.py [--queries 3000] [--folder FOLDER]

Guardian, student party and three teacher parties live in network namespaces with addresses 10.217.0.1 to .5 on one
bridge. Three votes are taken, each with its own trial, replayed noise and the plaintext mechanism as reference:

1. nobody is cut off;
2. a teacher party is cut off before it has shared its votes: it is left out, the answers are those of the others, and
   the accounting is as agreed;
3. the student party is cut off while the guardian sends garbled tables, for 20 s: it reconnects and the session ends
   with the same answers.

Printed is a line for each; the script fails when one does not end as it should, and says why it does nothing where it
cannot make namespaces.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from cells import common_options

from tasks.parties.agreement.terms import Terms
from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.trial import CONFIG, Endpoints, lay_out
from terrine.aggregation.votes import histograms_of
from terrine.privacy.noise import ReplayNoise

PREFIX, BRIDGE, CLASSES, SEED = "terrine-", "terrine-br", 10, 5
ADDRESSES = {"guardian": 1, "student": 2, "party-1": 3, "party-2": 4, "party-3": 5}


def ip(*arguments: str, check: bool = True) -> None:
    """Run ip."""
    subprocess.run(["ip", *arguments], check=check, capture_output=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Five namespaces on one bridge, removed afterwards."""
    try:
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for name, number in ADDRESSES.items():
            space, outside = PREFIX + name, f"trr{number}"
            ip("netns", "add", space)
            ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", outside, "master", BRIDGE, "up")
            ip("-n", space, "addr", "add", f"10.217.0.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for name in ADDRESSES:
            ip("netns", "del", PREFIX + name, check=False)
        ip("link", "del", BRIDGE, check=False)


def plug(name: str, *, in_place: bool) -> None:
    """Cut a host's cable, or put it back."""
    ip("link", "set", f"trr{ADDRESSES[name]}", "up" if in_place else "down")


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a party on its host."""
    program = [sys.executable, "-m", "tasks.parties.process", str(folder / name / CONFIG)]
    with open(folder / name / "log.txt", "ab") as log:
        there = ["ip", "netns", "exec", PREFIX + name, *program]
        return subprocess.Popen(there, stdout=log, stderr=log, cwd=folder / name)


def words(folder: Path, name: str) -> str:
    """What a party said."""
    return (folder / name / "log.txt").read_text(errors="replace")


def wait_for_words(folder: Path, name: str, said: str, limit: float = 120.0) -> None:
    """Wait until a party says something."""
    end = time.monotonic() + limit
    while said not in words(folder, name):
        if time.monotonic() > end:
            raise SystemExit(f"{name} did not say {said!r} within {limit:g} s:\n{words(folder, name)[-2000:]}")
        time.sleep(0.02)


def make_trial(folder: Path, queries: int) -> tuple[Terms, dict[str, np.ndarray]]:
    """Lay out a trial of parties at the addresses of the hosts."""
    terms = Terms(
        teachers={"party-1": 20, "party-2": 20, "party-3": 20},
        unit="record",
        minimum=40,
        queries=queries,
        asked=queries,
        queries_digest="0" * 64,
        query_shards=["0" * 64],
        backbone="0" * 64,
        class_names=[str(number) for number in range(CLASSES)],
        mechanism="gnmax",
        sigma=60.0,
        epsilon=30.0,
        delta=1e-5,
    )
    lay_out(
        folder,
        terms,
        Endpoints("10.217.0.1:7801", "10.217.0.2:7802"),
        guardian={"ledger": {"account": "network", "epsilon": None}, "noise": "replay", "replay_seed": SEED},
        teachers={name: {"votes": "votes.npy", "unit": terms.unit} for name in terms.teachers},
        common={"deadline": 15.0, "patience": 60.0},
    )
    generator = np.random.default_rng(1)
    truth = generator.integers(CLASSES, size=queries)
    votes = {}
    for name, held in terms.teachers.items():
        own = generator.integers(CLASSES, size=(queries, held))
        votes[name] = np.where(generator.random(own.shape) < 0.8, truth[:, None], own).astype(np.uint8)
        np.save(folder / name / "votes.npy", votes[name])
    return terms, votes


def check(folder: Path, terms: Terms, votes: list[np.ndarray], codes: dict[str, int], failed: set[str]) -> None:
    """Raise SystemExit unless exactly these parties failed, and the answers are the plaintext mechanism's."""
    if {name for name, code in codes.items() if code != 0} != failed:
        raise SystemExit(f"exit codes {codes}\n" + "\n".join(words(folder, name)[-1000:] for name in codes))
    counts = histograms_of(np.concatenate(votes, axis=1), CLASSES)
    noise = np.floor(ReplayNoise(SEED).gaussian(counts.shape, terms.sigma or 0.0) + 0.5)
    result = read_arrays(read_party(folder / "student" / CONFIG))["result"]
    if not np.array_equal(result, (counts + noise).argmax(axis=1)):
        raise SystemExit("The answers are not those of the plaintext mechanism with the same noise.")


def take_vote(folder: Path, queries: int, cut: str | None) -> None:
    """Take one vote, with one host cut off in the middle."""
    terms, votes = make_trial(folder, queries)
    for name in ADDRESSES:
        plug(name, in_place=name != cut or cut == "student")
    begin = time.perf_counter()
    processes = {name: start(folder, name) for name in ADDRESSES}
    try:
        if cut == "student":
            wait_for_words(folder, "guardian", "the votes of 3 parties are counted")
            plug("student", in_place=False)
            time.sleep(20.0)
            plug("student", in_place=True)
        codes = {name: process.wait(240) for name, process in processes.items()}
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
    left_out = {cut} if cut in terms.teachers else set()
    check(folder, terms, [own for name, own in votes.items() if name not in left_out], codes, left_out)
    said = f"{cut} was cut off" if cut else "nobody was cut off"
    if cut == "student":
        said += f" for 20 s and connected {words(folder, 'guardian').count('student is connected')} times"
    print(f"{said}: {queries} answers as the plaintext mechanism's in {time.perf_counter() - begin:.1f} s", flush=True)


def main() -> None:
    parser = common_options(__doc__)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("Skipped: network namespaces need root and the program ip (iproute2).")
        return
    if subprocess.run(["ip", "netns", "add", PREFIX + "probe"], capture_output=True, check=False).returncode != 0:
        print("Skipped: this system does not let network namespaces be made.")
        return
    ip("netns", "del", PREFIX + "probe")
    with tempfile.TemporaryDirectory() as temporary, hosts():
        root = options.folder or Path(temporary)
        for cut in (None, "party-3", "student"):
            take_vote(root / (cut or "nobody"), options.queries, cut)


if __name__ == "__main__":
    main()
