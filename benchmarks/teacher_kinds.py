"""Effect of network teachers' settings on their votes about synthetic images: MNIST, at a small scale.

    python benchmarks/teacher_kinds.py [--root FOLDER] [--seeds 0 1 2] [--teachers 16] [--records 3200] [--queries 500]

Three questions, each answered by votes on queries that no teacher was made for (an untrained StyleGAN's images, and
noise), for every seed, as mean ± standard deviation over the seeds:

- initialisation: do teachers from scratch agree more when all start from the same weights?
- statistics: do current batch-norm statistics beat the original ones, where teachers are queried with other images than
  they learned from?
- share: is it better to train only a backbone's head, its last layers, or all of it?

The columns: `agreement` is the mean share of the teachers that voted for the winner; `classes` the effective number of
winning classes, e to the entropy of their frequencies (10 is all of MNIST alike, 1 is a collapse); `teacher` the mean
accuracy of teachers on real test images, in batches of 500 under the same statistics; `student` the accuracy there of
a linear student on scattering features that saw the queries and the teachers' vote histograms with replayed noise of
σ = 0.1 times the number of teachers. No figure is private: MNIST is a public benchmark.

Images are read from `--root` (default: $TERRINE_SHARED/datasets) and never downloaded. The backbone that is fine-tuned
is a ResNet10 pretrained by SimCLR on StyleGAN images, separately for every seed.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from cells import common_options, datasets
from transfer import SIZE, consensus, near_equal

from terrine.aggregation.votes import count_votes
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.heads import predict
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain
from terrine.queries import Queries
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.synthetic.program import draw
from terrine.teachers.base import TeacherKind
from terrine.teachers.networks import FinetuneKind, FinetuneTeachers, ScratchKind, ScratchTeachers
from terrine.teachers.records import Records

CLASSES = 10
SOURCES = ("stylegan", "gaussian")


@dataclass(frozen=True)
class World:
    """Shared inputs of all rows of a seed."""

    records: Records
    teachers: int
    queries: dict[str, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    scattering: Backbone
    seed: int


@dataclass(frozen=True)
class Row:
    """A choice, the queries it was tried on, and what came out."""

    question: str
    choice: str
    queries: str
    figures: tuple[float, float, float, float]


def synthetic(kind: str, count: int, seed: int, purpose: str) -> np.ndarray:
    """Return uint8 images [count, 1, 28, 28] of an image program."""
    own = derive_seed(seed, purpose)
    return draw(kind, seed=own, first=0, count=count, size=SIZE, channels=1).numpy()


def world(arguments: argparse.Namespace, seed: int) -> World:
    """Draw the records, the partition, the queries and the test images of a seed."""
    dataset = load_dataset("mnist", root=arguments.root, download=False)
    chosen = numpy_generator(seed, "records").permutation(dataset.records)[: arguments.records]
    tested = numpy_generator(seed, "test").permutation(len(dataset.test_labels))[: arguments.test]
    images, labels = np.ascontiguousarray(dataset.train_images[chosen]), dataset.train_labels[chosen]
    return World(
        Records(images, labels, iid(len(images), arguments.teachers, seed=seed), CLASSES),
        arguments.teachers,
        {kind: synthetic(kind, arguments.queries, seed, "queries") for kind in SOURCES},
        (dataset.test_images[tested], dataset.test_labels[tested]),
        build_backbone("scattering", channels=1, size=SIZE, seed=seed, projection=500),
        seed,
    )


def pretrained(arguments: argparse.Namespace, seed: int) -> Backbone:
    """Return the ResNet10 that is fine-tuned."""
    backbone = build_backbone("resnet10", channels=1, size=SIZE, seed=seed)
    images = synthetic("stylegan", arguments.pretraining, seed, "pretraining")
    batch = min(256, len(images))
    pretrain(backbone, images, SimCLRSettings(epochs=arguments.epochs, batch=batch), seed=seed, device="cpu")
    return backbone


def figures(
    world: World, voters: Iterable[TeacherKind], trained: TeacherKind
) -> Iterator[dict[str, tuple[float, ...]]]:
    """Train once, and yield for every voter (a kind that may read the states) its figures by query source."""
    states = [state for _, state in trained.train(world.records, range(world.teachers), seed=world.seed, device="cpu")]
    test_images, test_labels = world.test
    for voter in voters:
        on_test = voter.vote(states, Queries(test_images, near_equal(np.arange(len(test_images)))), device="cpu")
        accuracy = float((on_test == test_labels[:, None]).mean())
        found = {}
        for source, images in world.queries.items():
            votes = voter.vote(states, Queries(images, near_equal(np.arange(len(images)))), device="cpu")
            histograms = count_votes(votes, CLASSES)
            found[source] = (*consensus(histograms).values(), accuracy, student(world, images, histograms))
        yield found


def student(world: World, images: np.ndarray, histograms: np.ndarray) -> float:
    """Return the test accuracy of a linear student of noisy histograms."""
    sigma = 0.1 * world.teachers
    noise = numpy_generator(world.seed, "replayed noise").normal(0, sigma, histograms.shape)
    features = features_in_batches(world.scattering, images, near_equal(np.arange(len(images))), "current")
    head = fit(features, histogram_answers(histograms + noise, world.teachers, sigma), 0.3, seed=world.seed)
    test_images, test_labels = world.test
    asked = features_in_batches(world.scattering, test_images, near_equal(np.arange(len(test_images))), "current")
    return float((predict(head, asked).argmax(axis=1) == test_labels).mean())


def rows(arguments: argparse.Namespace, seed: int) -> Iterator[Row]:
    """Yield the rows of one seed."""
    here = world(arguments, seed)
    common = {"epochs": arguments.teacher_epochs, "batch": 32}

    def scratch(**settings: str) -> ScratchKind:
        return ScratchKind(ScratchTeachers(**common, **settings), 1, SIZE, CLASSES)

    for initialisation in ("shared", "own"):
        # Recorded statistics are part of a state only if they are asked for, so train with them and vote with both.
        trained = scratch(statistics="original", initialisation=initialisation)
        current = scratch(statistics="current", initialisation=initialisation)
        for choice, found in zip(("current", "original"), figures(here, (current, trained), trained), strict=True):
            for source, values in found.items():
                if choice == "current":
                    yield Row("scratch: initialisation", initialisation, source, values)
                if initialisation == "shared":
                    yield Row("scratch: statistics", choice, source, values)
    backbone = pretrained(arguments, seed)
    for percent in (0.5, 50.0, 100.0):
        settings = FinetuneTeachers(trainable=percent, **common)
        kind = FinetuneKind(settings, backbone, CLASSES)
        label = f"head and {kind.share:.0f} %"
        if percent == 0.5:
            kind.names, label = [], "head"
        (found,) = figures(here, (kind,), kind)
        for source, values in found.items():
            yield Row("finetune: share of the backbone", label, source, values)
        if percent == 50.0:
            original = FinetuneKind(settings.model_copy(update={"statistics": "original"}), backbone, CLASSES)
            (found_original,) = figures(here, (original,), original)
            for choice, by_source in (("current", found), ("original", found_original)):
                for source, values in by_source.items():
                    yield Row("finetune: statistics", choice, source, values)


def table(found: list[Row]) -> str:
    """Return the rows as a Markdown table, averaged over seeds."""
    lines = [
        "| question | choice | queries | agreement | classes | teacher | student |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for key in sorted(
        {(row.question, row.choice, row.queries) for row in found}, key=lambda key: (key[0], key[2], key[1])
    ):
        values = np.array([row.figures for row in found if (row.question, row.choice, row.queries) == key])
        mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(4)
        cells = [
            f"{scale * each:.1f} ± {scale * spread:.1f}"
            for each, spread, scale in zip(mean, deviation, (100, 1, 100, 100), strict=True)
        ]
        lines.append(f"| {' | '.join([*key, *cells])} |")
    return "\n".join(lines)


def main() -> None:
    parser = common_options(__doc__, root=datasets(), seeds=[0, 1, 2])
    parser.add_argument("--teachers", type=int, default=16)
    parser.add_argument("--records", type=int, default=3200)
    parser.add_argument("--queries", type=int, default=500, help="of each source")
    parser.add_argument("--test", type=int, default=500, help="real test images")
    parser.add_argument("--teacher-epochs", type=int, default=8)
    parser.add_argument("--pretraining", type=int, default=4096, help="StyleGAN images for SimCLR")
    parser.add_argument("--epochs", type=int, default=4, help="of SimCLR")
    arguments = parser.parse_args()
    start = time.perf_counter()
    found: list[Row] = []
    for seed in arguments.seeds:
        found.extend(rows(arguments, seed))
        print(f"seed {seed} done after {(time.perf_counter() - start) / 60:.1f} minutes", flush=True)
    print(
        f"\n{arguments.teachers} teachers on {arguments.records} records, {arguments.queries} queries of each source, "
        f"{len(arguments.seeds)} seeds; percentages, and classes out of 10.\n\n{table(found)}"
    )


if __name__ == "__main__":
    main()
