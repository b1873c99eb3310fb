"""Rivals of DPSD and FedDPSD on MNIST: LP-2ST and FedAvg (Liu et al. 2026, Tables IV and V), with a small network.

    python -m benchmarks.dpsd_rivals [--root FOLDER] [--work FOLDER] [--seeds 0 1 2 3 4] [--records 10000]

LP-2ST (Ghazi et al. 2021, algorithms 2 and 3) protects labels only: a first half of the labels is randomised evenly,
and a network that learned from these gives the prior by which the other half is randomised. FedAvg (McMahan et al.
2017) protects nothing: five clients of Dirichlet(0.5), averaged after each of `--rounds` passes. Networks are those of
`dpsd-mnist-small`, judged in batches under current statistics. Noise is replayed. Finished cells are kept in --work.
"""

import copy
import math

import numpy as np
import torch

from benchmarks.cells import KEPT, Cells, common_options, datasets, spread
from benchmarks.comparison import store
from benchmarks.transfer import SETTINGS, SIZE, near_equal
from terrine.data.dataset import Dataset
from terrine.data.partition import dirichlet
from terrine.determinism.randomness import numpy_generator, torch_generator
from terrine.models.backbone import as_float
from terrine.models.statistics import batch_statistics
from terrine.teachers.network_training import Classifier, train_classifier
from terrine.teachers.networks import ScratchKind, ScratchTeachers

CLASSES = 10


def answer_probabilities(labels: np.ndarray, prior: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the probabilities [records, classes] of what randomised response with a prior answers.

    Only the k most probable classes are answered, with the k that makes a right answer most probable. A label among
    them is kept with probability e^ε / (e^ε + k - 1); one that is not becomes any of them.

    Args:
        labels: int64 [records].
        prior: Probabilities [records, classes] that do not depend on these labels.
        epsilon: ε if a label is replaced.
    """
    rank = np.argsort(np.argsort(-prior, axis=1, kind="stable"), axis=1)
    odds = math.exp(epsilon)
    sizes = np.arange(1, prior.shape[1] + 1)
    right = odds / (odds + sizes - 1) * np.cumsum(-np.sort(-prior, axis=1), axis=1)
    kept = sizes[right.argmax(axis=1)][:, None]
    inside = rank < kept
    own = np.arange(prior.shape[1]) == labels[:, None]
    randomised = np.where(own, odds, 1.0) / (odds + kept - 1)
    return inside * np.where((own & inside).any(axis=1, keepdims=True), randomised, 1 / kept)


def randomised(labels: np.ndarray, prior: np.ndarray, epsilon: float, seed: int, name: str) -> np.ndarray:
    """Return labels after randomised response with a prior, and replayed noise."""
    drawn = numpy_generator(seed, name).random((len(labels), 1))
    return (answer_probabilities(labels, prior, epsilon).cumsum(axis=1) < drawn).sum(axis=1).clip(max=CLASSES - 1)


class Network:
    """A network from scratch that learns from images, uint8 [records, 1, 28, 28], and labels, one pass at a time."""

    def __init__(self, seed: int) -> None:
        self.seed, self.passes, self.settings = seed, 0, ScratchTeachers(epochs=1, batch=128)
        self.classifier: Classifier = ScratchKind(self.settings, 1, SIZE, CLASSES).classifier(seed)

    def learn(self, images: np.ndarray, labels: np.ndarray, passes: int, name: str = "") -> None:
        """Take `passes` passes over records."""
        for _ in range(passes):
            self.passes += 1
            generator = torch_generator(self.seed, f"pass of {name}", self.passes)
            train_classifier(
                self.classifier, torch.from_numpy(images), torch.from_numpy(labels), generator, "current", self.settings
            )

    def probabilities(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities [images, classes], in batches under current statistics."""
        with torch.no_grad(), batch_statistics(self.classifier, "current"):
            parts = [
                self.classifier(as_float(torch.from_numpy(images[rows]))) for rows in near_equal(np.arange(len(images)))
            ]
        return torch.cat(parts).softmax(1).numpy()


def two_stages(data: Dataset, epsilon: float, seed: int, passes: int) -> Network:
    """Return the network of LP-2ST; `passes` over both halves."""
    halves = np.array_split(np.arange(data.records), 2)
    images, labels = data.train_images, data.train_labels.copy()
    even = np.full((len(halves[0]), CLASSES), 1 / CLASSES)
    labels[halves[0]] = randomised(labels[halves[0]], even, epsilon, seed, "first stage")
    first = Network(seed)
    first.learn(images[halves[0]], labels[halves[0]], passes)
    prior = first.probabilities(images[halves[1]])
    labels[halves[1]] = randomised(labels[halves[1]], prior, epsilon, seed, "second stage")
    second = Network(seed)
    second.learn(images, labels, passes)
    return second


def averaged(data: Dataset, seed: int, rounds: int) -> Network:
    """Return the network of FedAvg."""
    client = dirichlet(data.train_labels, 5, 0.5, seed=seed)
    server = Network(seed)
    for _ in range(rounds):
        states, shares = [], []
        for number in range(5):
            local, rows = copy.deepcopy(server), np.flatnonzero(client == number)
            local.learn(data.train_images[rows], data.train_labels[rows], 1, f"client {number}")
            states.append(local.classifier.state_dict())
            shares.append(len(rows) / data.records)
        server.passes += 1
        mean = {
            name: sum(share * state[name] for share, state in zip(shares, states, strict=True))
            if value.is_floating_point()
            else value
            for name, value in states[0].items()
        }
        server.classifier.load_state_dict(mean)
    return server


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=3, help="of LP-2ST")
    parser.add_argument("--rounds", type=int, default=5, help="of FedAvg")
    options = parser.parse_args()
    whole = SETTINGS["mnist"].load(options.root)
    if whole is None:
        raise SystemExit(f"MNIST is not under {options.root}: give its folder as --root.")
    cells = Cells(options.work / "dpsd-rivals.jsonl")

    def accuracy(name: str, seed: int) -> float:
        chosen = numpy_generator(seed, "records").permutation(whole.records)[: options.records]
        data = Dataset(
            whole.name, whole.train_images[chosen], whole.train_labels[chosen], None, whole.test_images,
            whole.test_labels, whole.class_names,
        )  # fmt: skip
        made = averaged(data, seed, options.rounds) if name == "FedAvg" else two_stages(data, 1.0, seed, options.passes)
        return float((made.probabilities(data.test_images).argmax(1) == data.test_labels).mean())

    lines = []
    for name, protected, published in (("LP-2ST", "labels, ε = 1", "95.82"), ("FedAvg", "nothing", "90.55")):
        found = [
            cells.get(f"{name}, {options.records}, seed {seed}", lambda n=name, s=seed: {"accuracy": accuracy(n, s)})
            for seed in options.seeds
        ]
        lines.append([name, protected, spread(each["accuracy"] for each in found), published])
        print(*lines[-1], sep=" | ", flush=True)
    store(
        "transcription/rivals",
        [f"MNIST, {options.records:,} records, small networks", "protected", "accuracy, %", "published, %"],
        lines,
        command="python -m benchmarks.dpsd_rivals",
        seeds=len(options.seeds),
        spread="standard deviation",
    )


if __name__ == "__main__":
    main()
