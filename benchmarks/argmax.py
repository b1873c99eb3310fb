"""Seconds, bytes and memory of the garbled argmax between two processes, beside plain and encrypted inference.

    PYTHONPATH=. python benchmarks/argmax.py [--repeats 5] [--scale 0.01]
    PYTHONPATH=. python benchmarks/argmax.py --sizes 1000x150 10000x150        # only the argmax, other sizes

The guardian and the student are two processes that exchange messages through a local socket, without TLS.
The clock runs at the student, from the moment when both hold the sums of their shares and the guardian its noise until
the last label is known: base transfers, transfer extension, garbling, sending, evaluating. Noise comes from the secure
source, is drawn before, and is timed for itself. Every label is compared with the plaintext mechanism on the same votes
and the same noise, which is timed as well. Figures are medians over the repeats; memory is the largest resident set of
a process, Python and its libraries included, over all repeats.

Plain inference is a forward pass of networks with random weights at 28×28×1 on one core: a teacher in DIET-CaPC does
one of them where CaPC does one under encryption. The seconds of CaPC are those that table 13 of the paper gives.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np
from cells import common_options, heading, row, times

from terrine.aggregation.votes import count_votes
from terrine.collaboration.protocol.agreement import Agreement
from terrine.collaboration.protocol.guardian_round import GuardianRound
from terrine.collaboration.protocol.report import make_report, sum_reports
from terrine.collaboration.protocol.shares import whole_votes
from terrine.collaboration.protocol.student_round import StudentRound
from terrine.privacy.noise import SecureNoise

TEACHERS, SIGMA, SIGMA_TEST = 200, 40.0, 120.0
COLUMNS = (
    "what",
    "queries × classes",
    "answered",
    "seconds",
    "at most",
    "ms a query",
    "processor seconds, guardian / student",
    "MB to student / guardian",
    "memory in MB, guardian / student",
    "seconds to draw the noise",
    "ms in the open",
)
ENCRYPTED = {"8k": 14.22, "16k": 29.46, "32k": 57.26}


@dataclass(frozen=True)
class Work:
    """One measured workload and its time limit in seconds."""

    name: str
    queries: int
    classes: int
    threshold: float | None
    reveal: str = "argmax"
    most: float | None = None


WORKS = [
    Work("Confident-GNMax, every query passes", 10_000, 10, -10 * SIGMA_TEST, most=5),
    Work("Confident-GNMax, T = 150", 10_000, 10, 150.0, most=5),
    Work("argmax alone", 10_000, 10, None, most=3),
    Work("argmax alone", 1_000, 150, None, most=7),
    Work("histogram", 10_000, 10, None, "histogram"),
]


def agreement_of(work: Work) -> Agreement:
    return Agreement(
        collaboration="0" * 64,
        guardian="guardian",
        student="student",
        teachers=(("teachers", TEACHERS),),
        minimum=TEACHERS,
        queries=work.queries,
        classes=work.classes,
        queries_digest="0" * 64,
        reveal=work.reveal,  # type: ignore[arg-type]
        threshold=work.threshold,
        sigma=SIGMA,
        sigma_threshold=None if work.threshold is None else SIGMA_TEST,
    )


def votes_of(work: Work, seed: int) -> np.ndarray:
    """Votes with a mixed consensus."""
    rng = np.random.default_rng(seed)
    agreeing = rng.random((work.queries, TEACHERS)) < rng.beta(5, 1.5, (work.queries, 1))
    common = rng.integers(0, work.classes, (work.queries, 1))
    return np.where(agreeing, common, rng.integers(0, work.classes, agreeing.shape))


def resident_megabytes() -> float:
    """The largest resident set of this process so far; `getrusage` would count the process that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1e3
    raise RuntimeError("This benchmark measures memory on Linux.")


