"""DIET-PATE's Tables 2, 3, 6, 8 and 11 and Figures 6 and 9, so small that one core makes a seed in minutes.

    python -m benchmarks.diet_small [--root FOLDER] [--work FOLDER] [--seeds 0 1 2 3 4] [--images 1024] [--epochs 3]
                                    [--teachers 10] [--queries 500] [--rows "Table 3" ...] [--store]

MNIST, teachers with 300 records each as in the paper, current statistics, networks pretrained by SimCLR on synthetic
images:

- Table 2: do students learn more if teachers and student start from the same weights? ResNet10 from scratch.
- Table 3: which share of the teachers' and of the student's weights is best trained, on answers about noise?
- Figure 6: the same of the student, also on answers about StyleGAN's images.
- Tables 6 and 8: how good is a teacher, by the program that drew the images of the pretraining, and without any?
- Table 11: teacher and student by the backbone's architecture; a DenseNet121 takes many times as long.
- Figure 9: how many teachers agree, on noise and on MNIST's own test images?

Teachers of which only the last layer is trained are ridge heads, the others take four passes of Adam. A share is
rounded up to whole tensors: 20 % of a ResNet10 are 51. Votes are released as histograms with replayed noise of a tenth
of the number of teachers, half the paper's 40 of 200, so no figure is at an ε. Students take 96 steps of Adam.
`--test` test images judge. Seeds draw records, images, start and noise. Finished cells are kept in --work.
"""

import argparse
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.cells import KEPT, Cells, common_options, datasets, spread
from benchmarks.comparison import store
from benchmarks.transfer import SETTINGS, SIZE, consensus, near_equal, query_images, teach
from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.pretraining.settings import SimCLRSettings
from terrine.pretraining.simclr import pretrain
from terrine.queries import Queries
from terrine.students.answers import histogram_answers
from terrine.students.gradient import FinetuneStudent
from terrine.students.student import FittedStudent, StudentData
from terrine.teachers.base import start_seed
from terrine.teachers.linear import vote
from terrine.teachers.networks import FinetuneKind, FinetuneTeachers, NetworkKind, ScratchKind, ScratchTeachers
from terrine.teachers.records import Records

RECORDS, BATCH, CLASSES = 300, 64, 10
SHOWN = {"stylegan": "StyleGAN", "gaussian": "noise"}
STARTS = {"shared": "same start", "own": "own starts"}
STUDENTS = {"shared": "start of the teachers (of the first)", "own": "another start"}


@dataclass(frozen=True)
class Teachers:
    """Teachers: ridge heads (`share` 0), fine-tuned (`share`), or from scratch (`initialisation`)."""

    kind: str = "resnet10"
    program: str | None = "stylegan"
    share: float = 0.0
    initialisation: str | None = None


@dataclass(frozen=True)
class Row:
    """A row: teachers, and a student that learns from their votes on `queries`.

    Attributes:
        share: Per cent of the student's weights that are trained; None: no student.
        start: Where the student starts: the `shared` weights of its teachers, or its `own`.
        published: The paper's accuracy: of the student, or of the teachers.
    """

    table: str
    choice: str
    teachers: Teachers
    queries: str = "gaussian"
    share: float | None = None
    start: str = "shared"
    published: str = "–"


def rows() -> list[Row]:
    """Return all rows, the most important first."""
    published = {None: "–", "dead_leaves": "84.46", "stylegan": "85.13", "mixup": "76.14"}
    made = [
        Row("Table 8", f"ResNet10, {name or 'not pretrained'}", Teachers(program=name), published=published[name])
        for name in ("dead_leaves", "stylegan", "mixup", None)
    ]
    made += [
        Row("Table 11", shown, Teachers(kind=kind), "stylegan", 0.0, published=figure)
        for kind, shown, figure in (
            ("resnet10", "ResNet10", "–"),
            ("resnet18", "ResNet18", "89.83"),
            ("vgg9", "VGG9", "74.42"),
        )
    ]
    made += [
        Row(
            "Figure 6",
            f"{SHOWN[queries]}, {'all' if share == 100 else f'{share:g} %' if share else 'last layer'} of the student",
            Teachers(),
            queries,
            share,
        )
        for queries in SHOWN
        for share in (0.0, 20.0, 100.0)
    ]
    figures = {"shared shared": "63.6", "own shared": "51.5", "shared own": "59.2", "own own": "51.4"}
    for queries in ("gaussian", "stylegan"):
        made += [
            Row(
                "Table 2",
                f"{SHOWN[queries]}; teachers: {STARTS[teachers]}; student: {STUDENTS[start]}",
                Teachers(program=None, initialisation=teachers),
                queries,
                100.0,
                start,
                figures[f"{teachers} {start}"] if queries == "gaussian" else "–",
            )
            for teachers in STARTS
            for start in STARTS
        ]
    third = {20: ("32.58", "25.58", "31.29"), 100: ("35.04", "26.97", "26.58")}
    made.append(Row("Table 3", "only the last layers", Teachers(), share=0.0, published="43.32"))
    for share, (student, both, teachers) in third.items():
        made.append(Row("Table 3", f"student {share} %", Teachers(), share=share, published=student))
        made.append(Row("Table 3", f"teachers {share} %", Teachers(share=share), share=0.0, published=teachers))
        made.append(Row("Table 3", f"both {share} %", Teachers(share=share), share=share, published=both))
    return made


