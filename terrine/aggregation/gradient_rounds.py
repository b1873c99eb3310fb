"""A course of rounds: what records add up in each, with which noise, what that costs, and the head that follows.

The first round releases moments, from which ridge regression has a head. Each further one releases the sum of all
records' clipped gradients at the head that the rounds before it made public, and takes a step; by then vectors are seen
through a lens, which whitens them by the released moments. `moments` is the course without further rounds. Whether one
process walks it or parties do (`terrine.aggregation.fixed_point`) changes no bit.
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
"""The largest squared distance of (S, M) where a unit is exchanged: `RoundSchedule`."""
ALONE = 2.0
"""The same where one is added or removed."""
BALANCE_POWER = 0.25
"""Which power of a class's share its targets are divided by (`class_balanced_targets`)."""
_PENALTY = 0.5
_START = 5.0
"""From scores near 0 and 1, which least squares gives, to those of a softmax that gradients start at."""
_MOMENTUM = 0.8
_AVERAGED = 0.25  # of the iterates, the last ones


@dataclass(frozen=True)
class RoundSchedule:
    """What is released of all records, round by round.

    **Round 0**: S = Σ x xᵀ and M = Σ x yᵀ over units with noise, [length, length] (symmetric) and [length, classes].
    Of S the upper triangle is released, with noise σ on the diagonal and σ/√2 off it: as if off-diagonal entries were
    taken times √2, which makes of S a vector whose length is its Frobenius norm. M has noise σ.

    *What one unit moves.* Let a record's vector be x and its label's y, and x', y' what is exchanged for it, with
    r = ‖x‖ ≤ 1, s = ‖x'‖ ≤ 1 and p = x·x'. Added or removed it moves (S, M) by r⁴ + r² ≤ 2, squared. Exchanged:

        ‖x xᵀ − x'x'ᵀ‖² = r⁴ + s⁴ − 2p²,   ‖x yᵀ − x'y'ᵀ‖² = r² + s² − 2p for equal labels, r² + s² for others,

    at most 4 − 2p² − 2p ≤ 4.5 together, reached by vectors of length 1 of one label with p = −1/2. Where a record may
    have several findings, y and y' are of length 1 and q = y·y' is anything from −1 to 1: the second distance is
    r² + s² − 2pq, and 4 − 2p² + 2|p| ≤ 4.5 again bounds both, reached there or by opposite labels with p = 1/2. So it
    is one price, and added or removed such a record moves r⁴ + r² ≤ 2 as well. A unit of several
    records moves the mean of what they would, and means are no farther apart. So both cost μ² = 4.5/σ² at most, and
    2/σ² among those who only come and go.

    **Every further round**: G = Σ x eᵀ (`Records.gradients`) at a head, with noise on each coordinate, where vectors
    are seen through a lens (`Records.through`). A record's gradient has a norm of `clip` at most, whatever head and
    lens are: so added or removed it moves G by `clip`, and exchanged by twice that. Where parties ask at heads and
    through lenses of their own choice, the price is the same.

    Attributes:
        sigma: Noise on label moments.
        rounds: Of gradients, after that of moments.
        clip: Largest length of a record's gradient.
        learning_rate: Step, in units of the one that ridge regression would take at once.
        sigma_gradients: Noise on each coordinate of a gradient.
        findings: Whether labels are of several findings (`Records`): scores are then logistic ones, each by itself.
    """

    sigma: float
    rounds: int = 0
    clip: float = 0.0
    learning_rate: float = 0.0
    sigma_gradients: float = 0.0
    findings: bool = False

    @property
    def passes(self) -> int:
        """How often records are summed."""
        return 1 + self.rounds

    @property
    def event(self) -> Event:
        """What all rounds cost together, whether a unit is exchanged, added or removed."""
        return self._event(JOINT, 2 * self.clip)

    @property
    def event_added(self) -> Event:
        """What they cost where a unit is added or removed, and none exchanged: less."""
        return self._event(ALONE, self.clip)

    def _event(self, square: float, gradient: float) -> Event:
        moments = GaussianEvent(sensitivity=math.sqrt(square), sigma=self.sigma)
        if not self.rounds:
            return moments
        return compose(moments, RepeatedEvent(GaussianEvent(gradient, self.sigma_gradients), self.rounds))

    def noise(self, length: int, classes: int, number: int) -> list[tuple[int, float]]:
        """How many numbers of a round have which noise, one after the other: S's diagonal, what is above it, M; G."""
        if number:
            return [(length * classes, self.sigma_gradients)]
        above = (length * (length - 1) // 2, self.sigma / math.sqrt(2))
        return [(length, self.sigma), above, (length * classes, self.sigma)]

    def asked(self, length: int, classes: int, number: int) -> int:
        """How many numbers say at what a round is asked (`NoisyGradientDescent.question`)."""
        return length * classes + length * (length + 1) // 2 if number else 0

    def summing(self, records: Records) -> Callable[[Floats | None], Steps]:
        """Return what adds records up in a round, as one row of whole steps: moments, or gradients at a question."""
        lens, seen = np.empty(0), records

        def sums(question: Floats | None) -> Steps:
            nonlocal lens, seen
            if question is None:
                return moments_in_steps(records)
            head, own = self.read_question(question, records.length)
            if not np.array_equal(own, lens):
                lens, seen = own, records.through(own)
            return seen.gradients(head, self.clip).ravel()

        return sums

    def read_question(self, question: Floats, length: int) -> tuple[Floats, Floats]:
        """Return the head [length, classes] and the lens [length, length] of a question."""
        head, lens = np.split(question, [len(question) - length * (length + 1) // 2])
        return head.reshape(length, -1), _symmetric(lens, length)

    def descent(self, length: int) -> "NoisyGradientDescent":
        """Begin the course."""
        return NoisyGradientDescent(length, self.sigma, self.learning_rate, findings=self.findings)

    def ends(self, released: Mapping[str, NDArray[Any]]) -> Floats:
        """Return the head that the course ends at, [length, classes]: of the arrays that were released, by name."""
        descent = self.descent(len(released["labels"]))
        descent.take(flatten_moments(released["second"], released["labels"]))
        for gradient in released.get("gradients", ()):
            descent.take(gradient)
        return descent.end

    def arrays(self, released: Sequence[Floats], length: int) -> dict[str, NDArray[np.float64]]:
        """Return by name what the rounds released: `second`, `labels`, and `gradients` [rounds, length, classes]."""
        second, labels = unflatten_moments(released[0], length)
        arrays = {"second": second, "labels": labels}
        if self.rounds:
            arrays["gradients"] = np.stack([numbers.reshape(labels.shape) for numbers in released[1:]])
        return arrays


class NoisyGradientDescent:
    """The heads that follow from what was released, one after the other: ridge, then momentum steps.

    Where no gradients follow, ridge of three classes or more is on targets that level them (`class_balanced_targets`).

    The noise of a gradient is the same in all directions, and what records say is not: most of the length of their
    vectors may lie in a few that tell nothing. So for gradients vectors are seen through A = (S + λI)^(-1/2) / s, from
    the released S, and brought back to length 1: there all directions that stand out of the noise say as much, curve
    the loss as much, and plain steps are enough. s² = Σ v/(v + λ) / Σ v over the eigenvalues v of S keeps the usual
    length; a step of s² is the one that ridge regression would take at once.

    Args:
        length: Coordinates of a vector.
        sigma: Noise on label moments.
        findings: See `RoundSchedule`.
    """

    def __init__(self, length: int, sigma: float, rate: float, *, findings: bool = False) -> None:
        self._length, self._sigma, self._rate, self._findings = length, sigma, rate, findings
        self._heads: list[Floats] = []

    @property
    def question(self) -> Floats | None:
        """What the next gradients are asked at, in one row of numbers: the head, and the lens's upper triangle, its
        diagonal first. None before moments were released."""
        return np.concatenate([self._heads[-1].ravel(), _triangle(self._lens)]) if self._heads else None

    @property
    def end(self) -> Floats:
        """The head on vectors that the course ends at: the mean of the last ones that steps led to, or ridge."""
        if len(self._heads) == 1:
            return self._ridge
        last = max(1, round(_AVERAGED * (len(self._heads) - 1)))
        return np.asarray(self._lens @ np.mean(self._heads[-last:], axis=0))

    def take(self, numbers: Floats) -> None:
        """Go on with what the next round released, in the order of `RoundSchedule.noise`."""
        if not self._heads:
            second, labels = unflatten_moments(numbers, self._length)
            values, vectors = np.linalg.eigh(second)
            values = without_noise(values, self._sigma)
            # The noise's own largest eigenvalue is about √2 σ √d.
            penalty = _PENALTY * self._sigma * math.sqrt(len(second))
            inverse = (vectors / (values + penalty)) @ vectors.T
            plain = ridge(inverse, labels, findings=self._findings)
            if self._findings:
                self._rate *= math.sqrt(labels.shape[1])  # the gradient is that of a loss 1/√K as large
            classes = 2 if self._findings else labels.shape[1]
            level = (
                ridge(inverse, class_balanced_targets(labels, shares(second, labels, self._sigma)))
                if classes > 2
                else plain
            )
            self._ridge = sharpness(classes) * level
            # Where noise left no eigenvalue above 0, λ is all there is.
            square = float(np.average(1 / (values + penalty), weights=values + 1e-9 * penalty))
            root = np.sqrt((values + penalty) * square)
            self._lens, self._step = np.asarray((vectors / root) @ vectors.T), self._rate * square
            self._heads, self._velocity = [(vectors * root) @ (vectors.T @ (_START * plain))], np.zeros_like(labels)
            return
        self._velocity = _MOMENTUM * self._velocity + numbers.reshape(self._velocity.shape)
        self._heads.append(self._heads[-1] - self._step * self._velocity)


def moments_sigma(mu: float) -> float:
    """Return the noise on S and M at which both together cost μ; see `RoundSchedule`."""
    return math.sqrt(JOINT) / mu


def moments_in_steps(records: Records) -> Steps:
    """Return S and M in whole steps as one row of numbers, in the order of `RoundSchedule.noise`."""
    return flatten_moments(records.second_moments(), records.label_moments())


def flatten_moments(second: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Return S and M as one row of numbers; `unflatten_moments` reads them off it."""
    return np.concatenate([_triangle(second), labels.ravel()])


def unflatten_moments(numbers: Floats, length: int) -> tuple[Floats, Floats]:
    """Return S and M, whose numbers are given in the order of `RoundSchedule.noise`."""
    upper, labels = np.split(numbers, [length * (length + 1) // 2])
    return _symmetric(upper, length), labels.reshape(length, -1)


def ridge(inverse: Floats, labels: Floats, *, findings: bool = False) -> Floats:
    """Return the head [length, classes] of released moments by ridge regression, (S + λI)^(-1) given.

    Of K findings each is regressed by itself on 1 and −1, the released coordinates times √K.
    """
    centred = labels * math.sqrt(labels.shape[1]) if findings else labels - labels.mean(axis=1, keepdims=True)
    return np.asarray(inverse @ centred)


def sharpness(classes: int) -> float:
    """Return what the scores of a regression on 0 and 1 are taken times, √(10 K), to be those of a softmax.

    Of more classes each is rarer, and its scores closer to one another. The best factor by what held-out records come
    out as grows as √K from data to data, for two classes and for ten (docs/sums.md). Of several
    findings each is there or not: two classes.
    """
    return math.sqrt(10 * classes)


def class_balanced_targets(labels: Floats, share: Floats) -> Floats:
    """Return label moments of targets (K π_c)^(-1/4) in the place of 1 for a record of class c.

    The scores of a regression on 0 and 1 are large where a class is frequent, and a rare one's are hardly ever the
    largest. Targets of one variance, π_c^(-1/2) (optimal scoring: Hastie, Tibshirani & Buja 1994), find rare classes at
    the cost of frequent ones. This is between the two, and is right more often, of all records and of those of rare
    classes (docs/sums.md). Not so of two classes: there one score is what the other leaves, and none
    hides the other. Nor do gradients need it: scores of a softmax are logarithms of shares as they are.
    """
    return labels / (len(share) * share) ** BALANCE_POWER


def shares(second: Floats, labels: Floats, sigma: float) -> Floats:
    """Return the classes' shares [classes], all above 0, as far as released moments tell: uniform ones where they do
    not.

    The last coordinate of vectors is nearly constant (`Whitening`), so its label moments count records. Their noise
    spreads counts of equal classes, too: they are moved to their mean by as much (James and Stein's estimate).
    """
    classes, total = labels.shape[1], float(labels[-1].sum())
    if not min(total, second[-1, -1]) > 0:
        return np.full(classes, 1 / classes)
    constant = float(second[-1, -1]) / total
    counts, noise = labels[-1] / constant, sigma / constant
    apart = counts - counts.mean()
    told = max(0.0, 1 - (classes - 1) * noise**2 / max(float(apart @ apart), 1e-12))
    counts = np.maximum(counts.mean() + told * apart, max(noise, 1.0))
    return np.asarray(counts / counts.sum())


def without_noise(values: Floats, sigma: float) -> Floats:
    """Return vᵀ S v for each eigenvector v of S + noise, in expectation; values: its eigenvalues, ascending [d].

    Noise spreads eigenvalues, and lifts large ones: v leans towards where the noise points upwards. Of a symmetric
    matrix with independent noise of variance σ² on the diagonal and σ²/2 beside it, as moments are released, what is
    left of an eigenvalue w is, for large d,

        w − d σ² Re g(w),    g(z) = 1/d Σ 1 / (z − w_j),

    whatever S is (Bun et al. 2016, for Gaussian noise; where noise is small, it is what perturbation theory says for
    any d). g is taken at a distance of σ from the real line, about √d/3 times that of the noise's own eigenvalues from
    one another: nearer, it says where each of them fell by chance. What falls below zero is taken for zero.
    """
    apart = values[:, None] - values
    pull = (apart / (apart**2 + sigma**2)).sum(axis=1)
    return np.asarray(np.maximum(values - sigma**2 * pull, 0))


def _triangle(matrix: NDArray[Any]) -> NDArray[Any]:
    """A symmetric matrix as one row of numbers: its diagonal, and what is above it."""
    return np.concatenate([np.diagonal(matrix), matrix[np.triu_indices(len(matrix), 1)]])


def _symmetric(numbers: Floats, length: int) -> Floats:
    matrix = np.diag(numbers[:length])
    above = np.triu_indices(length, 1)
    matrix[above] = matrix.T[above] = numbers[length:]
    return matrix
