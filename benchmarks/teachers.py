"""Cost of hundreds of linear teachers, compared with the one pass of the backbone that they share.

    python benchmarks/teachers.py [--root FOLDER] [--records 60000] [--queries 10000] [--projection 1000]
    python benchmarks/teachers.py --deal [--records 20000] [--projection 200] [--repeats 5]

Three ways to the same votes, in one run on the same images:

- together: the features of all records and queries once, all heads as one batched problem, votes as one matrix product;
- loop: one teacher after the other, each with its own pass over its records and over all queries;
- loop with the backbone in every epoch: the same, but training reruns the frozen backbone in each of 50 epochs, as
  scripts do that fine-tune the last layer of a whole model.

The loops are measured on a few teachers and a share of the queries and scaled to all, which the table says. Images are
MNIST's if `--root` (default: $TERRINE_SHARED/datasets) holds them, else random ones: no time depends on the pixels.
Seconds are wall time, so compare the ratios when the machine has other work to do.

With `--deal`: what parts of unequal size cost, as a hash deals them, beside parts of equal size by a permutation.
Each repeat measures both, one after the other, in an order that alternates, in seconds of the processor, and lets both
vote on MNIST's test images.
"""

import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import common_options, datasets
from transfer import BATCH, near_equal

from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.errors import InputError
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.teachers.linear import LinearHeads, LinearTeachers, train_heads, vote
from terrine.teachers.records import private_features

CLASSES = 10
RIDGE = LinearTeachers(optimiser="ridge", ridge=0.3)
ADAM = LinearTeachers(optimiser="adam", epochs=50, batch=256)


def load_images(root: Path, records: int, queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Return uint8 records [records, 1, 28, 28], their labels, uint8 queries, and where they come from."""
    generator = np.random.default_rng(0)
    random_queries = generator.integers(0, 256, (queries, 1, 28, 28), dtype=np.uint8)
    try:
        dataset = load_dataset("mnist", root=root, download=False)
    except (InputError, RuntimeError):
        images = generator.integers(0, 256, (records, 1, 28, 28), dtype=np.uint8)
        return images, generator.integers(0, CLASSES, records), random_queries, "random images"
    return dataset.train_images[:records], dataset.train_labels[:records], random_queries, "MNIST"


def timed(compute: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    """Return wall seconds, or those of another clock, and the result."""
    start = clock()
    result = compute()
    return clock() - start, result


def parts_of(assignment: np.ndarray, teachers: int) -> list[np.ndarray]:
    """Return each teacher's record numbers."""
    order = np.argsort(assignment, kind="stable")
    return np.split(order, np.cumsum(np.bincount(assignment, minlength=teachers))[:-1])


def one_teacher(
    backbone: Backbone, images: np.ndarray, labels: np.ndarray, own: np.ndarray, queries: np.ndarray, passes: int
) -> LinearHeads:
    """Train one teacher and let it vote, with `passes` of the backbone over its records and one over the queries."""
    features = np.empty((len(own), backbone.feature_dim), np.float32)
    for _ in range(passes):
        features_in_batches(backbone, images[own], [np.arange(len(own))], "current", out=features)
    head = train_heads(features, labels[own], np.zeros(len(own), np.int64), [0], CLASSES, ADAM, seed=0)
    vote(head, features_in_batches(backbone, queries, near_equal(np.arange(len(queries))), "current"))
    return head


def together(
    backbone: Backbone,
    images: np.ndarray,
    labels: np.ndarray,
    queries: np.ndarray,
    teachers: int,
    settings: Sequence[Any],
) -> tuple[float, list[float]]:
    """Return seconds of the feature pass, and of heads and votes for each of the settings."""
    assignment = iid(len(images), teachers, seed=0)
    seconds, (features, query_features) = timed(
        lambda: (
            private_features(backbone, images, assignment, "current", most=len(images)),
            features_in_batches(backbone, queries, near_equal(np.arange(len(queries))), "current"),
        )
    )
    return seconds, [
        timed(
            lambda own=own: vote(
                train_heads(features, labels, assignment, range(teachers), CLASSES, own, seed=0), query_features
            )
        )[0]
        for own in settings
    ]


def equal_parts(records: int, teachers: int, seed: int) -> np.ndarray:
    """Return the teacher of each record, int64 [records], in parts equal up to one: no guarantee rests on these."""
    return np.random.default_rng(seed).permutation(np.arange(records) % teachers)


def deal_figures(
    backbone: Backbone, data: Dataset, tests: np.ndarray, assignment: np.ndarray, teachers: int
) -> tuple[float, ...]:
    """Return processor seconds of the feature pass and the heads; in per cent how often a teacher and their plurality
    are right on test images with the features `tests`, and the plurality's share of votes; smallest and largest part.
    """
    parts = [part for part in parts_of(assignment, teachers) if len(part)]
    images, labels = data.train_images[: len(assignment)], data.train_labels[: len(assignment)]
    passed, features = timed(lambda: features_in_batches(backbone, images, parts, "current"), time.process_time)
    trained, heads = timed(
        lambda: train_heads(features, labels, assignment, range(teachers), CLASSES, RIDGE, seed=0), time.process_time
    )
    votes = vote(heads, tests)
    counts = count_votes(votes, CLASSES)
    sizes = np.bincount(assignment, minlength=teachers)
    return (
        passed,
        trained,
        float((votes == data.test_labels[:, None]).mean() * 100),
        float((counts.argmax(axis=1) == data.test_labels).mean() * 100),
        float(counts.max(axis=1).mean() / teachers * 100),
        float(sizes.min()),
        float(sizes.max()),
    )


def compare_deals(root: Path, records: int, projection: int, repeats: int) -> None:
    """Print what parts of unequal size, as a hash deals them, cost beside parts of equal size."""
    data = load_dataset("mnist", root=root, download=False)
    backbone = build_backbone("scattering", channels=1, size=28, seed=0, projection=projection)
    tests = features_in_batches(backbone, data.test_images, near_equal(np.arange(len(data.test_images))), "current")
    deals = {"equal": equal_parts, "hashed": lambda count, teachers, seed: iid(count, teachers, seed=seed)}
    print(f"{records} records of MNIST, {projection} features, ridge, {repeats} repeats\n")
    print(
        "hashed parts: processor seconds divided by those of equal parts (median); accuracies, and what they are above "
        "those of equal parts"
    )
    print(f"{'each':>6}{'smallest':>10}{'largest':>9}{'pass':>13}{'heads':>13}", end="")
    print(f"{'one teacher':>21}{'plurality':>21}{'its votes':>21}")
    for each in (250, 25):
        teachers = records // each
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in deals}
        for seed in range(repeats):
            for name in sorted(deals, reverse=bool(seed % 2)):
                assignment = deals[name](records, teachers, seed)
                found[name].append(deal_figures(backbone, data, tests, assignment, teachers))
        equal, hashed = np.array(found["equal"]), np.array(found["hashed"])
        print(f"{each:>6}{hashed[:, 5].min():>10.0f}{hashed[:, 6].max():>9.0f}", end="")
        for column in (0, 1):
            ratios = hashed[:, column] / equal[:, column]
            print(f"{np.median(ratios):>6.2f} ± {ratios.std(ddof=1):.2f}", end="")
        for column in (2, 3, 4):
            less = hashed[:, column] - equal[:, column]
            print(f"{hashed[:, column].mean():>8.2f} {less.mean():>+6.2f} ± {less.std(ddof=1):.2f}", end="")
        print(flush=True)


