"""Prom-PATE, Transfer-PATE and linear teachers on blood cells without public pretraining; what prompts are made of.

    python benchmarks/prom_pate.py kinds      [--root FOLDER] [--seeds 0 1 2 3 4] [--teachers 80]
    python benchmarks/prom_pate.py ablations  [--seeds 0]
    python benchmarks/prom_pate.py students   [--seeds 0]
    python benchmarks/prom_pate.py imagenet   [--data blood cifar10] [--weights FILE] [--records 50] [--queries 500]

Data: pbc-blood/blood_28.npz under --root: 11,959 private training images, its validation split as the public pool, its
test split for evaluation; no image is in two of them. The backbones saw only synthetic images: a scattering transform
with 100 features invariant to rotations and small shifts, and a ResNet10 pretrained by SimCLR on --images of them.
Teachers are
trained once per row and seed; their votes on the pool are then released at each exact ε, as noisy histograms and by
Confident-GNMax until the budget ends; the student is a linear head on the backbone. Votes and figures are kept in
--work; an interrupted run goes on.

`ablations` varies mapping, mask, inner size and number of prompt teachers (Tables 6, 9, 10 and 11 of the paper).
`students` is its Table 3: prompted, transferred and scratch teachers, and FixMatch students that start from the
pretrained ResNet10 or from scratch and see all of the pool.
`imagenet` compares prompting with transfer at equal ε on one source that saw ImageNet: MobileNetV2 on a canvas of 64
pixels, with stored statistics; prompts map its 1,000 scores. Each of 80 teachers has --records records. `cifar10` is
the JPEG copy in cifar10_jpeg under --root, with test images as the pool.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cells import KEPT, Cells, common_options, datasets, heading, row, spread
from transfer import BATCH, DELTA, SIZE, SOURCES, near_equal, pretrained, query_images

from terrine.aggregation.gnmax import ConfidentGNMax, GaussianHistogram
from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.data.partition import iid
from terrine.data.pool import check_disjoint
from terrine.data.source import load_dataset
from terrine.determinism.randomness import derive_seed, numpy_generator
from terrine.heads import predict
from terrine.models.architecture import build_backbone
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.deformations import Deformations
from terrine.models.lda_projection import learn_projection
from terrine.models.statistics import fit_reference
from terrine.models.weights import load_weights
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.noise import ReplayNoise
from terrine.queries import Queries
from terrine.students.answers import ReleasedAnswers, histogram_answers, label_answers
from terrine.students.fixmatch import FixMatchStudent
from terrine.students.linear import fit
from terrine.students.student import StudentData
from terrine.teachers.base import TeacherContext, Teachers
from terrine.teachers.ensemble import fallback_votes
from terrine.teachers.linear import LinearTeachers
from terrine.teachers.networks import FinetuneTeachers, ScratchTeachers
from terrine.teachers.prompt import PromptTeachers
from terrine.teachers.records import PrivateFeatures, Records, private_features

EPSILONS = (2.0, 6.0, 7.2, 10.0)
"""7.2 is the exact ε of the paper's own release."""
FINETUNE = FinetuneTeachers(trainable=50, epochs=10, batch=16)
SCRATCH = ScratchTeachers(architecture="small_cnn", epochs=30, batch=16)
FIXMATCH = FixMatchStudent(l2=0.3, steps=600, train_batch=64, flip=True, learning_rate=1e-3)
LINEAR = LinearTeachers(optimiser="ridge", ridge=0.1)
WEIGHTS = "mobilenetv2_100_imagenet.safetensors"
PROJECTION, DEFORMATIONS = 100, Deformations(rotation=180, shift=0.07)


def prompted(statistics: str = "current", **own: object) -> PromptTeachers:
    """Return prompt teachers with the paper's settings but for `own`."""
    return PromptTeachers(statistics=statistics, prompt=own)


