"""Speed of a served student, and its accuracy by the batch that it answers in.

    python benchmarks/serving.py speed --folder data/release/terrine-mnist/student
    python benchmarks/serving.py batches --folder data/release/terrine-mnist/student --data mnist --root SOURCE
    python benchmarks/serving.py company --data mnist --root SOURCE --epsilon 4 --images 1500

`speed`: median latency for one image and images per second for 512, in process and over HTTP, beside the plain way
(one batch through the backbone, then the head). `batches`: accuracy on a dataset's test split by size of the request,
without filling, filled up with reference images as equals, and as served; for requests in which one class is more
frequent; and for statistics that do not depend on the request. `company`: accuracy lost by
answers that do not depend on the rest of the batch, for students made in memory as `your-own-images` makes them. All
print Markdown tables.
"""

import copy
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from cells import common_options, heading, row

import terrine
from terrine.data.source import load_dataset
from terrine.deployment.model import FILLING, SMALL, StudentModel
from terrine.heads import Head, predict
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.released_statistics import bound_for, set_statistics, statistics_from, unit_vectors
from terrine.planning import plan
from terrine.ports import free_ports
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit

SYNTHETIC = f"{FILLING} synthetic"
RECORDS, QUERIES, SHARES = 12_000, 3_000, (0.0, 0.02, 0.05)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def median_seconds(call: Callable[[], object], seconds: float) -> float:
    """Return the median time of a call, repeated for about `seconds` after two warm-up calls."""
    call()
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def speed(folder: Path, seconds: float) -> None:
    """Print the table of latencies and rates."""
    rows: list[tuple[str, float, float]] = []
    model = StudentModel.load(folder, "current")
    assert model.reference is not None
    many = np.resize(model.reference, (512, *model.reference.shape[1:]))
    one = many[:1]

    @torch.no_grad()
    def plain(batch: np.ndarray) -> np.ndarray:
        return model.network(torch.from_numpy(batch)).numpy()

    def measured(name: str, answer: Callable[[np.ndarray], object], *batches: np.ndarray) -> None:
        rows.append((name, *(median_seconds(lambda b=b: answer(b), seconds) for b in batches)))

    measured("plain network, one batch (at least 2)", plain, many[:2], many)
    for kind in ("current", "single", "frozen"):
        measured(f"in process, {kind}", StudentModel.load(folder, kind).predict, one, many)
    (port,) = free_ports()
    command = [sys.executable, "-m", "flows", "serve", "--folder", str(folder), "--port", str(port)]
    project = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(project)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rows += over_http(f"http://127.0.0.1:{port}", one, many, seconds, server)
    finally:
        server.terminate()
        server.wait(30)
    print(f"{torch.get_num_threads()} threads, {model.size} x {model.size} x {model.channels}")
    heading("way", "1 image, p50 ms", "512 images, ms", "images/s")
    for name, short, long in rows:
        row(name, f"{1000 * short:.1f}", f"{1000 * long:.0f}", f"{512 / long:,.0f}")


def over_http(
    address: str, one: np.ndarray, many: np.ndarray, seconds: float, server: subprocess.Popen[bytes]
) -> list[tuple[str, float, float]]:
    """Return rows of the table for the two routes of the service, on one connection that is kept."""
    import requests

    session = requests.Session()
    for _ in range(600):
        try:
            session.get(f"{address}/ping", timeout=5)
            break
        except requests.ConnectionError:
            if server.poll() is not None:
                raise SystemExit("The server ended by itself.") from None
            time.sleep(0.2)

    def npy(batch: np.ndarray) -> tuple[str, bytes, str]:
        stream = io.BytesIO()
        np.save(stream, batch)
        return "/images", stream.getvalue(), "application/x-npy"

    def as_json(batch: np.ndarray) -> tuple[str, bytes, str]:
        values = (batch / np.float32(255)).astype(np.float32).round(4).tolist()
        return "/invocations", json.dumps({"inputs": values}).encode(), "application/json"

    def ask(path: str, body: bytes, content: str) -> None:
        answer = session.post(address + path, data=body, headers={"content-type": content}, timeout=120)
        assert answer.status_code == 200, answer.text

    rows = []
    for name, encode in (("HTTP, .npy to /images", npy), ("HTTP, JSON to /invocations", as_json)):
        requests_ = [encode(one), encode(many)]
        rows.append((name, *(median_seconds(lambda r=r: ask(*r), seconds) for r in requests_)))
    return rows