def main() -> None:
    parser = common_options(__doc__, root=datasets())
    parser.add_argument("--records", type=int, default=60000)
    parser.add_argument("--queries", type=int, default=10000)
    parser.add_argument("--projection", type=int, default=1000)
    parser.add_argument("--sample", type=int, default=2, help="teachers of the measured part of the loops")
    parser.add_argument("--deal", action="store_true", help="compare parts of unequal size with equal ones instead")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of --deal")
    arguments = parser.parse_args()
    if arguments.deal:
        return compare_deals(arguments.root, arguments.records, arguments.projection, arguments.repeats)
    images, labels, queries, source = load_images(arguments.root, arguments.records, arguments.queries)
    backbone = build_backbone("scattering", channels=1, size=28, seed=0, projection=arguments.projection)
    print(f"{len(images)} records ({source}), {len(queries)} queries, {torch.get_num_threads()} threads\n")

    features, (ridge, adam) = together(backbone, images, labels, queries, 250, [RIDGE, ADAM])
    print(f"{'250 teachers':<44}{'seconds':>10}{'x features':>12}")
    for name, own in (("feature pass alone", 0.0), ("together, ridge", ridge), ("together, Adam, 50 epochs", adam)):
        print(f"{name:<44}{features + own:>10.1f}{1 + own / features:>12.2f}")
    few = queries[: max(BATCH, len(queries) // 10)]
    scale = len(queries) / len(few)
    for name, passes in (("loop", 1), ("loop, backbone in every epoch", ADAM.epochs)):
        parts = parts_of(iid(len(images), 250, seed=0), 250)[: arguments.sample]
        records_only, _ = timed(
            lambda p=passes, parts=parts: [one_teacher(backbone, images, labels, own, few[:2], p) for own in parts]
        )
        with_queries, _ = timed(
            lambda parts=parts: [one_teacher(backbone, images, labels, own, few, 1) for own in parts[:1]]
        )
        one_pass, _ = timed(
            lambda parts=parts: [one_teacher(backbone, images, labels, own, few[:2], 1) for own in parts[:1]]
        )
        total = 250 * (records_only / len(parts) + scale * (with_queries - one_pass))
        print(
            f"{name + ' (scaled)':<44}{total:>10.0f}{total / features:>12.0f}   "
            f"{total / (features + adam):.0f}x together with Adam"
        )
    many, (ridge_many,) = together(backbone, images, labels, queries, 2000, [RIDGE])
    print(
        f"\n{'2,000 teachers, together, ridge':<44}{many + ridge_many:>10.1f}{1 + ridge_many / many:>12.2f}", end="   "
    )
    print(f"{(many + ridge_many) / (features + ridge):.2f}x of 250 teachers")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