@dataclass(frozen=True)
class Case:
    """A row of a table; teachers None stands for the value of --teachers.

    backbone: the teachers' backbone. student: a linear student's backbone, if it differs. start: a FixMatch student's
    backbone, instead. votes: the row of KINDS whose teachers vote, if it is not this row.
    """

    settings: Teachers
    backbone: str = "resnet10"
    teachers: int | None = None
    student: str | None = None
    start: str | None = None
    votes: str | None = None


KINDS = {
    "linear on scattering": Case(LINEAR, "scattering"),
    "linear on ResNet10": Case(LINEAR),
    "Transfer-PATE on ResNet10": Case(FINETUNE),
    "Prom-PATE on ResNet10": Case(prompted()),
    "Prom-PATE on ResNet10, student on scattering": Case(
        prompted(), student="scattering", votes="Prom-PATE on ResNet10"
    ),
    "Prom-PATE on scattering": Case(prompted(), "scattering"),
}
_ABLATED = {
    "mapping fc1, frame, inner 24 (the paper's)": prompted(),
    "mapping random": prompted(mapping="random"),
    "mapping fc2": prompted(mapping="fc2"),
    "without mask": prompted(mask=False),
    "inner 16": prompted(inner=16),
    "inner 20": prompted(inner=20),
    "inner 26": prompted(inner=26),
    "original statistics": prompted("original"),
}
ABLATIONS = {name: Case(settings) for name, settings in _ABLATED.items()} | {
    f"{count} teachers": Case(prompted(), teachers=count) for count in (40, 200, 400)
}


_TAUGHT = {"prompted": prompted(), "transferred": FINETUNE, "scratch": SCRATCH}
_VOTES = {
    "prompted": "Prom-PATE on ResNet10",
    "transferred": "Transfer-PATE on ResNet10",
    "scratch": "scratch teachers",
}
STUDENTS = {
    f"{letter}: {teachers} teachers, {start} student": Case(
        _TAUGHT[teachers], start="resnet10" if start == "pretrained" else "untrained", votes=_VOTES[teachers]
    )
    for letter, (teachers, start) in zip(
        "ABCDEF", ((teachers, start) for teachers in _TAUGHT for start in ("pretrained", "scratch")), strict=True
    )
}
TRANSFERRED = FinetuneTeachers(trainable=50, epochs=10, batch=16, statistics="original")
IMAGENET = {
    "Prom-PATE, one layer": Case(prompted("original"), "scores", student="mobilenet"),
    "Transfer-PATE": Case(TRANSFERRED, "mobilenet"),
    "Prom-PATE, random mapping": Case(prompted("original", mapping="random"), "scores", student="mobilenet"),
    "linear on features": Case(LINEAR.model_copy(update={"statistics": "original"}), "mobilenet"),
    "Prom-PATE, two layers": Case(prompted("original", mapping="fc2"), "scores", student="mobilenet"),
}
TABLES = {
    "imagenet": (IMAGENET, (3.2, 7.2, 20.0)),
    "kinds": (KINDS, EPSILONS),
    "ablations": (ABLATIONS, (7.2,)),
    "students": (STUDENTS, (7.2,)),
}


def shuffled(count: int) -> np.ndarray:
    """Return the numbers 0 .. count - 1 in a fixed order: the file's own may be sorted by class."""
    return numpy_generator(0, "batches of real images").permutation(count)


def votes_of(
    case: Case, name: str, data: Dataset, backbone: Backbone, teachers: int, seed: int, work: Path, device: str
) -> np.ndarray:
    """Return votes [pool, teachers], from the work folder or from teachers trained now."""
    settings = case.settings
    if case.backbone == "scattering":
        name = f"{name} {PROJECTION}"
    name = name if data.name == "npz" else f"{data.name} {name}"
    path = work / f"prom-pate-votes-{name.replace(' ', '_').replace(',', '')}-{teachers}-{seed}.npy"
    if path.is_file():
        return np.load(path)
    start = time.monotonic()
    channels, size = data.train_images.shape[1:3]
    context = TeacherContext(data.classes, channels, size, lambda: backbone, seed, teachers)
    kind = settings.build(context)
    assignment = iid(data.records, teachers, seed=seed)
    pool = data.pool_images
    assert pool is not None
    batches = near_equal(shuffled(len(pool)))
    inputs: np.ndarray | PrivateFeatures = data.train_images
    queries = pool
    if settings.inputs == "features":
        whole = data.records
        inputs = private_features(backbone, data.train_images, assignment, settings.statistics, most=whole)
        queries = features_in_batches(backbone, pool, batches, settings.statistics)
    records = Records(inputs, data.train_labels, assignment, data.classes)
    votes = fallback_votes(range(teachers), len(pool), data.classes, seed=seed)
    trained = kind.train(records, range(teachers), seed=seed, device=device)
    while part := dict(itertools.islice(trained, kind.block)):
        votes[:, list(part)] = kind.vote(part.values(), Queries(queries, batches), device=device)
        print(f"  {name}: {max(part) + 1} of {teachers} teachers, {time.monotonic() - start:.0f} s", flush=True)
    np.save(path, votes)
    return votes