def accuracy(predict: Callable[[np.ndarray], np.ndarray], images: np.ndarray, labels: np.ndarray, size: int) -> float:
    """Return the share of right answers in percent when images are asked about in requests of `size`."""
    starts = range(0, len(images) - size + 1, size)
    right = [(predict(images[start : start + size]).argmax(axis=1) == labels[start : start + size]) for start in starts]
    return 100 * float(np.concatenate(right).mean())


def batches(folder: Path, data: str, root: Path, most: int, few: int) -> None:
    """Print the tables of accuracies. Own reference images come from the end of the test split, which is left out."""
    model = StudentModel.load(folder, "current")
    assert model.reference is not None
    dataset = load_dataset(data, root=root, size=model.size, channels=model.channels, download=False)
    order = np.random.default_rng(0).permutation(len(dataset.test_labels))
    own, used = dataset.test_images[order[-256:]], order[:-256][:most]
    images, labels = dataset.test_images[used], dataset.test_labels[used]
    filling = torch.from_numpy(model.reference[:FILLING].copy())

    @torch.no_grad()
    def alone(batch: np.ndarray) -> np.ndarray:
        return model.network(torch.from_numpy(batch)).numpy()

    @torch.no_grad()
    def as_equals(batch: np.ndarray) -> np.ndarray:
        filled = torch.cat([torch.from_numpy(batch), filling[: max(0, FILLING - len(batch))]])
        return model.network(filled)[: len(batch)].numpy()

    print(f"{data}, {len(images):,} test images (requests of fewer than {SMALL}: the first {few:,}), accuracy in %")
    heading("images in a request", "alone", "filled to 16 as equals", "as served")
    for size in SIZES:
        count = few if size < SMALL else len(images)
        chosen = images[:count], labels[:count]
        cells = [
            f"{accuracy(alone, *chosen, size):.2f}" if size > 1 else "–",
            f"{accuracy(as_equals, *chosen, size):.2f}" if size < FILLING else "–",
            f"{accuracy(model.predict, *chosen, size):.2f}" if size <= len(images) else "–",
        ]
        row(size, *cells)

    heading("statistics", "reference images", "accuracy of any image, alone or not")
    fixed = {}
    for kind, reference, name in [
        ("single", None, SYNTHETIC),
        ("frozen", None, SYNTHETIC),
        *((kind, own[:count], f"{count} own") for kind in ("single", "frozen") for count in (16, 64, 256)),
    ]:
        fixed[kind, name] = StudentModel.load(folder, kind, reference=reference)
        row(kind, name, f"{accuracy(fixed[kind, name].predict, images, labels, len(images)):.2f}")

    heading("share of one class in a request of 64", "current", "single", "frozen on 256 own")
    chosen_models = (model, fixed["single", SYNTHETIC], fixed["frozen", "256 own"])
    for share in (None, 0.5, 0.8, 0.95, 1.0):
        picked = skewed(labels, share, 64, requests=4 * len(dataset.class_names))
        cells = [f"{accuracy(each.predict, images[picked], labels[picked], 64):.2f}" for each in chosen_models]
        row("as in the data" if share is None else f"{share:.0%}", *cells)


