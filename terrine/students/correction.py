"""Forward correction: how often a released label is not the one the teachers voted for (Patrini et al. 2017).

A released label is argmax(n + N(0, σ²I)). Where all N teachers vote for class i, n is N in place i and 0 elsewhere, and
with independent standard normal z the label is i exactly when z_i + N/σ exceeds the other m - 1 of them:

    P(i → i) = ∫ φ(z) Φ(z + N/σ)^(m-1) dz,      P(i → j) = (1 - P(i → i)) / (m - 1)  for j ≠ i, by symmetry.

The matrix depends on σ, N and m alone, which are published with the release, so it costs no privacy. It is the *least*
noise a label can have: teachers that disagree leave a smaller gap than N, and how often they disagree is private. A
student corrected by it gives its probabilities p the label's likelihood (Tᵀ p)_label: it may be certain of a class
although the labels it learns from can never be.
"""

import math

import numpy as np
from scipy.special import log_ndtr

from terrine.errors import SettingError

_REACH, _POINTS = 12.0, 4001  # the trapezium rule is exact to rounding for integrands that die off on both sides


def transition_matrix(sigma: float, teachers: int, classes: int) -> np.ndarray:
    """Return T, float64 [classes, classes]: T[i, j] is the chance that a unanimous vote for i is released as j.

    sigma: standard deviation of the noise on each count, in votes. Rows sum to one. Raises SettingError for sigma <= 0,
    no teacher, or fewer than two classes.
    """
    if not 0 < sigma < math.inf or teachers < 1 or classes < 2:
        raise SettingError(
            f"forward correction: noise of {sigma} votes, {teachers} teachers and {classes} classes; give a positive "
            "noise, at least one teacher and at least two classes."
        )
    z = np.linspace(-_REACH, _REACH, _POINTS)
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    right = np.exp(log_density + (classes - 1) * log_ndtr(z + teachers / sigma)).sum() * (z[1] - z[0])
    right = min(1.0, float(right))
    matrix = np.full((classes, classes), (1 - right) / (classes - 1))
    np.fill_diagonal(matrix, right)
    return matrix
