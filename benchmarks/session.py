"""Time that the services take for prepared reports of many institutions: two services, TLS, one machine.

    python benchmarks/session.py [--parties 50] [--held 4] [--queries 10000] [--mechanism histogram|confident]

Votes are drawn at random, most of them for one class, and reports are made before the clock starts. Then every
institution uploads, one after the other, and the student party learns the answers. They must be those of the plaintext
mechanism on the same votes and noise, or the script fails. Printed is a row of a Markdown table: seconds of the uploads
and from the last upload to the answers, processor seconds and peak memory of each service, and the bytes that one
institution sends.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.release import reported
from tasks.parties.store import Store
from tasks.parties.terms import Terms
from tasks.parties.trial import lay_out, run_trial, teachers_of_parties, with_keys
from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol.report import make_report
from terrine.privacy.noise import ReplayNoise

CLASSES, SEED, LIMIT = 10, 7, 900.0


def terms_of(folder: Path, parties: int, held: int, queries: int, mechanism: str) -> Terms:
    """Terms of a vote of `parties` institutions with `held` teachers each."""
    total = parties * held
    shares = {"sigma": 0.25} if mechanism == "histogram" else {"threshold": 0.75, "sigma1": 0.6, "sigma2": 0.25}
    noise: dict[str, Any] = {name: share * total for name, share in shares.items()}
    teachers = teachers_of_parties(total, parties)
    return Terms(
        **with_keys(folder, list(teachers)),
        teachers=teachers,
        unit="record",
        minimum=total,
        queries=queries,
        queried=queries,
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
    """Answers of the plaintext mechanism on all votes with the guardian's noise, in whole votes."""
    counts, noise = count_votes(votes, CLASSES), ReplayNoise(SEED)
    if terms.mechanism == "histogram":
        drawn = noise.gaussian(counts.shape, terms.sigma)
        return np.ones(len(counts), bool), counts + np.floor(drawn + 0.5).astype(np.int64)
    passed = counts.max(axis=1) + noise.gaussian(len(counts), terms.sigma1) >= terms.threshold
    noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma2) + 0.5)
    return passed, np.where(passed, noisy.argmax(axis=1), -1)


class Services:
    """Processor seconds and peak megabytes of the services that this process starts."""

    def __init__(self) -> None:
        self.used: dict[int, tuple[float, float]] = {}
        self._found: list[psutil.Process] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for child in self._children():
                try:
                    times, memory = child.cpu_times(), child.memory_info().rss / 2**20
                    seconds, most = self.used.get(child.pid, (0.0, 0.0))
                    self.used[child.pid] = (max(seconds, times.user + times.system), max(most, memory))
                except psutil.Error:
                    continue
            time.sleep(0.2)

    def _children(self) -> list[psutil.Process]:
        if len(self._found) < 2:
            self._found = psutil.Process().children()
        return self._found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, default=50)
    parser.add_argument("--held", type=int, default=4, help="teachers of each")
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--mechanism", default="histogram", choices=["histogram", "confident"])
    options = parser.parse_args()
    from cells import heading, row

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        terms = terms_of(folder, options.parties, options.held, options.queries, options.mechanism)
        generator = np.random.default_rng(0)
        truth = generator.integers(CLASSES, size=(options.queries, 1))
        shape = (options.queries, terms.total)
        votes = np.where(generator.random(shape) < 0.8, truth, generator.integers(CLASSES, size=shape)).astype(np.uint8)
        guardian = {"ledger": {"account": "benchmark", "epsilon": None}, "replay_seed": SEED}
        given = {"votes": "votes.npy", "unit": "record"}
        lay_out(folder, terms, guardian=guardian, teachers=dict.fromkeys(terms.teachers, given))
        parts = dict(zip(terms.teachers, np.split(votes, options.parties, axis=1), strict=True))
        agreement, sent = terms.agreement(), 0
        for name, own in parts.items():
            store = Store(folder / name / "state")
            for service, body in zip(("guardian", "student"), make_report(agreement, name, own), strict=True):
                store.facts(terms.digest, 0).setdefault(service, body)
                sent = len(body)
            store.close()
        services, start = Services(), time.perf_counter()
        run_trial(folder, lambda party: reported(terms, party.name, parts[party.name]), limit=LIMIT)
        seconds = time.perf_counter() - start
        found = read_arrays(read_party(folder / terms.student / "party.yaml"))
        for name, expected in zip(("passed", "result"), plain_answers(terms, votes), strict=True):
            if not np.array_equal(found[name], expected):
                raise SystemExit(f"The parties answered something else than the plaintext mechanism: {name}.")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}; the answers of the plaintext mechanism")
    (first, most), (second, others) = list(services.used.values())[:2]
    asked = ("mechanism", "institutions", "teachers", "queries")
    heading(*asked, "seconds", "processor seconds, guardian / student", "MB, guardian / student", "MB sent, each")
    figures = [terms.mechanism, options.parties, terms.total, f"{options.queries:,}", f"{seconds:.1f}"]
    row(*figures, f"{first:.1f} / {second:.1f}", f"{most:.0f} / {others:.0f}", f"{2 * sent / 1e6:.1f}")


if __name__ == "__main__":
    main()