def company(data: str, root: Path, epsilon: float, most: int) -> None:
    """Make students as `your-own-images` does, in memory; print their accuracies by statistics and by company."""
    where = {} if data == "digits" else {"root": root, "download": False}
    dataset = load_dataset(data, **where, **({"size": 28, "channels": 3} if data == "bloodmnist" else {}))
    chosen = np.sort(np.random.default_rng(0).permutation(dataset.records)[:RECORDS])
    dataset = replace(
        dataset,
        train_images=np.asarray(dataset.train_images)[chosen],
        train_labels=dataset.train_labels[chosen],
        train_names=None,
        train_groups=None,
    )
    order = np.random.default_rng(0).permutation(len(dataset.test_labels))[:most]
    images, labels = np.asarray(dataset.test_images)[order], dataset.test_labels[order]
    queries = terrine.draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=dataset)
    backbone = terrine.Scattering(projection=100, invariance=True, deformations={"rotation": 15, "shift": 0.1}).fit(
        queries
    )
    features = features_in_batches(backbone, queries.inputs, queries.batches, "current")
    units = np.arange(dataset.records)
    found: dict[str, list[float]] = {}

    def note(name: str, predictions: np.ndarray, of: np.ndarray = labels) -> None:
        found.setdefault(name, []).append(100 * float((predictions == of).mean()))

    def answer(head: Head, statistics: str, asked: np.ndarray, network: Backbone = backbone) -> np.ndarray:
        requests = np.array_split(np.arange(len(asked)), max(1, round(len(asked) / 200)))
        return predict(head, features_in_batches(network, asked, requests, statistics)).argmax(1)

    budget = {"classes": dataset.classes, "epsilon": epsilon, "delta": 1e-5, "queries": QUERIES}
    teachers = plan(dataset.records, **budget).teachers
    parts = terrine.partition(dataset, teachers=teachers)
    votes = terrine.LinearTeachers(ridge=0.1).fit(dataset, parts, backbone).vote(queries).values
    counts = np.stack([(votes == label).sum(1) for label in range(dataset.classes)], 1)
    for share in SHARES:
        sigma = plan(dataset.records, **budget, teachers=teachers, moments=share).sigma
        for seed in range(2):
            noise = ReplayNoise(seed)
            answers = histogram_answers(counts + noise.gaussian(counts.shape, sigma), teachers, sigma)
            head = fit(features, answers, seed=0, l2=0.5)

            if not share:
                by_class = np.argsort(labels, kind="stable")
                note("`current`, mixed requests of 200", answer(head, "current", images))
                note("`current`, 200 in order of class", answer(head, "current", images[by_class]), labels[by_class])
                note("`original`", answer(head, "original", images))
                continue
            mechanism = ClippedMean.for_share(share, epsilon, 1e-5)
            bound = bound_for(backbone, dataset.records, mechanism.noise_multiplier)
            vectors = unit_vectors(backbone, dataset.train_images, units, bound)
            mean = mechanism.mean(mechanism.release(vectors, noise))
            moved = copy.deepcopy(backbone)
            set_statistics(moved, statistics_from(backbone, *mean, bound))
            note(f"`released`, {100 * share:g} % of the budget", answer(head, "original", images, moved))
    heading(f"{data}, {dataset.records:,} records, ε = {epsilon:g}, {len(labels):,} images", "accuracy %")
    for name, accuracies in found.items():
        row(name, f"{np.mean(accuracies):.1f}")


def skewed(labels: np.ndarray, share: float | None, size: int, requests: int) -> np.ndarray:
    """Return indices of requests one after the other, in which the classes take turns having `share` of the images."""
    generator = np.random.default_rng(1)
    classes = np.unique(labels)
    parts = []
    for number in range(requests):
        if share is None:
            parts.append(generator.choice(len(labels), size, replace=False))
            continue
        inside = np.flatnonzero(labels == classes[number % len(classes)])
        outside = np.flatnonzero(labels != classes[number % len(classes)])
        count = round(share * size)
        chosen = [generator.choice(inside, count, replace=len(inside) < count), generator.choice(outside, size - count)]
        parts.append(generator.permutation(np.concatenate(chosen)))
    return np.concatenate(parts)


def main() -> None:
    """Read the command line."""
    parser = common_options(__doc__)
    parser.add_argument("table", choices=("speed", "batches", "company"))
    parser.add_argument("--folder", type=Path, help="speed, batches: the student's folder")
    parser.add_argument("--epsilon", type=float, default=8.0, help="company: the student's budget")
    parser.add_argument("--seconds", type=float, default=3.0, help="speed: seconds per figure")
    parser.add_argument("--data", default="mnist", help="batches: a dataset of `terrine params data.name`")
    parser.add_argument("--root", type=Path, default=Path("data/private/source"), help="batches: where its files lie")
    parser.add_argument("--images", type=int, default=10_000, help="batches: most test images")
    parser.add_argument("--few", type=int, default=2_000, help="batches: images asked about in small requests")
    arguments = parser.parse_args()
    if arguments.table == "speed":
        speed(arguments.folder, arguments.seconds)
    elif arguments.table == "company":
        company(arguments.data, arguments.root, arguments.epsilon, arguments.images)
    else:
        batches(
            arguments.folder, arguments.data, arguments.root, arguments.images, min(arguments.few, arguments.images)
        )


if __name__ == "__main__":
    main()
