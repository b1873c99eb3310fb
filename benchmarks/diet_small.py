"""DIET-PATE's Tables 8 and 11 and Figure 6, so small that two cores make them in minutes.

    python benchmarks/diet_small.py [--root FOLDER] [--work FOLDER] [--seeds 0 1 2] [--images 2048] [--epochs 3]
                                    [--teachers 20] [--queries 1000] [--architectures resnet10 resnet18 vgg9]

MNIST, teachers with 300 records each as in the paper, only last layers trained, current statistics, a start pretrained
by SimCLR on synthetic images. Three questions:

- Table 8: how good is a teacher, by the program that drew the images of the pretraining? And without pretraining.
- Table 11: teacher and student by the backbone's architecture; a DenseNet121 takes many times as long.
- Figure 6: which share of the student's weights is best trained, on answers about StyleGAN's images and about noise?

Teachers are ridge heads, and their votes are released as histograms with replayed noise of a tenth of their number,
half the paper's 40 of 200, so no figure is at an ε. The student has the paper's epochs, rate and batch, and learns
from the teachers' own start. Judged by `--test` test images. Seeds draw records, images, start and noise. Finished
cells are kept in --work.
"""

import argparse
from collections.abc import Callable
from functools import cache

import numpy as np
from cells import KEPT, Cells, common_options, datasets, spread
from transfer import SETTINGS, SIZE, near_equal, query_images, teach

from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.determinism.randomness import numpy_generator
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain
from terrine.queries import Queries
from terrine.students.answers import histogram_answers
from terrine.students.gradient import FinetuneStudent
from terrine.students.student import FittedStudent, StudentData
from terrine.teachers.linear import vote

PROGRAMS = ("dead_leaves", "stylegan", "mixup")
SHARES = (0.0, 20.0, 100.0)
RECORDS = 300


@cache
def start(kind: str, program: str | None, images: int, epochs: int, seed: int) -> Backbone:
    """Return a backbone that learned from a program's images, or from none."""
    backbone = build_backbone(kind, channels=1, size=SIZE, seed=seed)
    if program is not None:
        drawn = query_images(program, images, 1, seed=seed + 1_000)
        pretrain(backbone, drawn, SimCLRSettings(epochs=epochs, batch=256), seed=seed, device="cpu")
    return backbone


def small(data: Dataset, arguments: argparse.Namespace, seed: int) -> Dataset:
    """Return a subset with only the records that the teachers need and `--test` test images."""
    chosen = numpy_generator(seed, "records").permutation(data.records)[: RECORDS * arguments.teachers]
    tested = numpy_generator(seed, "test").permutation(len(data.test_labels))[: arguments.test]
    return Dataset(
        data.name, data.train_images[chosen], data.train_labels[chosen], None, data.test_images[tested],
        data.test_labels[tested], data.class_names,
    )  # fmt: skip


def figures(
    data: Dataset, arguments: argparse.Namespace, backbone: Backbone, queries: str, share: float | None, seed: int
) -> dict[str, float]:
    """Return the mean accuracy of the teachers, and that of a student of which `share` per cent were trained."""
    data = small(data, arguments, seed)
    taught = teach(data, backbone, arguments.teachers, seed=seed)
    found = {"teacher": float((vote(taught.heads, taught.test) == taught.test_labels[:, None]).mean())}
    if share is None:
        return found
    images = query_images(queries, arguments.queries, 1, seed=seed)
    batches = near_equal(np.arange(len(images)))
    histograms = count_votes(vote(taught.heads, features_in_batches(backbone, images, batches, "current")), 10)
    sigma = 0.1 * arguments.teachers
    noisy = histograms + numpy_generator(seed, "replayed noise").normal(0, sigma, histograms.shape)
    answers = histogram_answers(noisy, arguments.teachers, sigma)
    pool = Queries(images, batches, [queries] * len(batches))
    settings = FinetuneStudent(
        trainable=share, start="shared", epochs=arguments.student_epochs, schedule="constant", learning_rate=0.001,
        train_batch=256, ema=0, patience=None, l2=0,
    )  # fmt: skip
    student = settings.train(StudentData(pool, np.arange(len(images)), answers, backbone, "current"), seed=seed)
    fitted = FittedStudent(student.backbone or backbone, student.head, "current", 256)
    return found | {"student": fitted.score((data.test_images, data.test_labels))}


def main() -> None:
    """Make the tables."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=[0, 1, 2])
    parser.add_argument("--images", type=int, default=2048, help="of the pretraining")
    parser.add_argument("--epochs", type=int, default=3, help="of the pretraining")
    parser.add_argument("--teachers", type=int, default=20)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--student-epochs", type=int, default=50)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--architectures", nargs="+", default=["resnet10", "resnet18", "vgg9"])
    arguments = parser.parse_args()
    data = SETTINGS["mnist"].load(arguments.root)
    if data is None:
        raise SystemExit(f"MNIST is not under {arguments.root}: give its folder as --root.")
    cells = Cells(arguments.work / "diet_small.jsonl")
    size = f"{arguments.images} images, {arguments.epochs} epochs, {arguments.teachers} teachers"
    size += f", {arguments.queries} queries"
    rows: dict[str, Callable[[int], dict[str, float]]] = {}

    def add(name: str, kind: str, program: str | None, queries: str = "stylegan", share: float | None = None) -> None:
        def compute(seed: int) -> dict[str, float]:
            backbone = start(kind, program, arguments.images, arguments.epochs, seed)
            return figures(data, arguments, backbone, queries, share, seed)

        rows[name] = compute

    for program in (*PROGRAMS, None):
        add(f"Table 8 | ResNet10, {program or 'not pretrained'}", "resnet10", program)
    for kind in arguments.architectures:
        add(f"Table 11 | {kind}", kind, "stylegan", share=0.0)
    for queries in ("stylegan", "gaussian"):
        for share in SHARES:
            add(f"Figure 6 | {queries}, {share:g} % of the student", "resnet10", "stylegan", queries, share)
    made: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    for seed in arguments.seeds:
        for name, compute in rows.items():
            made[name].append(
                cells.get(f"{name}, {size}, seed {seed}", lambda seed=seed, compute=compute: compute(seed))
            )
    print(f"\n{size}, {len(arguments.seeds)} seeds\n\n| table | choice | teacher % | student % |\n|---|---|---:|---:|")
    for name, found in made.items():
        student = spread([one["student"] for one in found]) if "student" in found[0] else "–"
        print(f"| {name} | {spread([one['teacher'] for one in found])} | {student} |")


if __name__ == "__main__":
    main()
