"""The linear student: one head on the public backbone, from released labels or released noisy histograms.

Both fits are maximum a posteriori, by full-batch L-BFGS from the same start, so there is nothing to tune but the
strength of the prior (`StudentSettings.l2`):

- `fit_labels`: cross-entropy with hard labels, optionally smoothed;
- `fit_histograms`: a released histogram is h = n + N(0, σ²I). Its expected share of votes n/N is modelled as
  softmax(f(x)), so the negative log-likelihood of a query is ‖h/N − softmax(f(x))‖² / 2(σ/N)². It costs the privacy of
  the argmax and carries far more (docs/results.md).

The strength may be given, or chosen on released answers that were held out. Held-out answers are about synthetic
images, which ask less of a student than real ones do, so they favour a prior that is too strong for a large budget:
the default is a fixed value. All of this is post-processing of the release: it reads no private data and costs no
privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from terrine.errors import InputError, SettingError
from terrine.heads import LinearHead
from terrine.parallel import side_by_side
from terrine.randomness import numpy_generator

__all__ = ["LinearHead", "StudentSettings", "fit_histograms", "fit_labels", "predict"]

PRECISIONS = (3.0, 1.0, 0.3, 0.1, 0.03)
"""Values of `l2` that are tried, in this order, when none is given: a score's prior deviation from 0.6 to 6."""
_HELD_OUT = 4  # one answer in so many decides
_FEWEST_TO_CHOOSE = 50
_PREDICTION_BLOCK = 4096

Loss = Callable[[Tensor, Tensor], Tensor]
"""(scores [B, classes], targets [B, classes]) -> summed negative log-likelihood."""


@dataclass(frozen=True)
class StudentSettings:
    """How a linear student is fitted.

    l2: precision of the Gaussian prior, in units that do not depend on the features' scale or number: a weight's prior
        variance is 1 / (l2 · mean ‖x‖²), so that a class's score has prior variance 1 / l2. 0 is no prior. None goes
        through `PRECISIONS` from the strongest on, for as long as a held-out quarter of the answers grows likelier.
    label_smoothing: share of a hard label that is spread evenly over all classes (`fit_labels` only).
    iterations: most steps of L-BFGS.
    """

    l2: float | None = 0.3
    label_smoothing: float = 0.0
    iterations: int = 100

    def __post_init__(self) -> None:
        if self.l2 is not None and not 0 <= self.l2 < float("inf"):
            raise SettingError(f"student: l2 is {self.l2}. Give a number from 0 on, or null to have it chosen.")
        if not 0 <= self.label_smoothing < 1:
            raise SettingError(f"student: label_smoothing is {self.label_smoothing}, outside 0 (included) to 1.")
        if self.iterations < 1:
            raise SettingError(f"student: iterations is {self.iterations}, and must be at least 1.")


