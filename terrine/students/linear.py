"""The linear student: one head on the frozen public backbone, from released labels or released noisy histograms.

The fit is maximum a posteriori under one of the likelihoods of `terrine.students.answers`, by full-batch L-BFGS, so
there is nothing to tune but the strength of the prior. A histogram costs the privacy of its argmax and carries far more
(docs/results.md).

The strength may be given, or chosen on released answers that were held out. Held-out answers are about synthetic
images, which ask less of a student than real ones do, so they favour a prior that is too strong for a large budget.
All of this is post-processing of the release: it reads no private data and costs no privacy.
"""

import numpy as np
import torch
from torch import Tensor

from terrine.classifiers import FindingsHead, LinearHead, OrderedHead
from terrine.determinism.parallel import side_by_side
from terrine.students.answers import Loss, ReleasedAnswers
from terrine.students.sampling import FEWEST_TO_CHOOSE, check_rows, deciding_quarter

L2 = 0.3
"""The prior's precision where nothing decides about it."""

PRECISIONS = (3.0, 1.0, 0.3, 0.1, 0.03)
"""Values of `l2` that are tried, in this order, when none is given: a score's prior deviation from 0.6 to 6."""
_MOST_STEPS = 100


def fit(
    features: np.ndarray,
    answers: ReleasedAnswers,
    l2: float | None = L2,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> LinearHead:
    """Fit a head to released answers, one row of features [queries, features] each.

    l2: precision of the Gaussian prior, in units that do not depend on the features' scale or number: a weight's prior
    variance is 1 / (l2 · mean ‖x‖²), so that a class's score has prior variance 1 / l2. 0 is no prior. None goes
    through `PRECISIONS` from the strongest on, for as long as a held-out quarter of the answers grows likelier. seed
    decides which quarter. Raises InputError when arrays do not fit together, are not finite or are empty.
    """
    targets, device = answers.targets, torch.device(device)
    check_rows(features, targets)
    features = np.ascontiguousarray(features, np.float32)
    inputs = torch.from_numpy(features).to(device)
    wanted = torch.from_numpy(targets).to(device)
    scale = float(np.einsum("qd,qd->", features, features, dtype=np.float64)) / len(features)
    head = (inputs.new_zeros(answers.classes, inputs.shape[1]), inputs.new_zeros(answers.classes))

    def choose_and_fit(l2: float | None) -> tuple[Tensor, Tensor]:
        if l2 is None and len(inputs) < FEWEST_TO_CHOOSE:
            l2 = L2
        if l2 is None:
            rest, kept = (torch.from_numpy(part).to(device) for part in deciding_quarter(len(inputs), seed))
            l2, best, weight_and_bias = PRECISIONS[0], float("inf"), head
            for candidate in PRECISIONS:
                weight_and_bias = _minimise(
                    inputs[kept], wanted[kept], answers.fit_loss, candidate * scale, weight_and_bias
                )
                weight, bias = weight_and_bias
                loss = float(answers.held_out_loss(inputs[rest] @ weight.T + bias, wanted[rest]).sum())
                if not loss < best:
                    break
                l2, best = candidate, loss
        return _minimise(inputs, wanted, answers.fit_loss, l2 * scale, head)

    # One worker: the sums of a fit are long, and several threads would round them differently from one.
    ((weight, bias),) = side_by_side(choose_and_fit, [l2], device)
    kind = FindingsHead if targets.ndim == 3 else OrderedHead if answers.ordered else LinearHead
    return kind(weight.cpu().numpy(), bias.cpu().numpy())


def _minimise(
    inputs: Tensor, targets: Tensor, loss: Loss, penalty: float, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return weight [C, D] and bias [C] that minimise loss + penalty/2 ‖weight‖², by L-BFGS."""
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
