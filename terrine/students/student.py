"""Students: their common settings, the public data they learn from, and what training returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.queries import Queries
from terrine.settings import Field, Kinds, Settings, Unit

if TYPE_CHECKING:
    import torch

    from terrine.aggregation.mechanism import Aggregation
    from terrine.aggregation.release import Release
    from terrine.heads import Head
    from terrine.models.backbone import Backbone
    from terrine.models.statistics import Statistics
    from terrine.npy import Rows
    from terrine.students.answers import ReleasedAnswers

Progress = Callable[[float, str], None]
"""Called with (fraction done, one line of text)."""

Cache = Callable[[str, Callable[[], np.ndarray]], np.ndarray]
"""(name of an array, function that computes it) -> the array, computed or cached."""


@dataclass(frozen=True, eq=False)
class StudentData:
    """Training data of a student: public images and released answers.

    Attributes:
        pool: All public images that the student may use; each is in one batch, and no batch has two sources.
        rows: int64 [answers], the number in the pool of each image that has an answer.
        answers: The released answers, in the order of `rows`.
        backbone: The public backbone, which is never changed.
        statistics: Batch statistics with which the student is trained and used.
        cache: Stores features of the frozen backbone by name.

    Raises:
        InputError: The shapes of images, batches and answers do not match.
    """

    pool: Queries
    rows: np.ndarray
    answers: ReleasedAnswers
    backbone: Backbone
    statistics: Statistics
    cache: Cache = lambda _, compute: compute()

    def __post_init__(self) -> None:
        pool = self.pool
        covered = np.sort(np.concatenate(pool.batches)) if len(pool.batches) else np.empty(0, int)
        if len(pool.batches) != len(pool.sources) or not np.array_equal(covered, np.arange(len(pool))):
            raise InputError(
                f"The student's pool has {len(pool)} images, {len(pool.batches)} batches and {len(pool.sources)} "
                "sources. Every image belongs in one batch, and every batch to one source."
            )
        rows = np.asarray(self.rows)
        if rows.shape != (len(self.answers),) or len(rows) == 0:
            raise InputError(
                f"{len(self.answers)} released answers and image numbers of shape {rows.shape} do not fit together. "
                "Give one image per released answer, and at least one."
            )
        if rows.min() < 0 or rows.max() >= len(pool) or len(np.unique(rows)) != len(rows):
            raise InputError(
                f"Answers are about images {rows.min()} to {rows.max()}, some perhaps more than once, and the pool has "
                f"{len(pool)}."
            )

    def features(self, device: torch.device | str) -> np.ndarray:
        """Return the frozen backbone's features of all images, float32 [images, features], in the pool's batches."""
        from terrine.models.backbone import features_in_batches

        return self.cache(
            "plain",
            lambda: features_in_batches(self.backbone, self.pool.images, self.pool.batches, self.statistics, device),
        )


@dataclass(frozen=True, eq=False)
class TrainedStudent:
    """Result of training a student.

    Attributes:
        head: Classifier head of the student.
        backbone: The student's own backbone, or None if it uses the public one.
        record: Facts about the training as JSON values, computed only from public and released data.
    """

    head: Head
    backbone: Backbone | None = None
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class FittedStudent:
    """A student that predicts: a head on a backbone. The student may be published if the answers it learned from may.

    statistics  batch statistics with which it predicts; with `current` ones a prediction depends on its batch
    batch       how many images share batch statistics
    """

    backbone: Backbone
    head: Head
    statistics: Statistics
    batch: int
    device: torch.device | str = "cpu"

    def predict_proba(self, images: Rows) -> np.ndarray:
        """Return class probabilities, float32 [images, classes], of uint8 images [images, C, H, W].

        Images are shuffled into batches as a deployment would see them: files are often sorted by class, and a batch
        should not be. Raises InputError for images that do not match the backbone.
        """
        from terrine.heads import predict
        from terrine.models.backbone import features_in_batches

        order = numpy_generator(0, "evaluation order").permutation(len(images))
        batches = np.array_split(order, max(1, round(len(order) / self.batch)))
        return predict(self.head, features_in_batches(self.backbone, images, batches, self.statistics, self.device))

    def predict(self, images: Rows) -> np.ndarray:
        """Return the class of each image, int64 [images]; see `predict_proba`."""
        return self.predict_proba(images).argmax(axis=1)

    def score(self, test: tuple[Rows, Any]) -> float:
        """Return the accuracy on labelled images. The accuracy on private images is private and not covered by ε.

        Args:
            test: Images, uint8 [images, C, H, W], and their labels, whole numbers [images] (`Dataset.test`).

        Raises:
            InputError: The numbers of images and labels differ.
        """
        images, labels = test
        if np.shape(labels) != (len(images),) or not len(images):
            raise InputError(f"{len(images)} images and labels of shape {np.shape(labels)} do not fit together.")
        return float((self.predict(images) == labels).mean())


class Student(Settings, ABC):
    """Settings of a kind of student, which trains the published model.

    Guarantee of an implementation: the result of `train` is a function of `StudentData` (which is public or released),
    its settings and the seed. Training is therefore post-processing and costs no privacy.
    """

    uses_unlabelled: ClassVar[bool] = False
    """Whether the student also learns from public images without an answer."""

    kind: str
    statistics: Literal["current", "original"] = "current"
    """Batch normalisation statistics in training and use: those of the current batch, or the backbone's original
    ones."""
    batch: Annotated[int, Unit("images")] = Field(500, ge=2)
    """Images per batch in evaluation with current statistics."""
    l2: float | None = Field(None, ge=0)
    """Precision of the prior on class scores. null: chosen by validation on released labels."""
    forward_correction: bool = False
    """Correct the loss for label noise, computed from sigma and the numbers of teachers and classes. This setting is
    for released labels only."""

    @abstractmethod
    def train(
        self,
        data: StudentData,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> TrainedStudent:
        """Train a student on `device`.

        With `work`, a folder for this training only, a long training writes checkpoints there and resumes from them;
        on a CPU with the same number of threads the result is the same to the last bit.

        Raises:
            SettingError: The settings do not suit the backbone.
            ArtefactError: `work` belongs to another training.
        """

    def fit(
        self,
        queries: Queries,
        release: Release,
        backbone: Backbone,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        progress: Progress | None = None,
    ) -> FittedStudent:
        """Train a student on what was released: post-processing, which costs no privacy.

        Args:
            queries: The public images that teachers were asked about, uint8 [queries, C, H, W].
            release: Released answers to these queries.
            backbone: The public backbone, which is not changed.
            seed: Seed of the training.
            device: Device of the training and of the returned student.
            progress: Called with (fraction done, description).

        Returns:
            The student, which may be published like the release.

        Raises:
            InputError: The release is for other images, or has no answers.
            SettingError: The settings do not suit the backbone or the release.
        """
        from terrine.students.answers import released_answers

        if release.queries != queries.digest:
            raise InputError("The release answers other images than these queries: give those that teachers voted on.")
        self.check_mechanism(release.mechanism)
        rows, answers = released_answers(
            release.mechanism,
            self,
            answered=release.answered,
            labels=release.labels,
            histograms=release.histograms,
            teachers=release.teachers,
            classes=release.classes,
        )
        sources = queries.sources or ["queries"] * len(queries.batches)
        data = StudentData(
            Queries(np.asarray(queries.images), queries.batches, sources), rows, answers, backbone, self.statistics
        )
        trained = self.train(data, seed=seed, device=device, progress=progress)
        return FittedStudent(trained.backbone or backbone, trained.head, self.statistics, self.batch, device)

    def check(self, run: Any) -> None:
        self.check_mechanism(run.aggregation)

    def check_mechanism(self, mechanism: Aggregation) -> None:
        """Raise SettingError for answers that `forward_correction` cannot correct."""
        if self.forward_correction and not (mechanism.gaussian and mechanism.reveals == "argmax"):
            raise SettingError(
                f"student.forward_correction=true does not go with aggregation.mechanism={mechanism.mechanism}: it "
                "is derived for labels with Gaussian noise. Set it to false"
            )


STUDENTS: Kinds[Student] = Kinds(
    "student",
    Student,  # type: ignore[type-abstract]
    *(f"terrine.students.{name}" for name in ("linear", "forest", "gradient", "fixmatch", "freematch", "vat")),
    default="linear",
)
