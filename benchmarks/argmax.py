"""Seconds, bytes and memory of the garbled argmax between two processes, beside plain and encrypted inference.

    PYTHONPATH=. python benchmarks/argmax.py [--repeats 5] [--scale 0.01]
    PYTHONPATH=. python benchmarks/argmax.py --sizes 1000x150 10000x150        # argmax alone, of other sizes

The guardian and the student are two processes that speak through a TCP socket on the loopback interface, without TLS.
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
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
from cells import common_options, heading, row, times

from terrine.aggregation.votes import histograms_of
from terrine.collaboration.protocol.guardian import Guardian
from terrine.collaboration.protocol.messages import LARGEST_FRAME
from terrine.collaboration.protocol.party import Agreement, Send
from terrine.collaboration.protocol.shares import whole_votes
from terrine.collaboration.protocol.student import StudentParty
from terrine.collaboration.protocol.teacher import Teacher
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
    """What is measured, and the seconds that it should stay below."""

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
        session=secrets.token_hex(16),
        release="0" * 64,
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


class Wire:
    """Frames through a socket, each behind its length. A thread reads while the party computes and sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent = 0
        self.frames: Queue[bytes] = Queue(4)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, frame: bytes) -> None:
        self._connection.sendall(len(frame).to_bytes(4, "little"))
        self._connection.sendall(frame)
        self.sent += 4 + len(frame)

    def _read(self) -> None:
        # A frame in one call: between calls, the interpreter lock is somebody else's for up to 5 ms.
        while len(head := self._connection.recv(4, socket.MSG_WAITALL)) == 4:
            length = int.from_bytes(head, "little")
            if length > LARGEST_FRAME:
                raise RuntimeError(f"A frame of {length:,} bytes was announced.")
            self.frames.put(self._connection.recv(length, socket.MSG_WAITALL))


def be_party(role: str, folder: Path) -> None:
    """One of the two processes: take the shares, connect, compute, and leave the figures in the folder."""
    agreed = Agreement(**json.loads((folder / "agreement.json").read_text()))
    figures: dict[str, Any] = {}
    party: Guardian | StudentParty
    if role == "guardian":
        start = time.perf_counter()
        noise = {"counts": SecureNoise().gaussian((agreed.queries, agreed.classes), agreed.sigma)}
        if agreed.sigma_threshold is not None:
            noise["threshold"] = SecureNoise().gaussian(agreed.queries, agreed.sigma_threshold)
        figures["noise"] = time.perf_counter() - start
        np.savez(folder / "noise.npz", **noise)
        party, peer = Guardian(agreed, lambda kind, shape: noise[kind]), agreed.student
        listener = socket.create_server(("127.0.0.1", 0))
        (folder / "port.part").write_text(str(listener.getsockname()[1]))
    else:
        party, peer = StudentParty(agreed), agreed.guardian
    waiting = list(party.start())
    for path in sorted(folder.glob(f"{role}-*.frame")):
        waiting += party.receive("teachers", path.read_bytes())
    if role == "guardian":
        (folder / "port.part").rename(folder / "port")
        connection, _ = listener.accept()
    else:
        while not (folder / "port").exists():
            time.sleep(0.01)
        connection = socket.create_connection(("127.0.0.1", int((folder / "port").read_text())))
    wire = Wire(connection)
    wire.send(b"ready")
    assert wire.frames.get(timeout=60) == b"ready"
    start, processor = time.perf_counter(), time.process_time()

    def deliver(sends: Iterator[Send] | list[Send]) -> None:
        for send in sends:
            wire.send(send.frame)

    deliver(waiting)
    while not party.finished:
        deliver(party.receive(peer, wire.frames.get(timeout=120)))
    figures |= {
        "seconds": time.perf_counter() - start,
        "processor": time.process_time() - processor,
        "sent": wire.sent / 1e6,
        "memory": resident_megabytes(),
    }
    if role == "student":
        np.save(folder / "result.npy", party.result)
    (folder / f"{role}.json").write_text(json.dumps(figures))


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
        for number, send in enumerate(Teacher(agreed, "teachers", votes).start()):
            (folder / f"{send.to}-{number:06d}.frame").write_bytes(send.frame)
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
    counts = histograms_of(votes, work.classes)
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