def be_guardian(agreed: Agreement, folder: Path) -> dict[str, float]:
    """Draw the noise, and answer the student party until it closes the connection."""
    start = time.perf_counter()
    noise = {"counts": SecureNoise().gaussian((agreed.queries, agreed.classes), agreed.sigma)}
    if agreed.sigma_threshold is not None:
        noise["threshold"] = SecureNoise().gaussian(agreed.queries, agreed.sigma_threshold)
    drawn = time.perf_counter() - start
    np.savez(folder / "noise.npz", **noise)
    guardian = GuardianRound(agreed, {})
    sums = sum_reports(agreed, [("teachers", (folder / "report-0").read_bytes())])
    guardian.settle(sums, ["teachers"], lambda kind, shape: noise[kind])
    sent = 0
    with Listener(str(folder / "socket"), "AF_UNIX") as listener, listener.accept() as connection:
        connection.send_bytes(guardian.closing)
        processor = time.process_time()
        while path := connection.recv_bytes().decode():
            what, _, number = path.partition("/")
            request = connection.recv_bytes()
            if what == "base":
                answer = guardian.base(request)
            elif what == "counts":
                answer = guardian.counts(int(number))
            else:
                answer = {"blocks": guardian.block, "opened": guardian.opened}[what](int(number), request)
            connection.send_bytes(answer)
            sent += len(answer)
    return {"noise": drawn, "processor": time.process_time() - processor, "sent": sent / 1e6}


def be_student(agreed: Agreement, folder: Path) -> dict[str, float]:
    """Compute the answers."""
    while not (folder / "socket").exists():
        time.sleep(0.01)
    sums, sent = sum_reports(agreed, [("teachers", (folder / "report-1").read_bytes())]), 0
    with Client(str(folder / "socket"), "AF_UNIX") as connection:
        closing, lock = connection.recv_bytes(), threading.Lock()

        def post(path: str, request: bytes) -> bytes:
            nonlocal sent
            with lock:
                connection.send_bytes(path.encode())
                connection.send_bytes(request)
                sent += len(request)
                return connection.recv_bytes()

        start, processor = time.perf_counter(), time.process_time()
        result = StudentRound(agreed, {}, closing, sums, post).run()[1]
        figures = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
        connection.send_bytes(b"")
    np.save(folder / "result.npy", result)
    return figures | {"sent": sent / 1e6}


def be_party(role: str, folder: Path) -> None:
    """One of the two processes; its figures are left in the folder."""
    agreed = Agreement(**json.loads((folder / "agreement.json").read_text()))
    figures = (be_guardian if role == "guardian" else be_student)(agreed, folder)
    (folder / f"{role}.json").write_text(json.dumps(figures | {"memory": resident_megabytes()}))


def plaintext(work: Work, counts: np.ndarray, noise: Any) -> np.ndarray:
    """The mechanism in the open, on the same noise."""
    noisy = counts + whole_votes(noise["counts"])
    if work.reveal == "histogram":
        return noisy
    labels = noisy.argmax(axis=1)
    if work.threshold is not None:
        labels[counts.max(axis=1) + noise["threshold"] < work.threshold] = -1
    return labels


