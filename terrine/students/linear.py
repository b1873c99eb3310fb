"""The linear student: one head on the frozen public backbone, from released labels or released noisy histograms.

The fit is maximum a posteriori under one of the likelihoods of `terrine.students.answers`, by full-batch L-BFGS, so
there is nothing to tune but the strength of the prior (`StudentSettings.l2`). A histogram costs the privacy of its
argmax and carries far more (docs/results.md).

The strength may be given, or chosen on released answers that were held out. Held-out answers are about synthetic
images, which ask less of a student than real ones do, so they favour a prior that is too strong for a large budget:
the default is a fixed value. All of this is post-processing of the release: it reads no private data and costs no
privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from terrine.classifiers import LinearHead, predict
from terrine.determinism.parallel import side_by_side
from terrine.determinism.randomness import numpy_generator
from terrine.errors import InputError, SettingError
from terrine.students.answers import Loss, ReleasedAnswers, histogram_answers, label_answers
from terrine.students.kind import Material, Progress, Trained

__all__ = ["Linear", "LinearHead", "StudentSettings", "fit", "fit_histograms", "fit_labels", "predict"]

PRECISIONS = (3.0, 1.0, 0.3, 0.1, 0.03)
"""Values of `l2` that are tried, in this order, when none is given: a score's prior deviation from 0.6 to 6."""
_HELD_OUT = 4  # one answer in so many decides
_FEWEST_TO_CHOOSE = 50


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
    transition: np.ndarray | None = None,
    device: torch.device | str = "cpu",
    initial: LinearHead | None = None,
) -> LinearHead:
    """Fit a head to released hard labels by penalised cross-entropy, smoothed or corrected.

    features: float32 [queries, features]; labels: int64 [queries], 0 .. classes - 1. transition: the matrix of
    `terrine.students.correction`, for forward correction. Other arguments and errors as in `fit`.
    """
    settings = settings or StudentSettings()
    answers = label_answers(labels, classes, smoothing=settings.label_smoothing, transition=transition)
    return fit(features, answers, settings, seed=seed, device=device, initial=initial)


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
    of standard deviation `sigma` votes. Other arguments and errors as in `fit`.
    """
    answers = histogram_answers(histograms, teachers, sigma)
    return fit(features, answers, settings, seed=seed, device=device, initial=initial)


def fit(
    features: np.ndarray,
    answers: ReleasedAnswers,
    settings: StudentSettings | None = None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    initial: LinearHead | None = None,
) -> LinearHead:
    """Fit a head to released answers, one row of features [queries, features] each.

    seed decides the folds on which the prior is chosen where it is not given. initial: where to start, zero by default;
    with a prior the optimum does not depend on it. Raises InputError when arrays do not fit together, are not finite or
    are empty.
    """
    settings = settings or StudentSettings()
    return _fit(
        features,
        answers.targets,
        answers.fit_loss,
        answers.held_out_loss,
        settings,
        seed,
        torch.device(device),
        initial,
    )


@dataclass(frozen=True)
class Linear:
    """The student kind `linear`: see the module's head. l2: as in `StudentSettings`."""

    name: ClassVar[str] = "linear"
    l2: float | None = 0.3

    def train(
        self,
        material: Material,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> Trained:
        """See `StudentKind.train`. The fit takes seconds, so nothing is kept in `work`."""
        settings = StudentSettings(l2=self.l2)
        head = fit(material.features(device)[material.rows], material.answers, settings, seed=seed, device=device)
        return Trained(head)


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
                loss = float(held_out_loss(inputs[rest] @ weight.T + bias, answers[rest]).sum())
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
        total = (loss(scores, targets).sum() + 0.5 * penalty * weight.square().sum()) / len(inputs)
        total.backward()
        return total

    optimiser.step(closure)
    return weight.detach(), bias.detach()
