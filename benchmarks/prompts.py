"""Prompt teachers trained together in shared passes through the source, against one by one: seconds and memory.

    python benchmarks/prompts.py                          # 100 teachers of 60 records, ResNet18 at 28×28
    python benchmarks/prompts.py --teachers 20 --device cuda

Each way runs in a separate process, so that peak memory is measured separately; the time covers only training. One by
one is the plain program: torch's Adam on one teacher's records, in batches of 16, with all of torch's threads, in
torch's own layout of images; and the same with channels last, which the project's has. All start from the same weights
and take the same batches. Results agree up to rounding. Adam's first steps have the length of the rate for any
gradient, so weights with an almost zero gradient may differ visibly. Printed are the median and the largest difference
of the trained values, and the share of equal votes.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from cells import common_options, heading, row

from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.models.architecture import build_backbone
from terrine.models.statistics import batch_statistics
from terrine.queries import Queries
from terrine.synthetic.program import draw
from terrine.teachers.network_training import epoch_batches
from terrine.teachers.prompt import PromptKind, PromptTeachers
from terrine.teachers.records import Records

CLASSES, SIZE = 8, 28


def problem(arguments: argparse.Namespace) -> tuple[PromptKind, Records]:
    """Return the kind and its records: synthetic images, since what they show changes neither time nor memory."""
    count = arguments.teachers * arguments.records
    images = draw("stylegan", seed=1, first=0, count=count, size=SIZE, channels=3).numpy()
    labels = numpy_generator(0, "labels").integers(0, CLASSES, count)
    backbone = build_backbone(arguments.backbone, channels=3, size=SIZE, seed=0)
    prompt = {"epochs": arguments.epochs, "together": arguments.together}
    settings = PromptTeachers(statistics=arguments.statistics, prompt=prompt)
    records = Records(images, labels, np.repeat(np.arange(arguments.teachers), arguments.records), CLASSES)
    return PromptKind(settings, backbone, CLASSES), records


def together(kind: PromptKind, records: Records, teachers: int, device: str) -> dict[str, np.ndarray]:
    """Train all teachers in shared passes, as the project does."""
    states = dict(kind.train(records, range(teachers), seed=0, device=device))
    return {name: np.stack([states[teacher][name] for teacher in range(teachers)]) for name in states[0]}


def one_by_one(
    kind: PromptKind,
    records: Records,
    teachers: int,
    device: str,
    layout: torch.memory_format = torch.contiguous_format,
) -> dict[str, np.ndarray]:
    """The plain program."""
    settings, found = kind.prompt, []
    kind.backbone.to(device, memory_format=layout)
    for teacher in range(teachers):
        omega = {name: value.to(device).requires_grad_() for name, value in kind.initial(0, teacher).items()}
        optimiser = torch.optim.Adam(omega.values(), lr=settings.learning_rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, settings.decay)
        own = np.flatnonzero(records.assignment == teacher)
        images = kind.place(torch.from_numpy(records.inputs[own]).to(device))
        labels = torch.from_numpy(records.labels[own]).to(device)
        generator = torch_generator(0, "teacher shuffle", teacher)
        for _ in range(settings.epochs):
            for batch in epoch_batches(len(own), settings.batch, generator):
                with batch_statistics(kind.backbone, kind.settings.statistics):
                    outputs = kind.backbone.network(images[batch] + kind.pattern(omega["border"][None]))
                loss = F.cross_entropy(outputs @ omega["weight"].T + omega["bias"], labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            schedule.step()
        found.append({name: value.detach().cpu().numpy() for name, value in omega.items()})
    return {name: np.stack([state[name] for state in found]) for name in found[0]}


WAYS = {
    "together": together,
    "one by one": one_by_one,
    "one by one, channels last": partial(one_by_one, layout=torch.channels_last),
}


def measure(arguments: argparse.Namespace) -> None:
    """Run one way, and write what it cost and what came out."""
    kind, records = problem(arguments)
    train = WAYS[arguments.way]
    few = Records(records.inputs[: 2 * arguments.records], records.labels[: 2 * arguments.records],
                  records.assignment[: 2 * arguments.records], CLASSES)  # fmt: skip
    train(kind, few, 2, arguments.device)  # libraries choose their kernels in the first call
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    states = train(kind, records, arguments.teachers, arguments.device)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    np.savez(arguments.out, **states)
    print(json.dumps({"seconds": seconds, "peak_mb": peak / 1024, "grown_mb": (peak - before) / 1024}))


def main() -> None:
    parser = common_options(__doc__, repeats=3)
    parser.add_argument("--teachers", type=int, default=100)
    parser.add_argument("--records", type=int, default=60, help="of each teacher")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--statistics", choices=["current", "original"], default="original")
    parser.add_argument("--together", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments)
        return
    costs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for way in costs:
                command = [sys.executable, __file__, *sys.argv[1:], "--way", way, "--out", f"{folder}/{way}.npz"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                costs[way].append(json.loads(done.stdout.splitlines()[-1]))
        states = [dict(np.load(f"{folder}/{way}.npz")) for way in costs]
    kind, _ = problem(arguments)
    apart = np.concatenate([np.abs(states[0][name] - states[1][name]).ravel() for name in states[0]])
    images = draw("stylegan", seed=2, first=0, count=256, size=SIZE, channels=3).numpy()
    asked = Queries(images, [np.arange(len(images))])
    votes = [
        kind.vote([{name: own[name][teacher] for name in own} for teacher in range(arguments.teachers)], asked)
        for own in states
    ]
    seconds = {way: statistics.median(cost["seconds"] for cost in found) for way, found in costs.items()}
    print(
        f"{arguments.teachers} teachers of {arguments.records} records, {arguments.epochs} epochs, "
        f"{arguments.backbone}, {arguments.statistics} statistics, {arguments.device}, "
        f"{torch.get_num_threads()} threads"
    )
    heading("way", "seconds", "records/s", "peak memory MB")
    work = arguments.teachers * arguments.records * arguments.epochs
    for way, found in costs.items():
        peak = statistics.median(cost["peak_mb"] for cost in found)
        row(way, f"{seconds[way]:.1f}", f"{work / seconds[way]:,.0f}", f"{peak:,.0f}")
    print()
    for way in list(WAYS)[1:]:
        print(f"{way} / together: {seconds[way] / seconds['together']:.2f}")
    print(f"difference of what was trained: median {np.median(apart):.1e}, largest {apart.max():.1e}")
    print(f"equal votes: {100 * (votes[0] == votes[1]).mean():.2f} %")


if __name__ == "__main__":
    main()