@dataclass(frozen=True)
class Release:
    """rows: of the pool, those that were answered. answers: theirs. told: figures of the release itself."""

    rows: np.ndarray
    answers: ReleasedAnswers
    told: dict[str, float]


def release(votes: np.ndarray, data: Dataset, epsilon: float, seed: int, mechanism: str) -> Release:
    """Release the votes at an exact ε."""
    teachers, truth = votes.shape[1], data.pool_labels
    assert truth is not None
    histograms = count_votes(votes, data.classes)
    noise = ReplayNoise(derive_seed(seed, "replayed noise"))
    if mechanism == "histogram":
        sigma = calibrate(epsilon, DELTA, len(votes)).sigma
        released = GaussianHistogram(sigma=sigma).answer(histograms, epsilon=epsilon, delta=DELTA, noise=noise)
        assert released.histograms is not None
        labels, answers = released.histograms.argmax(1), histogram_answers(released.histograms, teachers, sigma)
    else:
        confident = ConfidentGNMax(threshold=0.6 * teachers, sigma1=0.3 * teachers, sigma2=0.1 * teachers)
        released = confident.answer(histograms, epsilon=epsilon, delta=DELTA, noise=noise)
        labels = released.labels
        answers = label_answers(labels[released.answered], data.classes)
    answered = released.answered
    told = {
        "answered": float(answered.sum()),
        "right": float((labels[answered] == truth[answered]).mean()) if answered.any() else 0.0,
        "teacher": float((votes == truth[:, None]).mean()),
        "votes": float((histograms.argmax(axis=1) == truth).mean()),
    }
    return Release(np.flatnonzero(answered), answers, told)


def figures(
    votes: np.ndarray, data: Dataset, features: tuple[np.ndarray, np.ndarray], epsilon: float, seed: int, mechanism: str
) -> dict[str, float]:
    """Release the votes at an exact ε, train a linear student, and return what came of it."""
    pool, test = features
    released = release(votes, data, epsilon, seed, mechanism)
    head = fit(pool[released.rows], released.answers, 0.3, seed=seed)
    return {**released.told, "accuracy": float((predict(head, test).argmax(axis=1) == data.test_labels).mean())}


def matched(
    votes: np.ndarray, data: Dataset, start: Backbone, epsilon: float, seed: int, mechanism: str, device: str
) -> dict[str, float]:
    """Release the votes at an exact ε, train a FixMatch student from `start`, and return what came of it."""
    assert data.pool_images is not None
    released = release(votes, data, epsilon, seed, mechanism)
    batches = near_equal(shuffled(len(data.pool_images)))
    pool = Queries(data.pool_images, batches, ["pool"] * len(batches))
    material = StudentData(pool, released.rows, released.answers, start, "current")
    trained = FIXMATCH.train(material, seed=seed, device=device)
    own = trained.backbone or start
    test = features_in_batches(own, data.test_images, near_equal(shuffled(len(data.test_images))), "current", device)
    return {**released.told, "accuracy": float((predict(trained.head, test).argmax(1) == data.test_labels).mean())}


