"""The linear student: one head on the frozen public backbone, from released labels or released noisy histograms.

The fit is maximum a posteriori under one of the likelihoods of `terrine.students.answers`, by full-batch L-BFGS, so the
only hyperparameter is the precision of the prior. A histogram costs the privacy of its argmax and contains far more
information (docs/results.md).

The precision may be given, or chosen on held-out released answers. Held-out answers are about synthetic images, which
are easier for a student than real ones, so they favour a prior that is too strong for a large budget. Training is
post-processing of the release: it reads no private data and costs no privacy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.students.student import Student, StudentData, TrainedStudent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from terrine.aggregation.mechanism import Aggregation
    from terrine.heads import LinearHead
    from terrine.students.answers import Loss, ReleasedAnswers

L2 = 0.3
"""Precision of the prior if it is neither given nor chosen."""

PRECISIONS = (3.0, 1.0, 0.3, 0.1, 0.03)
"""Values of `l2` that are tried, in this order, if none is given: a score's prior deviation from 0.6 to 6."""

FEWEST_TO_CHOOSE = 50
"""Minimum number of answers from which a regularisation strength is chosen; with fewer, the default is used."""

_MOST_STEPS = 100


class LinearStudent(Student):
    """One head on the frozen public backbone, fitted exactly; the only hyperparameter is the prior's precision `l2`."""

    kind: Literal["linear"] = "linear"

    def train(self, data: StudentData, *, seed: int, device: torch.device | str = "cpu", **_: Any) -> TrainedStudent:
        """See `Student.train`. The fit takes seconds, so there are no checkpoints and no progress."""
        return TrainedStudent(fit(data.features(device)[data.rows], data.answers, self.l2, seed=seed, device=device))


class SumsStudent(Student):
    """The linear head that follows from released moments or gradients, on the frozen public backbone."""

    kind: Literal["sums"] = "sums"
    statistics: Literal["current", "original"] = "original"
    """Batch normalisation statistics: the original ones, since features in sums may depend on only one image."""

    def train(self, data: StudentData, **how: Any) -> TrainedStudent:
        """Raise SettingError: nothing is trained. The student's head is that of `Sums.head`."""
        raise SettingError(
            "A student of kind sums learns from released sums, not from answers. Use student.kind=linear."
        )

    def check_mechanism(self, mechanism: Aggregation) -> None:
        """Raise SettingError for mechanisms that release answers, from which this student does not learn."""
        if mechanism.reveals != "sums":
            raise SettingError(
                f"student.kind=sums does not go with aggregation.mechanism={mechanism.mechanism}, which answers "
                "queries: it is the head of released sums. Leave one of the two out: each chooses the other"
            )


def fit(
    features: np.ndarray,
    answers: ReleasedAnswers,
    l2: float | None = L2,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> LinearHead:
    """Fit a head to released answers by maximum a posteriori.

    Args:
        features: One row per answer, [answers, features].
        answers: Released answers, in the order of the rows.
        l2: Precision of the Gaussian prior, independent of the features' scale and number: a weight's prior variance is
            1 / (l2 · mean ‖x‖²), so that a class's score has prior variance 1 / l2. 0: no prior. None tries
            `PRECISIONS`, strongest first, as long as the likelihood of a held-out quarter of the answers grows.
        seed: Decides which quarter is held out.
        device: Device of the computation.

    Raises:
        InputError: arrays do not fit together, are not finite or are empty.
    """
    import torch

    from terrine.determinism.parallel import side_by_side
    from terrine.heads import FindingsHead, LinearHead, OrderedHead

    targets, device = answers.targets, torch.device(device)
    check_rows(features, targets)
    features = np.ascontiguousarray(features, np.float32)
    inputs = torch.from_numpy(features).to(device)
    wanted = torch.from_numpy(targets).to(device)
    scale = mean_square_norm(features)
    head = (inputs.new_zeros(answers.classes, inputs.shape[1]), inputs.new_zeros(answers.classes))

    def choose_and_fit(l2: float | None) -> tuple[Tensor, Tensor]:
        if l2 is None and len(inputs) < FEWEST_TO_CHOOSE:
            l2 = L2
        if l2 is None:
            rest, kept = (torch.from_numpy(part).to(device) for part in validation_split(len(inputs), seed))
            l2, best, weight_and_bias = PRECISIONS[0], float("inf"), head
            for candidate in PRECISIONS:
                weight_and_bias = _minimise(
                    inputs[kept], wanted[kept], answers.loss, candidate * scale, weight_and_bias
                )
                weight, bias = weight_and_bias
                loss = float(answers.loss(inputs[rest] @ weight.T + bias, wanted[rest]).sum())
                if not loss < best:
                    break
                l2, best = candidate, loss
        return _minimise(inputs, wanted, answers.loss, l2 * scale, head)

    # One worker: the sums of a fit are long, and several threads would round them differently from one.
    ((weight, bias),) = side_by_side(choose_and_fit, [l2], device)
    kind = FindingsHead if targets.ndim == 3 else OrderedHead if answers.ordered else LinearHead
    return kind(weight.cpu().numpy(), bias.cpu().numpy())


def mean_square_norm(features: np.ndarray) -> float:
    """Return the mean of ‖x‖² over the rows of `features`, or 1 if they are all zero."""
    scale = float(np.einsum("qd,qd->", features, features, dtype=np.float64)) / len(features)
    return scale if scale > 0 else 1.0


def _minimise(
    inputs: Tensor, targets: Tensor, loss: Loss, penalty: float, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return weight [C, D] and bias [C] that minimise loss + penalty/2 ‖weight‖², by L-BFGS."""
    import torch

    weight, bias = (part.clone().requires_grad_() for part in start)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_MOST_STEPS,
        tolerance_grad=1e-7,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        scores = torch.addmm(bias, inputs, weight.T)
        # Per query, so that step lengths and tolerances mean the same for any number of queries.
        total = (loss(scores, targets).sum() + 0.5 * penalty * weight.square().sum()) / len(inputs)
        total.backward()
        return total

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def check_rows(features: np.ndarray, targets: np.ndarray) -> None:
    """Raise InputError if features [answers, features] and answers do not fit together, are empty or not finite."""
    if features.ndim != 2 or len(features) != len(targets) or len(features) == 0:
        raise InputError(
            f"features of shape {features.shape} and {len(targets)} answers do not fit together. Give one row of "
            "features per released answer, and at least one."
        )
    if not np.isfinite(targets).all() or not np.isfinite(features.sum(dtype=np.float64)):
        raise InputError("The student's features and the released answers must be finite numbers.")


def validation_split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of a random quarter of `count` answers, and those of the others."""
    order = numpy_generator(seed, "student held out").permutation(count)
    return order[: count // 4], order[count // 4 :]
