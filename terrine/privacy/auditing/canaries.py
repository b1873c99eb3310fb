"""Canaries: records designed to be detectable, and attacks that detect them in a release.

A canary's teacher has only two records. Its *companion* is always present: one of the queries, with one label. The
*canary* has a different label, and a fair coin decides which of two images it is: the companion's image slightly
brighter at a few pixels and darker at others, or the reverse. The teacher thus learns to separate two points, and the
coin decides on which side of the companion each label is. Nearly all its votes depend on the coin, which is the worst
case that a release is charged for. Each canary affects a different set of queries, so that a single run can
distinguish many of them.

An attacker who knows the data can train both versions of each canary's teacher. Its coin z then moves the histograms H
along a known direction, d = votes with "one" − votes with "other",

    H = middle + Dᵀ(z − ½) + noise,

and the coins are estimated jointly because many canaries overlap: linear least squares with the mean and variance of
the coins as prior, x = (D W Dᵀ + 4 I)⁻¹ D g with W = I/σ² and g = (released − middle)/σ². If only labels are released,
g and W are the gradient and curvature of their log-likelihood, which is modelled as that of a softmax of the counts:
noise of a Gumbel distribution. This approximation suffices, since the bound holds for any guesses.

If records are summed instead of voted on, a canary is a row of features instead of an image, and its coin z decides
which of two rows is summed (`terrine.aggregation.exchange`). Directions are then sums of outer products, and coins are
estimated in the same way (`guess_from_sums`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from terrine.errors import InputError, SettingError
from terrine.privacy.accounting.gaussian import epsilon_of
from terrine.privacy.auditing.audit import Charge, epsilon_of_guesses, mu_of_guesses

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coins = NDArray[np.bool_]

_PIXELS = 4
# Shares of the coins to try guessing, and number of simulated releases to compare them.
_SHARES, _REHEARSALS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125), 31
_BLOCK = 4096
# A Gumbel distribution of this scale has standard deviation 1.
_GUMBEL = np.sqrt(6) / np.pi


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries and their companions, one pair for each of M teachers.

    Attributes:
        companions: The other record of each teacher [M, ...].
        one: The canaries if their coin is "one" [M, ...].
        other: The canaries if their coin is "other" [M, ...].
        companion_labels: int64 [M].
        labels: Labels of the canaries, int64 [M], each different from its companion's.
    """

    companions: NDArray[np.generic]
    one: NDArray[np.generic]
    other: NDArray[np.generic]
    companion_labels: Integers
    labels: Integers