def measure(work: Work, seed: int) -> dict[str, float]:
    """One session between two fresh processes, checked."""
    agreed, votes = agreement_of(work), votes_of(work, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agreement.json").write_text(json.dumps(asdict(agreed)))
        for place, body in enumerate(make_report(agreed, "teachers", votes)):
            (folder / f"report-{place}").write_bytes(body)
        command = [sys.executable, __file__, "--folder", name, "--party"]
        processes = [subprocess.Popen([*command, role]) for role in ("guardian", "student")]
        try:
            if any(process.wait(timeout=300) for process in processes):
                raise SystemExit("A party failed: see above.")
        finally:
            for process in processes:
                process.kill()
        guardian, student = (json.loads((folder / f"{role}.json").read_text()) for role in ("guardian", "student"))
        result, noise = np.load(folder / "result.npy"), dict(np.load(folder / "noise.npz"))
    counts = count_votes(votes, work.classes)
    start = time.perf_counter()
    expected = plaintext(work, counts, noise)
    plain = time.perf_counter() - start
    if not np.array_equal(result, expected):
        raise SystemExit(f"{work.name}: the labels are not those of the plaintext mechanism.")
    answered = 1.0 if work.reveal == "histogram" else float((result >= 0).mean())
    return {
        "seconds": student["seconds"],
        "guardian's processor": guardian["processor"],
        "student's processor": student["processor"],
        "down": guardian["sent"],
        "up": student["sent"],
        "guardian's memory": guardian["memory"],
        "student's memory": student["memory"],
        "noise": guardian["noise"],
        "plain": plain,
        "answered": answered,
    }


def forward_seconds(kind: str, batch: int, repeats: int) -> float:
    """Seconds per image of a forward pass on one core."""
    import torch

    from terrine.models.architecture import build_backbone

    torch.set_num_threads(1)
    network = build_backbone(kind, channels=1, size=28, seed=0)
    network.eval()
    images = torch.rand(batch, 1, 28, 28)
    with torch.inference_mode():
        network(images)
        return float(np.median(times(lambda: network(images), max(3, repeats)))) / batch


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians; the least and the most seconds; the most memory."""
    figure = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    figure["least"], figure["longest"] = (pick(run["seconds"] for run in runs) for pick in (min, max))
    for key in ("guardian's memory", "student's memory"):
        figure[key] = max(run[key] for run in runs)
    return figure


def cells_of(work: Work, figure: dict[str, float]) -> list[str]:
    """The cells of the first table."""
    return [
        work.name,
        f"{work.queries:,} × {work.classes}",
        f"{figure['answered']:.0%}",
        f"**{figure['seconds']:.2f}** ({figure['least']:.2f}–{figure['longest']:.2f})",
        f"{work.most:g}" if work.most else "",
        f"{1e3 * figure['seconds'] / work.queries:.3f}",
        "{guardian's processor:.2f} / {student's processor:.2f}".format(**figure),
        f"{figure['down']:.1f} / {figure['up']:.1f}",
        "{guardian's memory:.0f} / {student's memory:.0f}".format(**figure),
        f"{figure['noise']:.2f}",
        f"{1e3 * figure['plain']:.1f}",
    ]


def main() -> None:
    """Measure everything and print two Markdown tables."""
    parser = common_options(__doc__, repeats=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the queries, to try the script")
    parser.add_argument("--sizes", nargs="+", default=[], help="queries x classes, and nothing else")
    parser.add_argument("--party", choices=("guardian", "student"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.party:
        be_party(arguments.party, arguments.folder)
        return
    heading(*COLUMNS)
    if arguments.sizes:
        for size in arguments.sizes:
            queries, classes = map(int, size.split("x"))
            work = Work("argmax alone", queries, classes, None)
            row(*cells_of(work, summary([measure(work, seed) for seed in range(arguments.repeats)])))
        return
    per_query: dict[str, float] = {}
    for work in WORKS:
        work = replace(work, queries=max(1, round(work.queries * arguments.scale)))
        figure = summary([measure(work, seed) for seed in range(arguments.repeats)])
        per_query.setdefault(f"{work.name}, {work.classes} classes, as above", figure["seconds"] / work.queries)
        row(*cells_of(work, figure))
    heading("for one query", "seconds")
    for model, seconds in ENCRYPTED.items():
        row(f"CaPC: CryptoNet-ReLU under encryption, N = {model} (table 13 of the paper)", seconds)
    for kind, batch in (("cryptonet", 1), ("cryptonet", 500), ("resnet10", 1), ("resnet18", 1), ("resnet18", 500)):
        seconds = forward_seconds(kind, batch, arguments.repeats)
        row(f"plain inference, {kind}, batch of {batch}, one core", f"{seconds:.6f}")
    for name, seconds in per_query.items():
        row(name, f"{seconds:.6f}")


if __name__ == "__main__":
    main()