@lru_cache(8)
def start(kind: str, program: str | None, images: int, epochs: int, seed: int) -> Backbone:
    """Return a backbone that learned from a program's images, or from none."""
    backbone = build_backbone(kind, channels=1, size=SIZE, seed=seed)
    if program is not None:
        drawn = query_images(program, images, 1, seed=seed + 1_000)
        pretrain(backbone, drawn, SimCLRSettings(epochs=epochs, batch=128), seed=seed, device="cpu")
    return backbone


class Small:
    """The cells of one seed.

    Attributes:
        data: The records that the teachers need, and `--test` test images.
    """

    def __init__(self, data: Dataset, cells: Cells, options: argparse.Namespace, seed: int) -> None:
        chosen = numpy_generator(seed, "records").permutation(data.records)[: RECORDS * options.teachers]
        tested = numpy_generator(seed, "test").permutation(len(data.test_labels))[: options.test]
        self.cells, self.options, self.seed = cells, options, seed
        self.data = Dataset(
            data.name, data.train_images[chosen], data.train_labels[chosen], None, data.test_images[tested],
            data.test_labels[tested], data.class_names,
        )  # fmt: skip

    def backbone(self, teachers: Teachers) -> Backbone:
        """Return the network that fine-tuned teachers start from."""
        return start(teachers.kind, teachers.program, self.options.images, self.options.epochs, self.seed)

    def queries(self, kind: str) -> Queries:
        """Return the synthetic images."""
        images = query_images(kind, self.options.queries, 1, seed=self.seed)
        batches = near_equal(np.arange(len(images)))
        return Queries(images, batches, [kind] * len(batches))

    def votes(self, teachers: Teachers) -> dict[str, Any]:
        """Return the teachers' accuracy, their agreement on test images, and their votes by queries."""

        def compute() -> dict[str, Any]:
            asked = {kind: self.queries(kind) for kind in SHOWN}
            test = Queries(self.data.test_images, near_equal(np.arange(len(self.data.test_images))))
            count, seed = self.options.teachers, self.seed
            if teachers.initialisation is None and not teachers.share:
                backbone = self.backbone(teachers)
                taught = teach(self.data, backbone, count, seed=seed)
                on_test = vote(taught.heads, taught.test)
                votes = {
                    kind: vote(taught.heads, features_in_batches(backbone, each.images, each.batches, "current"))
                    for kind, each in asked.items()
                }
            else:
                kind = self.networks(teachers)
                assignment = iid(self.data.records, count, seed=seed)
                records = Records(self.data.train_images, self.data.train_labels, assignment, CLASSES)
                states = [state for _, state in kind.train(records, range(count), seed=seed, device="cpu")]
                on_test = kind.vote(states, test, device="cpu")
                votes = {name: kind.vote(states, each, device="cpu") for name, each in asked.items()}
            return {
                "teacher": float((on_test == self.data.test_labels[:, None]).mean()),
                "test": consensus(count_votes(on_test, CLASSES))["agreement"],
                "histograms": {kind: count_votes(each, CLASSES).tolist() for kind, each in votes.items()},
            }

        return self.cells.get(f"{teachers}, {self.size}, seed {self.seed}", compute)

    def networks(self, teachers: Teachers) -> NetworkKind:
        """Return the teachers that are more than a head."""
        how: dict[str, Any] = {"epochs": 4, "batch": BATCH, "statistics": "current"}
        if teachers.initialisation is None:
            return FinetuneKind(FinetuneTeachers(trainable=teachers.share, **how), self.backbone(teachers), CLASSES)
        settings = ScratchTeachers(architecture=teachers.kind, initialisation=teachers.initialisation, **how)
        return ScratchKind(settings, 1, SIZE, CLASSES)

    @property
    def size(self) -> str:
        """The size of everything, in words."""
        options = self.options
        made = f"{options.images} images, {options.epochs} epochs, {options.teachers} teachers"
        return f"{made}, {options.queries} queries, {options.student_epochs} student epochs"

    def figures(self, row: Row) -> dict[str, float]:
        """Return the teachers' accuracy and agreement on the queries, and the student's accuracy."""
        votes = self.votes(row.teachers)
        histograms = np.array(votes["histograms"][row.queries])
        found = {"teacher": votes["teacher"], "agreement": consensus(histograms)["agreement"], "test": votes["test"]}
        if row.share is None:
            return found
        student = lambda: {"student": self.student(row, histograms)}  # noqa: E731
        key = f"{row.teachers}, {row.queries}, student {row.share:g}, {row.start}, {self.size}, seed {self.seed}"
        return found | self.cells.get(key, student)

    def student(self, row: Row, histograms: np.ndarray) -> float:
        """Return the accuracy of a student on test images."""
        seed, backbone = self.seed, self.backbone(row.teachers)
        if row.start == "own":
            seed = derive_seed(seed, "the student's own start")
        elif row.teachers.initialisation == "own":
            seed = start_seed(seed, 0, "own")  # that of the first teacher
        if row.teachers.initialisation is not None:
            backbone = build_backbone(row.teachers.kind, channels=1, size=SIZE, seed=seed)
        sigma = 0.1 * self.options.teachers
        noise = numpy_generator(self.seed, "replayed noise").normal(0, sigma, histograms.shape)
        answers = histogram_answers(histograms + noise, self.options.teachers, sigma)
        settings = FinetuneStudent(
            trainable=row.share, start="shared", epochs=self.options.student_epochs, schedule="constant",
            learning_rate=0.001, train_batch=BATCH, ema=0, patience=None, l2=0,
        )  # fmt: skip
        data = StudentData(self.queries(row.queries), np.arange(len(answers.targets)), answers, backbone, "current")
        trained = settings.train(data, seed=seed)
        fitted = FittedStudent(trained.backbone or backbone, trained.head, "current", 256)
        return fitted.score((self.data.test_images, self.data.test_labels))