def make_canaries(
    queries: NDArray[np.generic], count: int, classes: int, contrast: float, generator: np.random.Generator
) -> Canaries:
    """Return canaries for `count` teachers.

    Args:
        queries: The teachers' queries: uint8 [Q, ...] images, or float32 [Q, columns] rows.
        count: Number of canaries, one per teacher.
        classes: Number of classes, at least two.
        contrast: Difference between a canary and its companion at each changed place, in grey levels, or for rows in
            hundredths of the column's standard deviation. A linear teacher learns the smallest difference; a network
            may need a large one.
        generator: Draws companions, pixels, signs and labels.
    """
    flat = queries.reshape(len(queries), -1)
    images, spread = flat.dtype == np.uint8, flat.std(axis=0, dtype=np.float64)
    steps = np.full(len(spread), float(contrast)) if images else contrast / 100 * spread
    companions = flat[generator.integers(len(flat), size=count)].astype(np.float64)
    if images:
        companions = np.clip(companions, contrast, 255 - contrast)
    # Change only places that vary across queries; a difference at a constant place would separate no queries.
    lively = np.argsort(-spread, kind="stable")[: max(1, len(spread) // 2)] if images else np.flatnonzero(spread)
    signs = np.zeros_like(companions)
    for own in signs:
        chosen = generator.choice(lively, min(_PIXELS, len(lively)), replace=False)
        own[chosen] = generator.choice((-1.0, 1.0), len(chosen))
    first = generator.integers(classes, size=count)
    second = (first + generator.integers(1, classes, size=count)) % classes
    together, one, other = (
        values.astype(flat.dtype).reshape(-1, *queries.shape[1:])
        for values in (companions, companions + steps * signs, companions - steps * signs)
    )
    return Canaries(together, one, other, first, second)


@dataclass(frozen=True, eq=False)
class Directions:
    """Direction in which each canary's coin moves the histograms: a function of the data, but not of the coins.

    Attributes:
        one: Votes of each canary's teacher with "one", integers [queries, M].
        other: Votes of each canary's teacher with "other", integers [queries, M].
        rest: Histograms of the votes of all other teachers, int64 [queries, classes].
    """

    one: NDArray[np.integer]
    other: NDArray[np.integer]
    rest: Integers

    def __post_init__(self) -> None:
        if self.one.shape != self.other.shape or self.one.ndim != 2 or len(self.rest) != len(self.one):
            raise InputError(
                f"Votes with one and the other content must be [queries, canaries] and the rest [queries, classes], "
                f"got {self.one.shape}, {self.other.shape} and {self.rest.shape}."
            )

    @property
    def canaries(self) -> int:
        """Number of canaries M."""
        return int(self.one.shape[1])

    @property
    def moved(self) -> Floats:
        """Share of the teacher's votes that each canary moves [M]; the charge assumes 1."""
        return np.asarray(np.mean(self.one != self.other, axis=0))

    @cached_property
    def middle(self) -> Floats:
        """Mean of the histograms over fair coins, float64 [queries, classes]."""
        counts = self.rest.astype(np.float64)
        for votes in (self.one, self.other):
            np.add.at(counts, (np.arange(len(votes))[:, None], votes), 0.5)
        return counts

    @cached_property
    def matrix(self) -> csr_array:
        """D, sparse [M, queries · classes]."""
        queries, classes = self.rest.shape
        query, canary = np.nonzero(self.one != self.other)
        rows = np.concatenate((canary, canary))
        columns = np.concatenate(
            [query * classes + votes[query, canary].astype(np.int64) for votes in (self.one, self.other)]
        )
        values = np.repeat((1.0, -1.0), len(query))
        return csr_array((values, (rows, columns)), shape=(self.canaries, queries * classes))


@dataclass(frozen=True, eq=False)
class Guess:
    """Evidence that a release gives about each coin.

    Attributes:
        evidence: Log-likelihood ratio of "one" to "other" [M].
        information: Separation of "one" and "other" relative to the noise, which is μ of each coin if the others are
            unknown [M].
    """

    evidence: Floats
    information: Floats


@dataclass(frozen=True)
class Plan:
    """Grouping of the coins of several shadow runs, fixed before anything is released.

    Several runs together are also a single run of a larger mechanism, with all their coins. So shadow runs may be
    counted as independent runs, or merged into fewer runs with more coins each.

    Attributes:
        guesses: Number of coins guessed in each merged run: those with the strongest evidence.
        coins: Coins in each merged run.
        runs: Number of merged runs.
    """

    guesses: int
    coins: int
    runs: int

    def right(self, evidence: Floats, coins: Coins) -> int:
        """Return the number of right guesses in the worst merged run, from evidence and coins [shadow runs, M]."""
        size = np.abs(evidence).reshape(self.runs, self.coins)
        chosen = np.argsort(-size, axis=1, kind="stable")[:, : self.guesses]
        hits = ((evidence > 0) == coins).reshape(self.runs, self.coins)
        return int(np.take_along_axis(hits, chosen, axis=1).sum(axis=1).min())

    def bound(self, charge: Charge, right: int, confidence: float) -> tuple[float, float | None]:
        """Return the lower bounds on ε at δ and on μ from the number of right guesses in the worst run.

        The second value is the bound on μ, or None if the mechanism is not charged as Gaussian.
        """
        if charge.mu is None:
            least = epsilon_of_guesses(right, self.guesses, self.coins, charge.delta, confidence, runs=self.runs)
            return least, None
        mu = mu_of_guesses(right, self.guesses, self.coins, confidence, runs=self.runs)
        return (epsilon_of(mu, charge.delta) if mu > 0 else 0.0), mu


def best_plan(information: Floats, confidence: float, shadows: int) -> Plan:
    """Return the plan with the best bound on simulated evidence, without looking at any release.

    Args:
        information: `Guess.information` of a release of this kind.
        confidence: Probability with which the bound holds, in (0, 1).
        shadows: Number of shadow runs with independent coins.
    """
    generator, coins = np.random.default_rng(0), len(information)
    drawn = generator.standard_normal((_REHEARSALS, shadows, coins))
    evidence = information**2 / 2 + information * drawn  # positive where the guess is right
    found: list[tuple[float, Plan]] = []
    for runs in (runs for runs in range(1, shadows + 1) if shadows % runs == 0):
        each = shadows * coins // runs
        for share in _SHARES:
            plan = Plan(max(1, round(share * each)), each, runs)
            truth = np.ones((shadows, coins), dtype=np.bool_)
            # Among plans with the same average, the lower quartile prefers the one that varies least.
            poor = int(np.quantile([plan.right(rehearsal, truth) for rehearsal in evidence], 0.25, method="lower"))
            found.append((mu_of_guesses(poor, plan.guesses, each, confidence, runs=runs), plan))
    return max(found, key=lambda pair: pair[0])[1]


def guess_from_histograms(directions: Directions, released: ArrayLike, sigma: float) -> Guess:
    """Guess every coin from noisy histograms [queries, classes]; rows of unanswered queries are NaN.

    Args:
        directions: Change of the histograms that each coin causes.
        released: Noisy histograms, float [queries, classes].
        sigma: Standard deviation of their noise, in votes: above 0; a tiny value if there is no noise.
    """
    table = np.asarray(released, dtype=np.float64)
    answered = np.asarray(np.isfinite(table).all(axis=1))
    gradient = np.where(answered[:, None], table - directions.middle, 0.0) / sigma**2
    weights = np.broadcast_to(answered[:, None] / sigma**2, table.shape)
    design = directions.matrix
    return _decode(design @ gradient.ravel(), _products(design, weights.ravel()))


def guess_from_labels(directions: Directions, labels: NDArray[np.integer], sigma: float) -> Guess:
    """Guess every coin from released labels [queries], −1 if unanswered; `sigma` as in `guess_from_histograms`."""
    design, (queries, classes) = directions.matrix, directions.rest.shape
    # Unknown coins blur the counts in the same way as noise.
    blur = (design.multiply(design).sum(axis=0) / 4).reshape(queries, classes).mean(axis=1, keepdims=True)
    scale = _GUMBEL * np.sqrt(sigma**2 + blur)
    exponent = directions.middle / scale
    chance = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    answered = np.asarray(labels >= 0)[:, None]
    gradient = np.where(answered, np.equal(np.arange(classes), labels[:, None]) - chance, 0.0) / scale
    weights = np.where(answered, chance, 0.0) / scale**2
    # The curvature of a softmax is diag(p) − ppᵀ for every query.
    along = design.multiply(np.where(answered, chance / scale, 0.0).ravel()).tocsr()
    sums = along @ _sum_of_classes(queries, classes)
    curvature = _products(design, weights.ravel()) - _products(sums, np.ones(queries))
    return _decode(design @ gradient.ravel(), curvature)


@dataclass(frozen=True, eq=False)
class Products:
    """Noisy sums over records of outer products left·rightᵀ, one sum per round; coins choose between two records.

    All rounds have the same left factors.

    Attributes:
        left: Left factors of each canary's "one" and "other" record, two arrays [M, a].
        right: Right factors of each canary's "one" and "other" record, two arrays [M, rounds, b].
        residual: Released sums minus the noiseless sums with every coin at ½ [rounds, a, b].
        sigma: Standard deviation of the noise on every coordinate, in the Frobenius norm; above 0.
    """

    left: tuple[Floats, Floats]
    right: tuple[Floats, Floats]
    residual: Floats
    sigma: float

    @property
    def kernel(self) -> Floats:
        """Inner products of the directions in which coins move the sums, over the variance of the noise [M, M]."""
        left = [each / self.sigma for each in self.left]
        right = [each.reshape(len(each), -1) for each in self.right]
        products = [[(left[a] @ left[b].T) * (right[a] @ right[b].T) for b in (0, 1)] for a in (0, 1)]
        return np.asarray(products[0][0] - products[0][1] - products[1][0] + products[1][1])

    @property
    def scores(self) -> Floats:
        """Inner products of the residual and the coins' directions, over the variance of the noise [M]."""
        one, other = (
            np.einsum("ma,kab,mkb->m", left, self.residual, right, optimize=True)
            for left, right in zip(self.left, self.right, strict=True)
        )
        return np.asarray((one - other) / self.sigma**2)

    @property
    def white(self) -> "Products":
        """The same sums, in linear combinations of rounds whose residuals are uncorrelated.

        This hardly changes independent noise. Noise shared by two rounds cancels in a combination of both, which then
        reveals the coins. Without more coordinates than rounds, the sums are returned unchanged.
        """
        rounds, *shape = self.residual.shape
        if rounds == 1 or np.prod(shape) <= rounds:
            return self
        rows = self.residual.reshape(rounds, -1) / self.sigma
        values, vectors = np.linalg.eigh(rows @ rows.T / rows.shape[1])
        root = (vectors / np.sqrt(np.maximum(values, 1e-12))) @ vectors.T
        right = tuple(np.einsum("jk,mkb->mjb", root, each) for each in self.right)
        return Products(self.left, (right[0], right[1]), np.tensordot(root, self.residual, axes=1), self.sigma)


def guess_from_sums(sums: Iterable[Products]) -> Guess:
    """Guess every coin from noisy sums of outer products: a matched filter, decoded jointly."""
    parts = list(sums)
    scores = np.sum([part.scores for part in parts], axis=0)
    return _decode(scores, np.sum([part.kernel for part in parts], axis=0))


def _decode(gradient: Floats, curvature: Floats) -> Guess:
    """Compute the posterior of z − ½ under a prior of mean 0 and variance ¼, and the evidence that the release adds."""
    factor = cho_factor(curvature + 4 * np.eye(len(curvature)))
    variance = np.diag(cho_solve(factor, np.eye(len(curvature))))
    mean = cho_solve(factor, gradient)
    return Guess(mean / variance, np.sqrt(np.maximum(1 / variance - 4, 0.0)))


def _products(rows: csr_array, weights: Floats) -> Floats:
    """Return rows · diag(weights) · rowsᵀ, by dense blocks of columns, which is far faster than sparse products."""
    columns, found = rows.tocsc(), np.zeros((rows.shape[0], rows.shape[0]))
    for first in range(0, rows.shape[1], _BLOCK):
        block = columns[:, first : first + _BLOCK].toarray()
        found += (block * weights[first : first + _BLOCK]) @ block.T
    return found


def _sum_of_classes(queries: int, classes: int) -> csr_array:
    """Return the indicator matrix [queries · classes, queries] that sums over the classes of each query."""
    rows = np.arange(queries * classes)
    return csr_array((np.ones(len(rows)), (rows, rows // classes)), shape=(queries * classes, queries))


def check_count(canaries: int, most: int, why: str) -> None:
    """Raise SettingError unless an audit can plant this number of canaries: 8 to `most`, which `why` explains."""
    if not 8 <= canaries <= most:
        raise SettingError(f"{why}: plant between 8 and {most:,} of them, not {canaries:,}.")