def features_of(data: Dataset, backbone: Backbone) -> tuple[np.ndarray, np.ndarray]:
    """Return what the student sees of the pool and of the test images."""
    pool, test = (
        features_in_batches(backbone, images, near_equal(shuffled(len(images))), "current")
        for images in (data.pool_images, data.test_images)
        if images is not None
    )
    return pool, test


def scattering() -> Backbone:
    """Return the scattering backbone; what it knows it learned on synthetic images."""
    backbone = build_backbone("scattering", channels=3, size=SIZE, seed=0, projection=PROJECTION)
    images = np.concatenate([query_images(kind, 1000, 3, seed=0) for kind in SOURCES])
    batches = near_equal(np.arange(len(images)))
    learn_projection(backbone, images, batches, seed=0, deformations=DEFORMATIONS)
    fit_reference(backbone, images, batches)
    return backbone


def mobilenet(weights: Path, size: int, outputs: str) -> Backbone:
    """Return MobileNetV2 with ImageNet's weights on a canvas of 64 pixels."""
    how = {"architecture": "mobilenetv2_100", "enlarge": 64, "from_tensorflow": True, "outputs": outputs}
    backbone = build_backbone("timm", channels=3, size=size, seed=0, **how)
    load_weights(backbone, weights)
    return backbone


def small_part(name: str, root: Path, records: int, queries: int) -> Dataset:
    """Return a dataset with `records` private records and `queries` public images of its test or validation split."""
    if name == "blood":
        data = load_dataset("npz", path=root / "pbc-blood" / "blood_28.npz", size=SIZE, channels=3, pool="validation")
        pool, labels, test = data.pool_images, data.pool_labels, slice(None)
    else:
        data = load_dataset("folder", path=root / "cifar10_jpeg", size=32, channels=3)
        order = shuffled(len(data.test_images))
        test, chosen = order[9_000:], order[:9_000]  # as the paper splits them
        pool, labels = data.test_images[chosen], data.test_labels[chosen]
    assert pool is not None
    assert labels is not None
    own, asked = shuffled(data.records)[:records], shuffled(len(pool))[:queries]
    return replace(
        data, name=f"{name}-{records}-{queries}", train_images=data.train_images[own],
        train_labels=data.train_labels[own], train_groups=None, train_names=None, train_contents=None,
        test_images=data.test_images[test], test_labels=data.test_labels[test], test_names=None, test_groups=None,
        test_contents=None, pool_images=pool[asked], pool_labels=labels[asked], pool_names=None, pool_contents=None,
    )  # fmt: skip


def rows_of(
    cases: dict[str, Case],
    data: Dataset,
    backbones: dict[str, Backbone],
    epsilons: Sequence[float],
    arguments: argparse.Namespace,
) -> list[list[str]]:
    """Make the rows of a table, seed by seed, so that an early end has some of every row."""
    cells = Cells(arguments.work / "prom_pate.jsonl")
    features = {
        name: features_of(data, backbones[name])
        for name in sorted({case.student or case.backbone for case in cases.values()})
    }
    found: dict[tuple[str, str, float], list[dict[str, float]]] = {}
    assert data.pool_images is not None
    for seed in arguments.seeds:
        for name, case in cases.items():
            teachers, backbone = case.teachers or arguments.teachers, backbones[case.backbone]
            for mechanism in arguments.mechanisms:
                for epsilon in epsilons:
                    saw = arguments.name if case.backbone == "resnet10" else f"{PROJECTION} features"
                    if arguments.table == "imagenet":
                        saw = f"{data.name}, {arguments.records} records, {arguments.queries} queries"
                    where = f"{teachers} teachers, seed {seed}, {saw}"

                    def compute(
                        name: str = name, case: Case = case, epsilon: float = epsilon, seed: int = seed,
                        mechanism: str = mechanism, teachers: int = teachers, backbone: Backbone = backbone,
                    ) -> dict[str, float]:  # fmt: skip
                        device = arguments.device
                        votes = votes_of(
                            case, case.votes or name, data, backbone, teachers, seed, arguments.work, device
                        )
                        if case.start is not None:
                            return matched(votes, data, backbones[case.start], epsilon, seed, mechanism, device)
                        return figures(votes, data, features[case.student or case.backbone], epsilon, seed, mechanism)

                    key = f"{name}, {mechanism}, eps {epsilon:g}, {where}"
                    found.setdefault((name, mechanism, epsilon), []).append(cells.get(key, compute))
    lines = []
    for (name, mechanism, epsilon), rows in found.items():
        texts = [spread([each[column] for each in rows]) for column in ("teacher", "votes", "right", "accuracy")]
        answered = np.mean([each["answered"] for each in rows])
        teachers = cases[name].teachers or arguments.teachers
        lines.append([name, str(teachers), mechanism, f"{epsilon:g}", f"{answered:,.0f}", *texts])
    return lines


