"""Initial head and prior of students that are trained by gradient.

A class's score has prior variance 1 / l2 in every student: linear, or through a hidden layer whose rectified units have
prior mean square 1. The initial head is the linear student's, fitted to the answers on the frozen backbone.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from terrine.determinism.randomness import torch_generator
from terrine.errors import SettingError
from terrine.heads import Head, MLPHead
from terrine.students.answers import ReleasedAnswers
from terrine.students.linear import fit

_TINY = 1e-6


def starting_head(
    features: np.ndarray,
    answers: ReleasedAnswers,
    l2: float | None,
    hidden: int | None,
    *,
    seed: int,
    device: torch.device,
) -> Head:
    """Return the linear student's head on `features` [answers, D], carried through a hidden layer if one is wanted.

    The layer's other units are random and take no part yet. Raises SettingError for fewer than two units a class.
    """
    if hidden is not None and hidden < 2 * answers.classes:
        raise SettingError(
            f"student: hidden is {hidden}, fewer than two units for each of {answers.classes} classes. Give at least "
            f"{2 * answers.classes}, or null for a linear head."
        )
    if hidden is None:
        return fit(features, answers, l2, seed=seed, device=device)
    size = math.sqrt(2 / mean_square_norm(features))
    shape = (hidden, features.shape[1])
    weight = torch.randn(shape, generator=torch_generator(seed, "student hidden layer", *shape)).numpy() * size
    weight = weight.astype(np.float32)
    out = np.zeros((answers.classes, hidden), np.float32)
    # z = max(0, z) - max(0, -z): two units a class carry the linear student through the layer, each at its prior size.
    linear_scores = fit(features, answers, l2, seed=seed, device=device)
    carried = np.linalg.norm(linear_scores.weight, axis=1) / (size * math.sqrt(features.shape[1])) + _TINY
    for label, norm in enumerate(carried):
        for unit, sign in ((2 * label, 1.0), (2 * label + 1, -1.0)):
            weight[unit] = sign * linear_scores.weight[label] / norm
            out[label, unit] = sign * norm
    return MLPHead(weight, np.zeros(hidden, np.float32), out, linear_scores.bias)


def mean_square_norm(features: np.ndarray) -> float:
    """Return the mean of ‖x‖² over the rows of `features`, or 1 if they are all zero."""
    scale = float(np.einsum("qd,qd->", features, features, dtype=np.float64)) / len(features)
    return scale if scale > 0 else 1.0


def prior(head: nn.Module, l2: float, scale: float) -> Tensor:
    """Return minus the log prior of a head on features of mean square norm `scale`, up to a constant.

    Linear: ½ l2 · scale · ‖W‖². With a hidden layer of H units: ¼ scale ‖W1‖² + ½ l2 · H · ‖W2‖², so that a hidden unit
    has prior mean square 1 after its rectification, and a score prior variance 1 / l2, as without the layer.
    """
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if len(layers) == 1:
        return 0.5 * l2 * scale * layers[0].weight.square().sum()
    hidden, last = layers
    if l2 == 0:
        return torch.zeros((), device=last.weight.device)
    return 0.25 * scale * hidden.weight.square().sum() + 0.5 * l2 * last.in_features * last.weight.square().sum()
