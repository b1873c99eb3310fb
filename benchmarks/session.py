"""How long the session alone takes: many institutions that have voted before, each a process, mutual TLS, one machine.

    python benchmarks/session.py [--parties 50] [--held 4] [--queries 10000] [--mechanism histogram|confident]

Teachers were taught before (`terrine party teach`), so votes are drawn at random here, most of them for one class. The
answers must be those of the plaintext mechanism on the same votes and noise, or the script fails. Printed is a row of a
Markdown table: seconds from the start of the first process to the release, the peak memory of the largest process, and
the bytes that each institution sends to guardian and student party.

With `--together 100`, a hundred institutions share a process, each with its own host, certificate and connections.
Then a second row has the memory of the two servers, and processor seconds of guardian, student party and institutions.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tasks.parties.agreement.terms import Terms
from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.process import run_party
from tasks.parties.trial import (
    LOG,
    PartyProcess,
    configs_in,
    end_all,
    free_endpoints,
    lay_out,
    run_trial,
    start_party,
    teachers_of_parties,
    wait_for,
)
from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.teacher import Teacher
from terrine.privacy.noise import ReplayNoise

CLASSES, SEED, LIMIT = 10, 7, 900.0


def terms_of(parties: int, held: int, queries: int, mechanism: str) -> Terms:
    """Terms of a vote of so many institutions with so many teachers each."""
    total = parties * held
    shares = {"sigma": 0.25} if mechanism == "histogram" else {"threshold": 0.75, "sigma1": 0.6, "sigma2": 0.25}
    noise: dict[str, Any] = {name: share * total for name, share in shares.items()}
    return Terms(
        teachers=teachers_of_parties(total, parties),
        unit="record",
        minimum=total,
        queries=queries,
        asked=queries,
        queries_digest="a" * 64,
        query_shards=["b" * 64],
        backbone="c" * 64,
        class_names=[f"class {number}" for number in range(CLASSES)],
        mechanism=mechanism,
        **noise,
        epsilon=20.0,
        delta=1e-5,
    )


def plain_answers(terms: Terms, votes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the plaintext mechanism answers on all votes with the guardian's noise, in whole votes."""
    counts, noise = histograms_of(votes, CLASSES), ReplayNoise(SEED)
    if terms.mechanism == "histogram":
        drawn = noise.gaussian(counts.shape, terms.sigma)
        return np.ones(len(counts), bool), counts + np.floor(drawn + 0.5).astype(np.int64)
    passed = counts.max(axis=1) + noise.gaussian(len(counts), terms.sigma1) >= terms.threshold
    noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma2) + 0.5)
    return passed, np.where(passed, noisy.argmax(axis=1), -1)


def run_together(folder: Path, together: int, limit: float) -> list[tuple[float, float]]:
    """Run a trial in which so many teacher parties share a process, and wait for all of them.

    Returns processor seconds and peak megabytes of guardian, student party and every other process (Linux).
    """
    guardian, student, *teachers = configs_in(folder)
    parties = [start_party(guardian), start_party(student)]
    for first in range(0, len(teachers), together):
        group = teachers[first : first + together]
        with open(group[0].parent / LOG, "ab") as stream:
            program = [sys.executable, __file__, "--carry", *map(str, group)]
            process = subprocess.Popen(program, stdout=stream, stderr=stream)
        parties.append(PartyProcess(group[0], process, group[0].parent / LOG))
    over, used = threading.Event(), [(0.0, 0.0)] * len(parties)

    def watch() -> None:
        while not over.wait(0.1):
            for place, party in enumerate(parties):
                with contextlib.suppress(OSError, IndexError):
                    used[place] = _used(party.process.pid)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        wait_for(parties, limit)
    finally:
        over.set()
        watching.join()
        end_all(parties)
    for party in parties:
        if party.process.returncode != 0:
            raise SystemExit(f"{party.name}: {party.words()}")
    return used


def _used(process: int) -> tuple[float, float]:
    """Processor seconds and peak megabytes of a process; OSError or IndexError for one that has ended."""
    stat = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    peak = [line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(peak[0].split()[1]) / 1024


def carry(configs: list[Path]) -> None:
    """Run parties in threads of this process; exit with 1 where one of them failed."""
    counted = []
    parties = [threading.Thread(target=lambda path=path: counted.append(run_party(path))) for path in configs]
    for party in parties:
        party.start()
    for party in parties:
        party.join()
    sys.exit(len(counted) != len(configs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, default=50)
    parser.add_argument("--held", type=int, default=4, help="teachers of each")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--mechanism", default="histogram", choices=["histogram", "confident"])
    parser.add_argument("--together", type=int, help="institutions that share a process; each has its own without this")
    parser.add_argument("--carry", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.carry:
        carry(options.carry)
    from cells import heading, row
    from collaboration import PeakMemory  # and torch with it, which those who are carried have no use for

    terms = terms_of(options.parties, options.held, options.queries, options.mechanism)
    generator = np.random.default_rng(0)
    truth = generator.integers(CLASSES, size=(options.queries, 1))
    shape = (options.queries, terms.total)
    votes = np.where(generator.random(shape) < 0.8, truth, generator.integers(CLASSES, size=shape)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        lay_out(
            folder,
            terms,
            free_endpoints(),
            guardian={"ledger": {"account": "benchmark", "epsilon": None}, "noise": "replay", "replay_seed": SEED},
            teachers={name: {"votes": "votes.npy", "unit": "record"} for name in terms.teachers},
            common={"deadline": LIMIT, "patience": LIMIT},
        )
        parts = np.split(votes, options.parties, axis=1)
        for name, own in zip(terms.teachers, parts, strict=True):
            np.save(folder / name / "votes.npy", own)
        start = time.perf_counter()
        with PeakMemory() as memory:
            if options.together:
                used = run_together(folder, options.together, LIMIT)
            else:
                run_trial(folder, limit=LIMIT)
        seconds = time.perf_counter() - start
        found = read_arrays(read_party(folder / terms.student / "party.yaml"))
        for name, expected in zip(("passed", "result"), plain_answers(terms, votes), strict=True):
            if not np.array_equal(found[name], expected):
                raise SystemExit(f"The parties answered something else than the plaintext mechanism: {name}.")
    name = next(iter(terms.teachers))
    sent = sum(len(send.frame) for send in Teacher(terms.agreement("0" * 32, "0" * 64), name, parts[0]).start())
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}; the answers of the plaintext mechanism")
    asked = ("mechanism", "institutions", "teachers", "queries")
    heading(*asked, "seconds", "MB at most", "MB that one institution sends")
    vote = (terms.mechanism, options.parties, terms.total, f"{options.queries:,}")
    row(*vote, f"{seconds:.1f}", f"{memory.megabytes:.0f}", f"{sent / 1e6:.1f}")
    if options.together:
        (guardian, student), others = used[:2], used[2:]
        heading("MB of guardian / student party", "processor seconds of both", "of an institution")
        both = [f"{guardian[part]:.0f} / {student[part]:.0f}" for part in (1, 0)]
        row(*both, f"{sum(seconds for seconds, _ in others) / options.parties:.2f}")


if __name__ == "__main__":
    main()
