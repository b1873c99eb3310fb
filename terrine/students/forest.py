"""The forest student: regression trees on features, fitted to released shares of votes (or to released labels).

A tree's leaf is the mean of its answers, so the noise of a released histogram averages out in leaves with many answers.
The minimum leaf size `least` regularises the forest, as the prior's precision does the linear student, and is also
chosen on held-out released answers. For labels, a leaf contains the share of each label; splits by squared error on
one-hot labels are those of the Gini impurity. Training a forest is post-processing of the release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from terrine.determinism.randomness import derive_seed
from terrine.settings import Field, Unit
from terrine.students.linear import FEWEST_TO_CHOOSE, check_rows, validation_split
from terrine.students.student import Student, StudentData, TrainedStudent

if TYPE_CHECKING:
    import torch

    from terrine.heads import ForestHead
    from terrine.students.answers import ReleasedAnswers

LEAST = (200, 100, 50, 20, 10, 5)
"""Minimum leaf sizes that are tried, in this order, if none is given."""

_DEEPEST = 16
_LEAVES = 8  # minimum number of leaves of a candidate


class ForestStudent(Student):
    """A random forest on features, or on a table's columns, fitted to released shares of votes or labels."""

    kind: Literal["forest"] = "forest"
    trees: int = Field(100, ge=1, le=1000)
    """Number of trees."""
    least: Annotated[int | None, Unit("answers")] = Field(None, ge=1)
    """Minimum number of answers in a leaf. null: chosen by validation on released labels."""

    def train(self, data: StudentData, *, seed: int, device: torch.device | str = "cpu", **_: Any) -> TrainedStudent:
        """See `Student.train`. Trees are trained on the CPU in seconds, without checkpoints or progress."""
        features = data.features(device)[data.rows]
        return TrainedStudent(fit(features, data.answers, trees=self.trees, least=self.least, seed=seed))

    def check(self, run: Any) -> None:
        """Raise ValueError for settings of a linear head."""
        super().check(run)
        for name in ("l2", "forward_correction"):
            if value := getattr(self, name):
                raise ValueError(f"student.{name}={value} has no meaning for student.kind=forest. Remove it")


def fit(features: np.ndarray, answers: ReleasedAnswers, *, trees: int, least: int | None, seed: int) -> ForestHead:
    """Fit a forest to released answers, one row of features [answers, features] each.

    Args:
        features: float [answers, features], one row per answer.
        answers: Released answers, in the order of the rows.
        trees: Number of trees.
        least: Minimum answers in a leaf; None tries `LEAST` in order, as long as the likelihood of a held-out quarter
            of the answers grows.
        seed: Decides which quarter is held out, and seeds the trees: equal seeds grow equal forests.

    Raises:
        InputError: arrays do not fit together, are not finite or are empty.
    """
    targets = answers.targets
    check_rows(features, targets)
    inputs = np.ascontiguousarray(features, np.float32)
    return _grow(inputs, targets, trees, least or _choose_least(inputs, answers, trees, seed), seed)


def _choose_least(inputs: np.ndarray, answers: ReleasedAnswers, trees: int, seed: int) -> int:
    import torch

    if len(inputs) < FEWEST_TO_CHOOSE:
        return LEAST[-1]
    rest, kept = validation_split(len(inputs), seed)
    wanted = torch.from_numpy(answers.targets[rest])
    chosen, best = LEAST[-1], float("inf")
    for candidate in (least for least in LEAST if _LEAVES * least <= len(kept)):
        head = _grow(inputs[kept], answers.targets[kept], trees, candidate, seed)
        with torch.no_grad():
            loss = float(answers.loss(head.module()(torch.from_numpy(inputs[rest])), wanted).sum())
        if loss > best:
            break
        chosen, best = candidate, loss
    return chosen


def _grow(inputs: np.ndarray, targets: np.ndarray, trees: int, least: int, seed: int) -> ForestHead:
    from sklearn.ensemble import RandomForestRegressor

    from terrine.heads import ForestHead

    forest = RandomForestRegressor(
        trees,
        min_samples_leaf=least,
        max_depth=_DEEPEST,
        max_features=1 / 3,
        random_state=derive_seed(seed, "forest student") % 2**32,
    ).fit(inputs, targets)
    grown = [estimator.tree_ for estimator in forest.estimators_]
    first = np.cumsum([0, *(tree.node_count for tree in grown)])

    def joined(part: Any) -> np.ndarray:
        return np.concatenate([part(tree, start) for tree, start in zip(grown, first[:-1], strict=True)])

    def child(name: str) -> Any:
        def follow(tree: Any, start: int) -> np.ndarray:
            children = getattr(tree, name)
            return start + np.where(children < 0, np.arange(tree.node_count), children)

        return follow

    leaf = joined(lambda tree, _: tree.children_left < 0)
    return ForestHead(
        root=first[:-1].astype(np.int32),
        feature=np.where(leaf, 0, joined(lambda tree, _: tree.feature)).astype(np.int32),
        threshold=np.where(leaf, np.inf, _at_most(joined(lambda tree, _: tree.threshold))).astype(np.float32),
        left=joined(child("children_left")).astype(np.int32),
        right=joined(child("children_right")).astype(np.int32),
        shares=joined(lambda tree, _: tree.value[:, :, 0]).astype(np.float32),
        importance=forest.feature_importances_.astype(np.float32),
    )


def _at_most(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 that is at most each threshold: the same float32 features are at most both."""
    rounded = thresholds.astype(np.float32)
    above = rounded.astype(np.float64) > thresholds
    return np.where(above, np.nextafter(rounded, np.float32(-np.inf)), rounded)