def main() -> None:
    """Make the tables."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("--images", type=int, default=1024, help="of the pretraining")
    parser.add_argument("--epochs", type=int, default=3, help="of the pretraining")
    parser.add_argument("--teachers", type=int, default=10)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--student-epochs", type=int, default=12)
    parser.add_argument("--test", type=int, default=1000)
    parser.add_argument("--rows", nargs="+", help="only rows whose table and choice begin so")
    parser.add_argument("--store", action="store_true", help="write the rows to docs/measurements")
    options = parser.parse_args()
    data = SETTINGS["mnist"].load(options.root)
    if data is None:
        raise SystemExit(f"MNIST is not under {options.root}: give its folder as --root.")
    cells = Cells(options.work / "diet_small.jsonl")
    wanted = [row for row in rows() if f"{row.table} {row.choice}".startswith(tuple(options.rows or [""]))]
    made: list[list[dict[str, float]]] = [[] for _ in wanted]
    for seed in options.seeds:
        small = Small(data, cells, options, seed)
        for row, found in zip(wanted, made, strict=True):
            found.append(small.figures(row))
    lines = [
        [
            row.table,
            row.choice,
            *(
                spread([one[name] for one in found]) if name in found[0] else "–"
                for name in ("teacher", "agreement", "test", "student")
            ),
            row.published,
        ]
        for row, found in zip(wanted, made, strict=True)
    ]
    for line in lines:
        print(*line, sep=" | ")
    if options.store:
        store(
            "diet-pate/small",
            ["table", "choice", "teachers, %", "agreement, %", "agreement on MNIST, %", "student, %", "published, %"],
            lines,
            command=f"python -m benchmarks.diet_small --rows {' '.join(map(json.dumps, options.rows or ['']))}",
            seeds=len(options.seeds),
            spread="standard deviation",
        )


if __name__ == "__main__":
    main()
