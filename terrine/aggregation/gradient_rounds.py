"""Rounds of sums over records: their noise and cost, and the head computed from them.

The first round releases moments, from which ridge regression gives a head. Each further round releases the sum of all
records' clipped gradients at the head that earlier rounds made public, and takes a step. For gradients, vectors are
multiplied by a lens, a matrix that whitens them by the released moments. The mechanism `moments` has no further rounds.
One process and parties (`terrine.aggregation.fixed_point`) compute the same bits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.records import Floats, Records, Steps
from terrine.privacy.accounting.events import Event, GaussianEvent, RepeatedEvent, compose

JOINT = 4.5
"""Maximum squared distance of (S, M) if a unit is replaced (see `RoundSchedule`)."""
ALONE = 2.0
"""Event of all rounds if a unit is added or removed."""
BALANCE_POWER = 0.25
"""Exponent of a class's share of the records in `class_balanced_targets`."""
_PENALTY = 0.5
_START = 5.0
"""Factor from least-squares scores, near 0 and 1, to the softmax scores from which gradients start."""
_MOMENTUM = 0.8
_AVERAGED = 0.25  # share of the iterates that are averaged: the last ones


@dataclass(frozen=True)
class RoundSchedule:
    """Released sums of each round, their noise and their cost.

    **Round 0**: S = Σ x xᵀ and M = Σ x yᵀ over units with noise, [length, length] (symmetric) and [length, classes].
    The upper triangle of S is released, with noise σ on the diagonal and σ/√2 off it. This equals noise σ after scaling
    off-diagonal entries by √2, which makes S a vector as long as its Frobenius norm. Label moments M have noise σ.

    *Sensitivity.* Let a record's vector be x with label vector y, and x', y' their replacement, with r = ‖x‖ ≤ 1,
    s = ‖x'‖ ≤ 1 and p = x·x'. Adding or removing it moves (S, M) by a squared distance of r⁴ + r² ≤ 2. Replacing it
    moves S and M by the squared distances

        ‖x xᵀ − x'x'ᵀ‖² = r⁴ + s⁴ − 2p²,   ‖x yᵀ − x'y'ᵀ‖² = r² + s² − 2p for equal labels, r² + s² for others,

    at most 4 − 2p² − 2p ≤ 4.5 together, attained by vectors of length 1 with one label and p = −1/2. With several
    findings, y and y' have length 1 and q = y·y' is between −1 and 1: the second distance is r² + s² − 2pq, and
    4 − 2p² + 2|p| ≤ 4.5 bounds both together, attained as above or by opposite labels with p = 1/2. So the price is the
    same, and adding or removing still moves (S, M) by r⁴ + r² ≤ 2. A unit of several records contributes the mean over
    them, and means are no farther apart. Moments therefore cost at most μ² = 4.5/σ², or 2/σ² under add/remove.

    **Every further round**: G = Σ x eᵀ (`Records.gradients`) at a head, with noise on each coordinate, after applying a
    lens to the vectors (`Records.apply_lens`). A record's gradient has norm at most `clip` for every head and lens, so
    adding or removing it moves G by at most `clip`, and replacing it by at most twice that. The price is therefore the
    same even if parties receive arbitrary heads and lenses.

    Attributes:
        sigma: Standard deviation of the noise on label moments.
        rounds: Number of gradient rounds after the moments.
        clip: Maximum norm of a record's gradient.
        learning_rate: Step size, relative to the exact least-squares step.
        sigma_gradients: Standard deviation of the noise on each coordinate of a gradient.
        findings: Whether labels consist of several findings (`Records`), with one logistic score each.
    """

    sigma: float
    rounds: int = 0
    clip: float = 0.0
    learning_rate: float = 0.0
    sigma_gradients: float = 0.0
    findings: bool = False

    @property
    def passes(self) -> int:
        """Number of rounds, each of which sums over all records."""
        return 1 + self.rounds

    @property
    def event(self) -> Event:
        """Total cost if a unit is replaced, added or removed."""
        return self._event(JOINT, 2 * self.clip)

    @property
    def event_added(self) -> Event:
        """Total cost under add/remove, which is lower."""
        return self._event(ALONE, self.clip)

    def _event(self, square: float, gradient: float) -> Event:
        moments = GaussianEvent(sensitivity=math.sqrt(square), sigma=self.sigma)
        if not self.rounds:
            return moments
        return compose(moments, RepeatedEvent(GaussianEvent(gradient, self.sigma_gradients), self.rounds))

    def noise(self, length: int, classes: int, number: int) -> list[tuple[int, float]]:
        """Return (count, standard deviation) of a round's noise in order: S's diagonal, its upper triangle, M; or G."""
        if number:
            return [(length * classes, self.sigma_gradients)]
        above = (length * (length - 1) // 2, self.sigma / math.sqrt(2))
        return [(length, self.sigma), above, (length * classes, self.sigma)]

    def broadcast_size(self, length: int, classes: int, number: int) -> int:
        """Return the number of values broadcast for a round (`NoisyGradientDescent.broadcast`)."""
        return length * classes + length * (length + 1) // 2 if number else 0

    def summing(self, records: Records) -> Callable[[Floats | None], Steps]:
        """Return a function from a round's broadcast to the records' sums in whole steps: moments, or gradients."""
        lens, seen = np.empty(0), records

        def sums(broadcast: Floats | None) -> Steps:
            nonlocal lens, seen
            if broadcast is None:
                return moments_in_steps(records)
            head, own = self.split_broadcast(broadcast, records.length)
            if not np.array_equal(own, lens):
                lens, seen = own, records.apply_lens(own)
            return seen.gradients(head, self.clip).ravel()

        return sums

    def split_broadcast(self, broadcast: Floats, length: int) -> tuple[Floats, Floats]:
        """Return the head [length, classes] and the lens [length, length] of a broadcast."""
        head, lens = np.split(broadcast, [len(broadcast) - length * (length + 1) // 2])
        return head.reshape(length, -1), _symmetric(lens, length)

    def descent(self, length: int) -> "NoisyGradientDescent":
        """Return the descent before the first round, for vectors of this length."""
        return NoisyGradientDescent(length, self.sigma, self.learning_rate, findings=self.findings)

    def final_head(self, released: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the final head, [length, classes], given the released arrays by name."""
        descent = self.descent(len(released["labels"]))
        descent.receive(flatten_moments(released["second"], released["labels"]))
        for gradient in released.get("gradients", ()):
            descent.receive(gradient)
        return descent.final_head

    def arrays(self, released: Sequence[Floats], length: int) -> dict[str, NDArray[np.float64]]:
        """Return the releases of all rounds by name: `second`, `labels`, and `gradients` [rounds, length, classes]."""
        second, labels = unflatten_moments(released[0], length)
        arrays = {"second": second, "labels": labels}
        if self.rounds:
            arrays["gradients"] = np.stack([numbers.reshape(labels.shape) for numbers in released[1:]])
        return arrays


class NoisyGradientDescent:
    """Sequence of heads computed from the releases: ridge, then momentum steps.

    Without gradients, ridge regression on three or more classes uses balanced targets (`class_balanced_targets`).

    A gradient's noise is isotropic, but most of the length of vectors may be in a few uninformative directions. For
    gradients, vectors are therefore multiplied by A = (S + λI)^(-1/2) / s, from the released S, and scaled back to
    length 1: all directions above the noise then have equal weight and curvature, and plain steps suffice. Here
    s² = Σ v/(v + λ) / Σ v over the eigenvalues v of S preserves the typical length; s² is the least-squares step.

    Args:
        length: Number of coordinates of a vector.
        sigma: Standard deviation of the noise on label moments.
        findings: See `RoundSchedule`.
    """

    def __init__(self, length: int, sigma: float, rate: float, *, findings: bool = False) -> None:
        self._length, self._sigma, self._rate, self._findings = length, sigma, rate, findings
        self._heads: list[Floats] = []

    @property
    def broadcast(self) -> Floats | None:
        """Input of the next round as one array: the head, and the lens as in `_triangle`; None before the moments."""
        return np.concatenate([self._heads[-1].ravel(), _triangle(self._lens)]) if self._heads else None

    @property
    def final_head(self) -> Floats:
        """The final head on vectors: the mean of the last iterates, or ridge."""
        if len(self._heads) == 1:
            return self._ridge
        last = max(1, round(_AVERAGED * (len(self._heads) - 1)))
        return np.asarray(self._lens @ np.mean(self._heads[-last:], axis=0))

    def receive(self, numbers: Floats) -> None:
        """Process the next round's release, in the order of `RoundSchedule.noise`."""
        if not self._heads:
            second, labels = unflatten_moments(numbers, self._length)
            values, vectors = np.linalg.eigh(second)
            values = without_noise(values, self._sigma)
            # The noise's own largest eigenvalue is about √2 σ √d.
            penalty = _PENALTY * self._sigma * math.sqrt(len(second))
            inverse = (vectors / (values + penalty)) @ vectors.T
            plain = ridge(inverse, labels, findings=self._findings)
            if self._findings:
                self._rate *= math.sqrt(labels.shape[1])  # the gradient belongs to the loss divided by √K
            classes = 2 if self._findings else labels.shape[1]
            level = (
                ridge(inverse, class_balanced_targets(labels, shares(second, labels, self._sigma)))
                if classes > 2
                else plain
            )
            self._ridge = sharpness(classes) * level
            # If no eigenvalue exceeds the noise, S + λI reduces to λI.
            square = float(np.average(1 / (values + penalty), weights=values + 1e-9 * penalty))
            root = np.sqrt((values + penalty) * square)
            self._lens, self._step = np.asarray((vectors / root) @ vectors.T), self._rate * square
            self._heads, self._velocity = [(vectors * root) @ (vectors.T @ (_START * plain))], np.zeros_like(labels)
            return
        self._velocity = _MOMENTUM * self._velocity + numbers.reshape(self._velocity.shape)
        self._heads.append(self._heads[-1] - self._step * self._velocity)


def moments_sigma(mu: float) -> float:
    """Return the noise on S and M for which both together cost μ; see `RoundSchedule`."""
    return math.sqrt(JOINT) / mu


def moments_in_steps(records: Records) -> Steps:
    """Return S and M in whole steps as one array, in the order of `RoundSchedule.noise`."""
    return flatten_moments(records.second_moments(), records.label_moments())


def flatten_moments(second: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return S and M as one array in the order of `RoundSchedule.noise`; `unflatten_moments` is the inverse."""
    return np.concatenate([_triangle(second), labels.ravel()])


def unflatten_moments(numbers: Floats, length: int) -> tuple[Floats, Floats]:
    """Return S and M from one array in the order of `RoundSchedule.noise`."""
    upper, labels = np.split(numbers, [length * (length + 1) // 2])
    return _symmetric(upper, length), labels.reshape(length, -1)


def ridge(inverse: Floats, labels: Floats, *, findings: bool = False) -> Floats:
    """Return the head [length, classes] of ridge regression on released moments, given (S + λI)^(-1).

    Each of K findings is regressed on targets 1 and −1, i.e. the released label coordinates times √K.
    """
    centred = labels * math.sqrt(labels.shape[1]) if findings else labels - labels.mean(axis=1, keepdims=True)
    return np.asarray(inverse @ centred)


def sharpness(classes: int) -> float:
    """Return the factor √(10 K) that turns scores of a regression on 0 and 1 into those of a softmax.

    With more classes, each class is rarer and scores are closer together. The factor with the best held-out likelihood
    grows as √K on all data tried, from two to ten classes (docs/sums.md). A finding counts as two classes.
    """
    return math.sqrt(10 * classes)


def class_balanced_targets(labels: Floats, share: Floats) -> Floats:
    """Return label moments for targets (K π_c)^(-1/4) instead of 1 for a record of class c with share π_c.

    A regression on 0 and 1 gives frequent classes large scores, so a rare class's score is hardly ever the largest.
    Targets of equal variance, π_c^(-1/2) (optimal scoring: Hastie, Tibshirani & Buja 1994), find rare classes at the
    cost of frequent ones. The power 1/4 is between the two, and more accurate both overall and for rare classes
    (docs/sums.md). It does not help with two classes, where one score determines the other, nor with gradients, since
    softmax scores are logarithms of shares.
    """
    return labels / (len(share) * share) ** BALANCE_POWER


def shares(second: Floats, labels: Floats, sigma: float) -> Floats:
    """Return an estimate of the classes' shares [classes], all positive, from released moments.

    The last coordinate of vectors is nearly constant (`Whitening`), so its label moments count records per class. Noise
    makes even equal counts differ, so they are shrunk to their mean (James-Stein); without signal, shares are equal.
    """
    classes, total = labels.shape[1], float(labels[-1].sum())
    if not min(total, second[-1, -1]) > 0:
        return np.full(classes, 1 / classes)
    constant = float(second[-1, -1]) / total
    counts, noise = labels[-1] / constant, sigma / constant
    apart = counts - counts.mean()
    signal = max(0.0, 1 - (classes - 1) * noise**2 / max(float(apart @ apart), 1e-12))
    counts = np.maximum(counts.mean() + signal * apart, max(noise, 1.0))
    return np.asarray(counts / counts.sum())


def without_noise(values: Floats, sigma: float) -> Floats:
    """Return the expectation of vᵀ S v for each eigenvector v of S + noise, given its eigenvalues, ascending [d].

    Noise spreads eigenvalues and raises large ones, since v aligns with the noise. For a symmetric matrix with
    independent noise of variance σ² on the diagonal and σ²/2 off it, as in released moments, an eigenvalue w becomes

        w − d σ² Re g(w),    g(z) = 1/d Σ 1 / (z − w_j),

    for large d and every S (Bun et al. 2016, for Gaussian noise; for small noise, perturbation theory gives it for any
    d). g is evaluated at a distance of σ from the real line, about √d/3 spacings of the noise's own eigenvalues; closer
    to it, g would depend on their random positions. Negative eigenvalues become zero.
    """
    apart = values[:, None] - values
    pull = (apart / (apart**2 + sigma**2)).sum(axis=1)
    return np.asarray(np.maximum(values - sigma**2 * pull, 0))


def _triangle(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a symmetric matrix as one array: its diagonal, then its upper triangle."""
    return np.concatenate([np.diagonal(matrix), matrix[np.triu_indices(len(matrix), 1)]])


def _symmetric(numbers: Floats, length: int) -> Floats:
    matrix = np.diag(numbers[:length])
    above = np.triu_indices(length, 1)
    matrix[above] = matrix.T[above] = numbers[length:]
    return matrix