def main() -> None:
    """Make a table."""
    parser = common_options(__doc__, root=datasets(), work=KEPT, seeds=[0, 1, 2, 3, 4])
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--teachers", type=int, default=80)
    parser.add_argument("--rows", nargs="+", help="of the table, by the first words of their names; default: all")
    parser.add_argument("--images", type=int, default=16_384)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cpu", help="where teachers and FixMatch students learn")
    parser.add_argument("--mechanisms", nargs="+", default=["histogram", "confident"])
    parser.add_argument("--data", nargs="+", default=["blood", "cifar10"], help="of imagenet")
    parser.add_argument("--weights", type=Path, default=datasets().parent / "weights" / WEIGHTS, help="of imagenet")
    parser.add_argument("--records", type=int, default=50, help="of imagenet: records of a teacher")
    parser.add_argument("--queries", type=int, default=500, help="of imagenet")
    arguments = parser.parse_args()
    if arguments.table == "imagenet":
        imagenet(arguments)
        return
    path = arguments.root / "pbc-blood" / "blood_28.npz"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: give the folder that holds pbc-blood as --root.")
    data = load_dataset("npz", path=path, size=SIZE, channels=3, pool="validation")
    parts = ", ".join(f"{count:,} {part}" for part, count in check_disjoint(data).items())
    cases, epsilons = TABLES[arguments.table]
    if arguments.rows:
        cases = {name: case for name, case in cases.items() if name.startswith(tuple(arguments.rows))}
    makers: dict[str, Callable[[], Backbone]] = {
        "resnet10": lambda: pretrained("resnet10", 3, arguments.work, images=arguments.images, epochs=arguments.epochs),
        "scattering": scattering,
        "untrained": lambda: build_backbone("resnet10", channels=3, size=SIZE, seed=0),
    }
    needed = {name for case in cases.values() for name in (case.backbone, case.student, case.start)}
    backbones = {name: make() for name, make in makers.items() if name in needed}
    arguments.name = f"{arguments.images} images, {arguments.epochs} epochs"
    print(
        f"images: {parts}; no test image in the pool; batches of about {BATCH}; {arguments.name}; "
        f"{len(arguments.seeds)} seeds"
    )
    show(rows_of(cases, data, backbones, epsilons, arguments))


def imagenet(arguments: argparse.Namespace) -> None:
    """Make the rows of the table `imagenet`, one dataset after the other, for each seed."""
    seeds = arguments.seeds
    for arguments.seeds, last in [([seed], False) for seed in seeds] + [(seeds, True)]:
        for name in arguments.data:
            data = small_part(name, arguments.root, arguments.teachers * arguments.records, arguments.queries)
            size = data.train_images.shape[-1]
            backbones = {
                "mobilenet": mobilenet(arguments.weights, size, "features"),
                "scores": mobilenet(arguments.weights, size, "scores"),
            }
            lines = rows_of(IMAGENET, data, backbones, TABLES["imagenet"][1], arguments)
            if last:
                print(f"\n### {data.name}")
                show(lines)


def show(lines: list[list[str]]) -> None:
    """Print a table."""
    released = ("one teacher %", "all votes %", "answers right %", "student %")
    heading("teachers", "N", "mechanism", "ε", "answered", *released)
    for line in lines:
        row(*line)


if __name__ == "__main__":
    main()
