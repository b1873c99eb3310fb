"""How far a student is from its teacher, and in which direction it should move: decoupled and classic distillation.

The decoupled loss (Liu et al. 2026, eq. 2) of a sample whose target class r is the teacher's most probable one is

    p_t,r log(p_t,r / p_s,r) + (1 − p_t,r) log((1 − p_t,r) / (1 − p_s,r))              the target part
    + λ Σ_{j≠r} p_t,j / (1 − p_t,j) · log(p_t,j (1 − p_s,j) / (p_s,j (1 − p_t,j)))     the others' part

The classic one is the cross-entropy −Σ_j p_t,j log p_s,j. What is annotated is the gradient with respect to the
student's output, and both have one in closed form, so that any number of clients is a few array operations.

As printed, the others' part has no minimum at the teacher's probabilities: its gradient is negative for every other
class. A student that follows it comes to rest at a softened copy of a confident teacher, and of a teacher that is not
confident it can turn the classes around (docs/dpsd.md).

Everything is float64; probabilities are kept `FLOOR` away from 0 and 1, where the logarithms have poles.
"""

import torch
from torch import Tensor

from terrine.transcription.settings import Distillation, GradientOf

FLOOR = 1e-6
"""Probabilities are used as if they were at least this, and at most one less this."""


def gradient(
    teacher: Tensor, student: Tensor, distillation: Distillation, balance: float = 8.0, of: GradientOf = "probabilities"
) -> Tensor:
    """Return the gradient of each sample's loss with respect to the student's output, float64 [..., B, classes].

    teacher: class probabilities [..., B, classes], of any number of clients; student: [B, classes]. balance: λ. of: the
    output that is meant: `probabilities`, as the paper writes, or the `scores` whose softmax they are.
    """
    p, s = _kept_inside(teacher), _kept_inside(student)
    if distillation == "classic":
        # Of the scores in its own form: p_s − p_t has no pole.
        if of == "scores":
            return s - p
        return -p / s
    own = -p / s + (1 - p) / (1 - s)
    others = -balance * p / (1 - p) / (s * (1 - s))
    found = torch.where(_target(teacher), own, others)
    return found if of == "probabilities" else s * (found - (s * found).sum(-1, keepdim=True))


def _target(teacher: Tensor) -> Tensor:
    """Where the teacher's most probable class is, bool [..., B, classes]; of equals the first."""
    return torch.nn.functional.one_hot(teacher.argmax(-1), teacher.shape[-1]).bool()


def _kept_inside(probabilities: Tensor) -> Tensor:
    return probabilities.double().clamp(FLOOR, 1 - FLOOR)
