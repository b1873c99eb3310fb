"""Cached features of whole datasets, and students of teachers' votes on them: inputs that several tables share."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tasks.artefacts.features import rows_in_parts
from tasks.runtime.store import atomic_file
from terrine.aggregation.mechanism import NOTHING
from terrine.aggregation.records import Records, Whitening
from terrine.aggregation.sums import Sums, mu_left
from terrine.aggregation.votes import count_votes
from terrine.data.dataset import Dataset
from terrine.heads import LinearHead
from terrine.models.architecture import Architecture
from terrine.models.backbone import features_in_batches
from terrine.models.released_statistics import bound_for, set_statistics, statistics_from, unit_vectors
from terrine.planning import Plan
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_sum import ClippedMean
from terrine.students.answers import histogram_answers
from terrine.students.linear import fit
from terrine.synthetic.queries import draw
from terrine.teachers.linear import LinearTeachers, train_heads, vote

TEACHERS = LinearTeachers(ridge=0.1)
QUIET = 1e4
"""μ of noise that is too small to change a result."""

QUERIES = 6000
"""Number of synthetic images."""

Kept = dict[str, np.ndarray]
"""Features of `train`, `test` and `queries`, one image at a time, with `labels` and `test_labels` ([N, K] findings)."""


def kept_features(
    load: Callable[[], Dataset], backbone: Architecture, path: Path, mean: ClippedMean | None = None
) -> Kept:
    """Return the features of a public benchmark and of `QUERIES` synthetic images, to which the backbone is fitted.

    Args:
        load: Reads the dataset; called only if `path` does not exist.
        backbone: The architecture.
        path: The .npz file that caches the features.
        mean: Releases the moments that normalise private images, with replayed noise. None: use the moments of the
            synthetic images.
    """
    if not path.is_file():
        parts, data = path.with_suffix(".parts"), load()
        queries = draw({"dead_leaves": 1, "stylegan": 1}, count=QUERIES, like=data)
        fitted = backbone.fit(queries)
        made = {"queries": features_in_batches(fitted, queries.inputs, queries.batches, "original", "cpu")}
        if mean is not None:
            bound = bound_for(fitted, None, mean.noise_multiplier)
            units = unit_vectors(fitted, data.train_images, np.arange(data.records), bound)
            released = mean.mean(mean.release(units, ReplayNoise(0)))
            set_statistics(fitted, statistics_from(fitted, *released, bound))
        for part, images in (("train", data.train_images), ("test", data.test_images)):
            made[part] = rows_in_parts(parts / f"{part}.npy", fitted, images, np.copy)
        with atomic_file(path) as stream:
            np.savez(stream, **made, labels=data.train_labels, test_labels=data.test_labels)
        shutil.rmtree(parts)
    with np.load(path) as kept:
        return dict(kept)


def vectors_of(kept: Kept, unit: np.ndarray | None = None) -> tuple[Records, np.ndarray, np.ndarray]:
    """Return the records that sum mechanisms read, and the vectors and labels of the test images.

    unit: int64 [records], the privacy unit of each record; None: each record is its own unit.
    """
    whitening, labels = Whitening.fit(kept["queries"]), kept["labels"]
    train, test = (whitening.vectors(kept[part]) for part in ("train", "test"))
    unit = np.arange(len(labels)) if unit is None else unit
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
    return Records.of(train, labels, unit, classes), test, kept["test_labels"]


def counted_votes(
    kept: Kept, teacher: np.ndarray, classes: int, most: int | None = None, teachers: LinearTeachers = TEACHERS
) -> np.ndarray:
    """Return the histograms of teachers' votes on the synthetic images, [queries, classes].

    Args:
        kept: The features.
        teacher: int64 [records], the teacher that learns from each record.
        classes: Number of classes.
        most: Number of leading features that are read; None: all.
        teachers: Settings of the teachers.
    """
    train, queries = (kept[part][:, :most] for part in ("train", "queries"))
    present, own = np.unique(teacher, return_inverse=True)
    heads = train_heads(train, kept["labels"], own, list(range(len(present))), classes, teachers, seed=0)
    return count_votes(vote(heads, queries), classes)


def student_of_votes(
    kept: Kept, teacher: np.ndarray, classes: int, most: int | None = None, teachers: LinearTeachers = TEACHERS
) -> Callable[[Plan, int], LinearHead]:
    """Return a function of a plan and a noise seed that fits a student to noisy votes. Arguments: `counted_votes`."""
    counts = counted_votes(kept, teacher, classes, most, teachers)

    def student(planned: Plan, seed: int) -> LinearHead:
        noisy = counts + ReplayNoise(seed).gaussian(counts.shape, planned.sigma)
        return fit(kept["queries"][:, :most], histogram_answers(noisy, int(counts[0].sum()), planned.sigma), seed=0)

    return student


def sums_budget(
    kind: Sums, epsilon: float, delta: float, spent: Event = NOTHING, *, added: bool = False
) -> tuple[float, float, float]:
    """Return the μ of a release of sums at ε, and its ε if a record is added or removed, and if one is replaced.

    A smaller event under add/remove leaves a larger μ. Both events are Gaussian, so their μ² are proportional.

    Args:
        kind: The mechanism.
        epsilon: ε of everything that is released.
        delta: δ.
        spent: Cost of what was released before, which is the same under both relations.
        added: Whether `epsilon` is of adding or removing a record, not of replacing one.
    """
    mu = mu_left(epsilon, delta, spent)
    if added:
        mu /= math.sqrt(mu_squared(kind.schedule(1.0).event_added))
    course = kind.schedule(mu)
    return mu, price(compose(spent, course.event_added), delta), price(compose(spent, course.event), delta)
