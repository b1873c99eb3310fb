"""Folders of images with a CSV of numbers or grades, drawn or made of MNIST, and what they can be predicted to without
privacy.

    python benchmarks/ordered_targets.py draw ages ages 12000             # discs that grow with age, 0 to 100 years
    python benchmarks/ordered_targets.py draw turned turned 12000 ROOT    # MNIST digits turned by -60 to 60 degrees
    python benchmarks/ordered_targets.py draw grades grades 12000         # dots on a disc, by their number 0 to 4
    python benchmarks/ordered_targets.py plain RUN                        # of a finished run, on its own backbone
    python benchmarks/ordered_targets.py forms ages                       # in three forms; or forms turned ROOT

ROOT is where MNIST lies, or is downloaded to. `plain` fits ridge regressions to the private features of a run, with no
noise anywhere, and says the error on its test split beside the student's: of the numbers themselves, and of saying the
mean. `forms` compares at one price, on 6,000 images with 60 teachers and 1,000 queries: votes on one of K bins, of
which a softmax student learns, or one that tells what lies above each boundary; and votes on K - 1 boundaries that are
answered as findings. Results are in docs/targets.md.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32
SHARES = (0.45, 0.12, 0.2, 0.17, 0.06)
"""Class shares of the grades, about as in RetinaMNIST."""
DOTS = (0, 2, 5, 10, 18)


def _disc(radius: float, generator: np.random.Generator) -> np.ndarray:
    """Return an ellipse of this mean radius, float [SIDE, SIDE] from 0 to 1, with a soft edge, at no fixed place."""
    y, x = np.mgrid[:SIDE, :SIDE]
    (left, top), turn = SIDE / 2 + generator.normal(0, 1.5, 2), generator.uniform(0, np.pi)
    long = np.exp(generator.normal(0, 0.15))
    along = (x - left) * np.cos(turn) + (y - top) * np.sin(turn)
    across = (y - top) * np.cos(turn) - (x - left) * np.sin(turn)
    return 1 / (1 + np.exp(2 * (np.hypot(along / long, across * long) - radius)))


def ages(count: int, generator: np.random.Generator) -> tuple[np.ndarray, list[float]]:
    """Return images, uint8 [count, SIDE, SIDE], of discs whose radius grows with age, but not alike for all."""
    numbers = generator.uniform(0, 100, count).round(1)
    images = [
        generator.uniform(90, 220) * _disc(3 + 0.09 * age + generator.normal(0, 0.5), generator)
        + generator.uniform(10, 60)
        + generator.normal(0, 15, (SIDE, SIDE))
        for age in numbers
    ]
    return np.clip(images, 0, 255).astype(np.uint8), numbers.tolist()


def grades(count: int, generator: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Return images, uint8 [count, SIDE, SIDE], of discs with bright dots, the more the higher the grade."""
    labels, images = generator.choice(len(SHARES), count, p=SHARES), []
    for grade in labels:
        image = 90 * _disc(13, generator) + 20 + generator.normal(0, 6, (SIDE, SIDE))
        for _ in range(generator.poisson(DOTS[grade]) if grade else 0):
            top, left = generator.integers(6, SIDE - 7, 2)
            image[top : top + 2, left : left + 2] += generator.uniform(60, 120)
        images.append(image)
    return np.clip(images, 0, 255).astype(np.uint8), labels.tolist()


def turned(count: int, generator: np.random.Generator, root: str) -> tuple[np.ndarray, list[float]]:
    """Return images of distinct rotated digits, uint8 [count, SIDE, SIDE], and their angles in degrees."""
    from terrine.data.source import load_dataset

    data = load_dataset("mnist", root=Path(root))
    chosen, angles = generator.permutation(len(data.train_images))[:count], generator.uniform(-60, 60, count).round(1)
    images = []
    for digit, angle in zip(chosen, angles, strict=True):
        canvas = Image.new("L", (SIDE, SIDE))
        canvas.paste(Image.fromarray(data.train_images[digit, 0]), (2, 2))
        images.append(np.asarray(canvas.rotate(angle, Image.Resampling.BILINEAR)))
    return np.stack(images), angles.tolist()


