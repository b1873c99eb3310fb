"""Accuracy on MNIST at an exact ε: by number of teachers, by how queries are chosen, and by mechanism.

    python benchmarks/accuracy.py teachers  [--root FOLDER] [--seeds 0 1 2 3 4]
    python benchmarks/accuracy.py selection [--root FOLDER] [--seeds 0 1 2 3 4]

The functions that the stages call, with settings like those of the preset terrine-mnist (200 invariant scattering
features, 10,000 queries, ridge teachers without deformed copies, linear student) and replayed noise. The scattering
coefficients of all images are computed once and kept in `--work` (1.5 GB); every seed has its own images, projection,
partition, teachers and noise.
MNIST is public, so nothing is charged. Each seed's figures are kept as well: an interrupted run goes on.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from cells import KEPT, Cells, common_options, datasets, heading, row, spread

from terrine.aggregation.adaptive_queries import Advice, Rounds, answer_in_rounds, in_order, most_uncertain
from terrine.aggregation.gnmax import ConfidentGNMax, GaussianHistogram, GNMax, InteractiveGNMax
from terrine.aggregation.mechanism import Mechanism
from terrine.aggregation.votes import count_votes
from terrine.data.partition import iid
from terrine.data.source import load_dataset
from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import derive_seed
from terrine.heads import LinearHead, predict
from terrine.models.architecture import build_backbone
from terrine.models.lda_projection import learn_projection
from terrine.models.wavelets import LOG_OFFSET, ScatteringNetwork
from terrine.privacy.accounting.calibrate import calibrate
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.students.answers import histogram_answers, label_answers
from terrine.students.linear import fit
from terrine.synthetic.program import draw
from terrine.teachers.linear import LinearHeads, LinearTeachers, train_heads, vote
from terrine.teachers.records import record_batches

CLASSES, BATCH, DELTA, FEATURES = 10, 500, 1e-5, 200
SOURCES = ("dead_leaves", "stylegan")


def log_coefficients(network: ScatteringNetwork, images: np.ndarray, path: Path | None = None) -> np.ndarray:
    """Return what the backbone standardises: the logarithms of the coefficients, float32 [images, coefficients]."""
    if path is not None and path.is_file():
        return np.load(path, mmap_mode="r")
    width = network.standardise.num_features
    out = np.empty((len(images), width), np.float32)

    def compute(first: int) -> None:
        part = torch.from_numpy(images[first : first + BATCH]).float().div_(255)
        with torch.no_grad():
            for start in range(0, len(part), 64):
                block = network.coefficients(part[start : start + 64]).flatten(1)
                out[first + start : first + start + len(block)] = block.add_(LOG_OFFSET).log_().numpy()

    for _ in side_by_side(compute, range(0, len(images), BATCH)):
        pass
    if path is not None:
        np.save(path.with_suffix(".tmp.npy"), out)
        path.with_suffix(".tmp.npy").replace(path)
    return out


def features_of(coefficients: np.ndarray, batches: list[np.ndarray], projection: torch.Tensor) -> np.ndarray:
    """Return features under current statistics, float32 [images, features]: each batch standardised by itself."""
    out = np.zeros((len(coefficients), projection.shape[1]), np.float32)

    def compute(index: np.ndarray) -> None:
        own = torch.from_numpy(coefficients[index])
        variance, mean = torch.var_mean(own, dim=0, correction=0)
        out[index] = ((own - mean).mul_(torch.rsqrt(variance + 1e-5)) @ projection).numpy()

    for _ in side_by_side(compute, batches):
        pass
    return out


class Study:
    """MNIST, its coefficients, and everything of one seed that does not depend on the number of teachers."""

    def __init__(self, root: Path, work: Path, queries: int = 10_000) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.data = load_dataset("mnist", root=root, size=28, channels=1, download=False)
        self.network = build_backbone("scattering", channels=1, size=28, seed=0, projection=None).network
        self.train = log_coefficients(self.network, self.data.train_images, work / "train.npy")
        self.test = log_coefficients(self.network, self.data.test_images, work / "test.npy")
        self.queries = queries

    @cache  # noqa: B019  # one study lives as long as the script
    def public(self, seed: int) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Projection, and features of queries and test images."""
        share = self.queries // len(SOURCES)
        per_source = [draw(kind, seed=seed, first=0, count=share, size=28, channels=1).numpy() for kind in SOURCES]
        # Sources take turns, batch by batch, as in the pipeline.
        stacked = np.stack([images.reshape(-1, BATCH, 1, 28, 28) for images in per_source], axis=1)
        images = stacked.reshape(-1, 1, 28, 28)
        batches = np.array_split(np.arange(len(images)), len(images) // BATCH)
        backbone = build_backbone("scattering", channels=1, size=28, seed=seed, projection=FEATURES)
        learn_projection(backbone, images, batches[:16], seed=seed)
        projection = backbone.network.projection
        queries = features_of(log_coefficients(self.network, images), batches, projection)
        check = backbone.features(torch.from_numpy(images[batches[0]]), "current").numpy()
        assert np.allclose(queries[batches[0]], check, atol=1e-3), "these are not the pipeline's features"
        order = np.random.default_rng(0).permutation(len(self.test))
        return projection, queries, features_of(self.test, np.array_split(order, len(order) // BATCH), projection)

    @cache  # noqa: B019
    def heads(self, seed: int, teachers: int, ridge: float) -> list[LinearHeads]:
        """All teachers, in groups."""
        projection, _, _ = self.public(seed)
        assignment = iid(self.data.records, teachers, seed=seed)
        # Plain rows: what `private_features` computes, from coefficients that are on disk, in its batches.
        features = features_of(self.train, record_batches(assignment, BATCH, least=2), projection)
        settings = LinearTeachers(ridge=ridge)
        groups = [range(first, min(first + 500, teachers)) for first in range(0, teachers, 500)]
        labels = self.data.train_labels
        return [train_heads(features, labels, assignment, group, CLASSES, settings, seed=seed) for group in groups]

    @cache  # noqa: B019
    def histograms(self, seed: int, teachers: int, ridge: float) -> np.ndarray:
        """Votes by class on the queries, int64 [queries, classes]."""
        features, heads = self.public(seed)[1], self.heads(seed, teachers, ridge)
        return count_votes(np.concatenate([vote(group, features) for group in heads], axis=1), CLASSES)

    def accuracy(self, seed: int, mechanism: Mechanism, released: Rounds, teachers: int) -> float:
        """Test accuracy in per cent of the linear student of what was released."""
        _, queries, test = self.public(seed)
        head = student(queries, mechanism, released, teachers, seed)
        return float((predict(head, test).argmax(axis=1) == self.data.test_labels).mean() * 100)


def student(queries: np.ndarray, mechanism: Mechanism, released: Rounds, teachers: int, seed: int) -> LinearHead:
    """Return the linear student of what was released."""
    answers, own = released.answers, released.answers.answered
    if answers.histograms is not None:
        sigma = mechanism.describe()["sigma"]
        return fit(queries[own], histogram_answers(answers.histograms[own], teachers, sigma), seed=seed)
    return fit(queries[own], label_answers(answers.labels[own], CLASSES), seed=seed)


def release(
    study: Study, seed: int, mechanism: Mechanism, epsilon: float, histograms: np.ndarray, rule: str, rounds: int
) -> Rounds:
    """Answer in rounds, as the stage `aggregate` does."""
    _, queries, _ = study.public(seed)
    teachers = int(histograms[0].sum())

    def advise(released: Rounds) -> Advice:
        probabilities = None
        if released.answers.answered.any() and (rule != "order" or mechanism.informed):
            probabilities = predict(student(queries, mechanism, released, teachers, seed), queries)
        if rule == "order":
            return Advice(in_order(released).order, probabilities)
        return most_uncertain(released, probabilities)

    noise = ReplayNoise(derive_seed(seed, "replayed noise"))
    return answer_in_rounds(
        mechanism, histograms, rounds=rounds, adviser=advise, epsilon=epsilon, delta=DELTA, noise=noise
    )


def ridge_for(teachers: int) -> float:
    """The presets' penalties: fewer records, less of it."""
    return 0.3 if teachers <= 200 else 0.1


def by_teachers(study: Study, cells: Cells, seeds: list[int]) -> None:
    """Accuracy of noisy histograms for numbers of teachers and budgets."""
    budgets = (1.0, 2.0, 6.0)
    rows = {}
    for teachers in (50, 200, 600, 1500, 3000):
        for seed in seeds:
            for epsilon in budgets:
                sigma = calibrate(epsilon, DELTA, study.queries).sigma

                def compute(seed: int = seed, sigma: float = sigma, epsilon: float = epsilon, n: int = teachers):
                    histograms = study.histograms(seed, n, ridge_for(n))
                    mechanism = GaussianHistogram(sigma=sigma)
                    released = release(study, seed, mechanism, epsilon, histograms, "order", 1)
                    return {
                        "accuracy": study.accuracy(seed, mechanism, released, n),
                        "epsilon": price(released.answers.event, DELTA),
                        "answered": int(released.answers.answered.sum()),
                    }

                found = cells.get(f"{teachers} teachers, seed {seed}, epsilon {epsilon:g}", compute)
                rows.setdefault((teachers, epsilon), []).append(found["accuracy"])
    heading("teachers", "records each", *(f"ε = {epsilon:g}" for epsilon in budgets))
    for teachers in sorted({teachers for teachers, _ in rows}):
        texts = [spread(rows[teachers, epsilon], 2, 1.0) for epsilon in budgets]
        row(f"{teachers:,}", study.data.records // teachers, *texts)


def by_selection(study: Study, cells: Cells, seeds: list[int]) -> None:
    """Accuracy by what is asked: the rules of query selection, and Interactive- beside Confident-GNMax."""
    teachers = 200
    cases: list[tuple[str, Mechanism, float, str, int]] = []
    for rule, rounds in (("order", 1), ("uncertain", 5)):
        # Noise for 2,500 answers of a pool of 10,000: there is something to choose.
        cases.append((f"histogram, {rule}", GaussianHistogram(sigma=54.0), 6.0, rule, rounds))
        cases.append((f"gnmax, {rule}", GNMax(sigma=54.0), 6.0, rule, rounds))
    confident = ConfidentGNMax(threshold=120.0, sigma1=100.0, sigma2=40.0)
    cases.append(("confident 120/100/40", confident, 6.0, "order", 1))
    for surprise in (60.0, 90.0, 120.0):
        mechanism = InteractiveGNMax(threshold=120, sigma1=100, sigma2=40, surprise=surprise, confidence=0.9)
        cases.append((f"interactive 120/100/40, surprise {surprise:g}", mechanism, 6.0, "order", 2))
    table = {}
    for name, mechanism, epsilon, rule, rounds in cases:
        for seed in seeds:

            def compute(seed=seed, mechanism=mechanism, epsilon=epsilon, rule=rule, rounds=rounds):
                histograms = study.histograms(seed, teachers, 0.3)
                released = release(study, seed, mechanism, epsilon, histograms, rule, rounds)
                answers = released.answers
                return {
                    "accuracy": study.accuracy(seed, mechanism, released, teachers),
                    "epsilon": price(answers.event, DELTA),
                    "asked": answers.queried,
                    "answered": int(answers.answered.sum()),
                    "right": float((answers.labels == histograms.argmax(axis=1))[answers.answered].mean()),
                }

            found = cells.get(f"{name}, epsilon {epsilon:g}, seed {seed}", compute)
            table.setdefault(name, []).append(found)
    heading("what is asked", "accuracy %", "exact ε", "asked", "answered", "agree with the votes")
    for name, rows in table.items():
        asked, answered, right = (np.mean([each[key] for each in rows]) for key in ("asked", "answered", "right"))
        accuracy, epsilon = spread([each["accuracy"] for each in rows], 2, 1.0), max(each["epsilon"] for each in rows)
        row(name, accuracy, f"{epsilon:.4f}", f"{asked:.0f}", f"{answered:.0f}", f"{right:.1%}")


def main() -> None:
    """Make one of the tables."""
    parser = common_options(__doc__, root=datasets(), seeds=list(range(5)), work=KEPT)
    parser.add_argument("table", choices=["teachers", "selection"])
    arguments = parser.parse_args()
    study = Study(arguments.root, arguments.work)
    cells = Cells(arguments.work / f"{arguments.table}.jsonl")
    {"teachers": by_teachers, "selection": by_selection}[arguments.table](study, cells, arguments.seeds)


if __name__ == "__main__":
    main()