def fit_labels(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int,
    settings: StudentSettings | None = None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    initial: LinearHead | None = None,
) -> LinearHead:
    """Fit a head to released hard labels by penalised cross-entropy.

    features: float32 [queries, features]; labels: int64 [queries], 0 .. classes - 1. seed decides the folds on which
    the prior is chosen. initial: where to start, zero by default; with a prior the optimum does not depend on it.
    Raises InputError when arrays do not fit together, are not finite or are empty.
    """
    settings = settings or StudentSettings()
    labels = np.asarray(labels)
    if labels.ndim != 1 or (len(labels) and not (labels.min() >= 0 and labels.max() < classes)):
        raise InputError(f"labels: one number from 0 to {classes - 1} per query expected, in an array [queries].")
    targets = np.eye(classes, dtype=np.float32)[labels]

    def fit_loss(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores, targets, reduction="sum", label_smoothing=settings.label_smoothing)

    def held_out_loss(scores: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(scores, targets, reduction="sum")

    return _fit(features, targets, fit_loss, held_out_loss, settings, seed, torch.device(device), initial)


def fit_histograms(
    features: np.ndarray,
    histograms: np.ndarray,
    teachers: int,
    sigma: float,
    settings: StudentSettings | None = None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    initial: LinearHead | None = None,
) -> LinearHead:
    """Fit a head to released noisy histograms by their Gaussian likelihood.

    features: float32 [queries, features]; histograms: [queries, classes], the votes of `teachers` teachers plus noise
    of standard deviation `sigma` votes. seed, initial: as in `fit_labels`. Raises InputError when arrays do not fit
    together, are not finite or are empty, and SettingError for teachers < 1 or sigma <= 0.
    """
    settings = settings or StudentSettings()
    if teachers < 1 or not 0 < sigma < float("inf"):
        raise SettingError(f"student: {teachers} teachers with noise of {sigma} votes; both must be positive.")
    shares = np.asarray(histograms, np.float64) / teachers
    weight = 0.5 * (teachers / sigma) ** 2

    def loss(scores: Tensor, shares: Tensor) -> Tensor:
        return (torch.softmax(scores, dim=1) - shares).square_().sum() * weight

    return _fit(features, shares.astype(np.float32), loss, loss, settings, seed, torch.device(device), initial)


def predict(head: LinearHead, features: np.ndarray) -> np.ndarray:
    """Return class probabilities, float32 [queries, classes], of features [queries, features].

    Computed on the CPU in fixed blocks, each by one thread: the same bytes on any number of cores.
    """
    weight, bias = torch.tensor(head.weight), torch.tensor(head.bias)
    if features.ndim != 2 or features.shape[1] != weight.shape[1]:
        raise InputError(f"features of shape {features.shape} do not fit a head on {weight.shape[1]} features.")

    def compute(first: int) -> np.ndarray:
        block = torch.tensor(features[first : first + _PREDICTION_BLOCK], dtype=torch.float32)
        return torch.softmax(torch.addmm(bias, block, weight.T), dim=1).numpy()

    blocks = list(side_by_side(compute, range(0, len(features), _PREDICTION_BLOCK)))
    return np.concatenate(blocks) if blocks else np.empty((0, len(bias)), np.float32)


def _fit(
    features: np.ndarray,
    targets: np.ndarray,
    fit_loss: Loss,
    held_out_loss: Loss,
    settings: StudentSettings,
    seed: int,
    device: torch.device,
    initial: LinearHead | None,
) -> LinearHead:
    """Choose the prior if it is not given, then fit on all answers."""
    if features.ndim != 2 or len(features) != len(targets) or len(features) == 0:
        raise InputError(
            f"features of shape {features.shape} and {len(targets)} answers do not fit together. Give one row of "
            "features per released answer, and at least one."
        )
    if not np.isfinite(targets).all() or not np.isfinite(features.sum(dtype=np.float64)):
        raise InputError("The student's features and the released answers must be finite numbers.")
    features = np.ascontiguousarray(features, np.float32)
    inputs = torch.from_numpy(features).to(device)
    answers = torch.from_numpy(targets).to(device)
    scale = float(np.einsum("qd,qd->", features, features, dtype=np.float64)) / len(features)
    start = (
        (torch.zeros(answers.shape[1], inputs.shape[1]), torch.zeros(answers.shape[1]))
        if initial is None
        else (torch.tensor(initial.weight), torch.tensor(initial.bias))
    )
    head = (start[0].to(device), start[1].to(device))

    def choose_and_fit(l2: float | None) -> tuple[Tensor, Tensor]:
        if l2 is None and len(inputs) < _FEWEST_TO_CHOOSE:
            l2 = StudentSettings.l2
        if l2 is None:
            order = torch.from_numpy(numpy_generator(seed, "student held out").permutation(len(inputs))).to(device)
            rest, kept = order[: len(order) // _HELD_OUT], order[len(order) // _HELD_OUT :]
            l2, best, weight_and_bias = PRECISIONS[0], float("inf"), head
            for candidate in PRECISIONS:
                weight_and_bias = _minimise(
                    inputs[kept], answers[kept], fit_loss, candidate * scale, weight_and_bias, settings.iterations
                )
                weight, bias = weight_and_bias
                loss = float(held_out_loss(inputs[rest] @ weight.T + bias, answers[rest]))
                if not loss < best:
                    break
                l2, best = candidate, loss
        return _minimise(inputs, answers, fit_loss, l2 * scale, head, settings.iterations)

    # One worker: the sums of a fit are long, and several threads would round them differently from one.
    ((weight, bias),) = side_by_side(choose_and_fit, [settings.l2], device)
    return LinearHead(weight.cpu().numpy(), bias.cpu().numpy())


def _minimise(
    inputs: Tensor, targets: Tensor, loss: Loss, penalty: float, start: tuple[Tensor, Tensor], iterations: int
) -> tuple[Tensor, Tensor]:
    """Return weight [C, D] and bias [C] that minimise loss + penalty/2 ‖weight‖², by L-BFGS."""
    weight, bias = (part.clone().requires_grad_() for part in start)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        tolerance_grad=1e-7,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        scores = torch.addmm(bias, inputs, weight.T)
        # Per query, so that step lengths and tolerances mean the same for any number of queries.
        total = (loss(scores, targets) + 0.5 * penalty * weight.square().sum()) / len(inputs)
        total.backward()
        return total

    optimiser.step(closure)
    return weight.detach(), bias.detach()