def draw(kind: str, target: str, count: str, *root: str) -> None:
    """Write the images, and `table.csv` beside them with the columns path and label."""
    images, labels = {"ages": ages, "grades": grades, "turned": turned}[kind](
        int(count), np.random.default_rng(0), *root
    )
    folder = Path(target)
    (folder / "images").mkdir(parents=True)
    lines = ["path,label"]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(image).save(folder / "images" / f"{number:05d}.png")
        lines.append(f"images/{number:05d}.png,{label}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


def plain(name: str) -> None:
    """Print errors: the student's, and without privacy of a softmax of classes, of a ridge of numbers, of the mean."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from tasks.artefacts.images import read_backbone
    from tasks.artefacts.records import read_dataset
    from tasks.runtime.run import open_run
    from tasks.runtime.store import read_json
    from terrine.models.backbone import features_in_batches

    run = open_run(Path(), name)
    dataset, backbone = read_dataset(run.folders), read_backbone(run.folders)
    scale = dataset.scale
    assert scale is not None

    def features(images: np.ndarray) -> np.ndarray:
        batches = np.array_split(np.arange(len(images)), -(-len(images) // 500))
        return features_in_batches(backbone, images, batches, "current", "cpu")

    train, test = features(dataset.train_images), features(dataset.test_images)
    truth = dataset.test_labels.astype(float) if dataset.test_numbers is None else dataset.test_numbers
    known = dataset.train_labels if dataset.test_numbers is None else scale.middles[dataset.train_labels]
    ridge = make_pipeline(StandardScaler(), Ridge(10.0)).fit(train, known)
    softmax = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300)).fit(train, dataset.train_labels)
    likely = softmax.predict_proba(test)
    said = scale.classes(likely) if dataset.test_numbers is None else scale.numbers(likely)
    low = scale.edges[0] if scale.edges else 0.0
    found = {
        "student": read_json(run.folders.evaluation)["order"]["mean_absolute_error"]["value"],
        "softmax of all records": np.abs(said - truth).mean(),
        "ridge of all records": np.abs(np.clip(ridge.predict(test), low, low + scale.span) - truth).mean(),
        "the mean": np.abs(known.mean() - truth).mean(),
    }
    for what, error in found.items():
        print(f"{what}: {error:.3f}")


SEEDS = 5


def forms(kind: str, *root: str) -> None:
    """Print the error of each form on 1,500 test images at one price, its mean and deviation over seeds."""
    from terrine.data.dataset import Dataset
    from terrine.data.ordered import Scale
    from terrine.models.backbone import features_in_batches
    from terrine.models.scattering import Scattering
    from terrine.synthetic.queries import draw as draw_queries

    images, labels = {"ages": ages, "turned": turned}[kind](7500, np.random.default_rng(1), *root)
    images, truth, low, high = images[:, None], np.array(labels), *((0, 100) if kind == "ages" else (-60, 60))
    like = Dataset(kind, images[:6000], np.arange(6000) % 2, None, images[6000:], np.arange(1500) % 2, ("a", "b"))
    queries = [draw_queries(name, count=500, like=like, seed=0) for name in ("dead_leaves", "stylegan")]
    backbone = Scattering(projection=200).fit(queries[0])

    def features(rows: np.ndarray) -> np.ndarray:
        batches = np.array_split(np.arange(len(rows)), len(rows) // 500)
        return features_in_batches(backbone, rows, batches, "current", "cpu")

    rows = (features(images[:6000]), np.concatenate([features(query.inputs) for query in queries]))
    tested = features(images[6000:])
    print(f"the median: {np.abs(np.median(truth) - truth[6000:]).mean():.2f}")
    for number in (5, 10):
        scale = Scale.from_settings(bins=tuple(np.linspace(low, high, number + 1).tolist()))
        for epsilon in (8.0, 3.0):
            said = [in_forms(*rows, tested, scale, truth[:6000], epsilon, seed) for seed in range(SEEDS)]
            for form in said[0]:
                errors = [np.abs(scale.numbers(one[form]) - truth[6000:]).mean() for one in said]
                print(
                    f"{number} bins, ε = {epsilon:g}, {form}: {np.mean(errors):.2f} ± {np.std(errors):.2f}", flush=True
                )


def in_forms(
    learnt: np.ndarray, asked: np.ndarray, tested: np.ndarray, scale: Any, truth: np.ndarray, epsilon: float, seed: int
) -> dict[str, np.ndarray]:
    """Return the students' probabilities of bins, [images, bins], by the form that their answers had.

    learnt, asked, tested: features of private records, queries and test images. truth: the records' numbers.
    """
    from terrine.aggregation.votes import Findings, count_finding_votes, count_votes
    from terrine.heads import predict
    from terrine.privacy.accounting.gaussian import mu_of
    from terrine.students.answers import ReleasedAnswers, histogram_answers, ordered_answers, share_loss
    from terrine.students.linear import fit
    from terrine.teachers.linear import LinearHeads, LinearTeachers, train_heads, vote

    generator, teachers, number, places = np.random.default_rng(seed), 60, len(scale.names), scale.places(truth)
    assignment, everyone = generator.integers(0, teachers, len(learnt)), list(range(teachers))
    sigma, settings = float(np.sqrt(2 * len(asked)) / mu_of(epsilon, 1e-5)), LinearTeachers(ridge=0.3)
    votes = vote(train_heads(learnt, places, assignment, everyone, number, settings, seed=0), asked)
    noisy = count_votes(votes, number) + generator.normal(0, sigma, (len(asked), number))
    said = {
        "bins, softmax": predict(fit(asked, histogram_answers(noisy, teachers, sigma), 0.3, seed=0), tested),
        "bins, boundaries": predict(fit(asked, ordered_answers(noisy, teachers, sigma), 0.3, seed=0), tested),
    }
    above = (places[:, None] > np.arange(number - 1)).astype(np.int64)
    heads = train_heads(learnt, above, assignment, everyone, number - 1, settings, seed=0)
    usual = np.stack([above[assignment == teacher].mean(axis=0) for teacher in everyone])
    heads = LinearHeads(heads.weight, (heads.bias + usual - 0.5).astype(np.float32))
    answers = count_finding_votes(vote(heads, asked, findings=Findings(number - 1)), number - 1, None)
    louder = sigma * np.sqrt(number - 1)
    told = answers + generator.normal(0, louder, answers.shape)
    shares = ((told[:, 1] - told[:, 0]) / teachers + 1) / 2
    targets = np.stack([shares, np.ones_like(shares)], 1).reshape(len(asked), number - 1, 2).astype(np.float32)
    loss = partial(share_loss, weight=(teachers / louder) ** 2)
    likely = np.sort(predict(fit(asked, ReleasedAnswers(targets, loss), 0.3, seed=0), tested))[:, ::-1]
    ends = np.ones((len(likely), 1))
    return said | {"boundaries as findings": np.hstack([ends, likely]) - np.hstack([likely, 0 * ends])}


if __name__ == "__main__":
    {"draw": draw, "plain": plain, "forms": forms}[sys.argv[1]](*sys.argv[2:])
