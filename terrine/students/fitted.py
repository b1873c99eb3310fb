"""A student that is trained: what predicts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from terrine.aggregation.release import Release
from terrine.classifiers import Head, predict
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError
from terrine.mapped import Rows
from terrine.models.backbone import Backbone, features_in_batches
from terrine.models.statistics import Statistics
from terrine.queries import Queries
from terrine.students.answers import released_answers
from terrine.students.material import Material
from terrine.students.student import Progress, Student


@dataclass(frozen=True, eq=False, repr=False)
class FittedStudent:
    """A student: a head on a backbone, which may be published as the answers may that it learned from.

    statistics  with which batch statistics it predicts; under `current` ones an answer depends on its batch
    batch       how many images share them
    """

    backbone: Backbone
    head: Head
    statistics: Statistics
    batch: int
    device: torch.device | str = "cpu"

    def predict_proba(self, images: Rows) -> np.ndarray:
        """Return class probabilities, float32 [images, classes], of uint8 images [images, C, H, W].

        They are shuffled into batches as a deployment would see them: files are often sorted by class, and a batch
        should not be. Raises InputError for images that do not fit the backbone.
        """
        order = numpy_generator(0, "evaluation order").permutation(len(images))
        batches = np.array_split(order, max(1, round(len(order) / self.batch)))
        return predict(self.head, features_in_batches(self.backbone, images, batches, self.statistics, self.device))

    def predict(self, images: Rows) -> np.ndarray:
        """Return the class of each image, int64 [images]; see `predict_proba`."""
        return self.predict_proba(images).argmax(axis=1)

    def score(self, test: tuple[Rows, Any]) -> float:
        """Return the share of images that it classifies rightly: of private ones a private figure, outside any ε.

        Args:
            test: Images, uint8 [images, C, H, W], and their labels, whole numbers [images] (`Dataset.test`).

        Raises:
            InputError: other numbers of images and of labels.
        """
        images, labels = test
        if np.shape(labels) != (len(images),) or not len(images):
            raise InputError(f"{len(images)} images and labels of shape {np.shape(labels)} do not fit together.")
        return float((self.predict(images) == labels).mean())


def fit(
    settings: Student,
    queries: Queries,
    release: Release,
    backbone: Backbone,
    *,
    seed: int,
    device: torch.device | str,
    progress: Progress | None = None,
) -> FittedStudent:
    """Train a student; see `Student.fit`."""
    if release.queries != queries.digest:
        raise InputError("The release answers other images than these queries: give those that teachers voted on.")
    settings.check_mechanism(release.mechanism)
    rows, answers = released_answers(
        release.mechanism,
        settings,
        answered=release.answered,
        labels=release.labels,
        histograms=release.histograms,
        teachers=release.teachers,
        classes=release.classes,
    )
    pool = Queries(np.asarray(queries.images), queries.batches, queries.sources or ["queries"] * len(queries.batches))
    material = Material(pool, rows, answers, backbone, settings.statistics)
    trained = settings.train(material, seed=seed, device=device, progress=progress)
    return FittedStudent(trained.backbone or backbone, trained.head, settings.statistics, settings.batch, device)
