"""Canaries: records made to be found, and how to find them in what was released.

A canary's teacher is left two records. Its *companion* is always there: one of the queries, with one label. The
*canary* has another label, and a fair coin says which of two images it is: the companion's, a trace brighter at a few
pixels and darker at others, or the other way round. So the teacher has two points to tell apart, and the coin decides
which side of the companion is whose: nearly all its votes hang on it. That is the worst case that a release is charged
for; and what moves is another pattern of queries for each canary, so that many can be told apart in one run.

Whoever knows the data can train both versions of each canary's teacher. Its coin z then moves the histograms H along a
known direction, d = votes with "one" − votes with "other",

    H = middle + Dᵀ(z − ½) + noise,

and coins are found jointly, as many canaries overlap: linear least squares with the coins' own mean and variance,
x = (D W Dᵀ + 4 I)⁻¹ D g with W = I/σ² and g = (released − middle)/σ². Where labels alone are released, g and W are
gradient and curvature of their log-likelihood, that of a softmax of the counts: noise of a Gumbel distribution, which
is near enough (a guess need not be the best one for a bound to hold).

If records are summed and nobody votes, a canary is a row of features instead of an image, and its coin z decides which
of two rows is summed (`terrine.aggregation.exchange`). Directions are then sums of outer products, and coins are found
in the same way (`guess_from_sums`).
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
# Shares of the coins that a guess is tried for, and how often a rehearsal is repeated.
_SHARES, _REHEARSALS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125), 31
_BLOCK = 4096
# A Gumbel distribution of this scale is as wide as a Gaussian of deviation 1.
_GUMBEL = np.sqrt(6) / np.pi


@dataclass(frozen=True, eq=False)
class Canaries:
    """Records of canaries, one for each of M teachers.

    Attributes:
        companions: What each teacher has besides [M, ...].
        one: The canaries if their coin says "one" [M, ...].
        other: The canaries if it says "other" [M, ...].
        companion_labels: int64 [M].
        labels: int64 [M], the canaries', each another than its companion's.
    """

    companions: NDArray[np.generic]
    one: NDArray[np.generic]
    other: NDArray[np.generic]
    companion_labels: Integers
    labels: Integers


def make_canaries(
    queries: NDArray[np.generic], count: int, classes: int, contrast: float, generator: np.random.Generator
) -> Canaries:
    """Return canaries for so many teachers.

    Args:
        queries: What teachers will be asked: uint8 [Q, ...] images, or float32 [Q, columns] rows.
        classes: Number of classes, at least two.
        contrast: How far a canary is from its companion where it differs: in grey levels, for rows in hundredths of a
            column's standard deviation. A linear teacher tells the smallest difference; a network may need a large one.
        generator: Draws companions, pixels, signs and labels.
    """
    flat = queries.reshape(len(queries), -1)
    images, spread = flat.dtype == np.uint8, flat.std(axis=0, dtype=np.float64)
    steps = np.full(len(spread), float(contrast)) if images else contrast / 100 * spread
    companions = flat[generator.integers(len(flat), size=count)].astype(np.float64)
    if images:
        companions = np.clip(companions, contrast, 255 - contrast)
    # Where queries hardly differ, a difference between companion and canary would sort none of them.
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
    """Where each canary's coin moves the histograms: known to whoever knows the data, and no function of the coins.

    Attributes:
        one: Votes of each canary's teacher with "one", integers [queries, M].
        other: Its votes with "other" [queries, M].
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
        """How many there are."""
        return int(self.one.shape[1])

    @property
    def moved(self) -> Floats:
        """Share of its votes that each canary moves [M]: 1 is the most that is charged for."""
        return np.asarray(np.mean(self.one != self.other, axis=0))

    @cached_property
    def middle(self) -> Floats:
        """Histograms if every coin lay on its edge, float64 [queries, classes]."""
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
    """What a release says of each coin.

    Attributes:
        evidence: Log-likelihood ratio of "one" to "other" [M].
        information: How far apart the two are in the noise, that is μ of each coin with the others unknown [M].
    """

    evidence: Floats
    information: Floats


@dataclass(frozen=True)
class Plan:
    """How coins of several shadow runs are counted, settled before anything is released.

    Several runs are also one: of a mechanism that makes them all, and has the coins of all. So they may be counted as
    `runs` independent runs, or put together to fewer with more coins each.

    Attributes:
        guesses: Guesses in each of them, about the coins with most evidence.
        coins: Coins in each.
    """

    guesses: int
    coins: int
    runs: int

    def right(self, evidence: Floats, coins: Coins) -> int:
        """Right guesses in the worst of them, from evidence and coins [shadow runs, M]."""
        size = np.abs(evidence).reshape(self.runs, self.coins)
        chosen = np.argsort(-size, axis=1, kind="stable")[:, : self.guesses]
        hits = ((evidence > 0) == coins).reshape(self.runs, self.coins)
        return int(np.take_along_axis(hits, chosen, axis=1).sum(axis=1).min())

    def bound(self, charge: Charge, right: int, confidence: float) -> tuple[float, float | None]:
        """Return the lower bounds on ε at δ and on μ from the number of right guesses in the worst run.

        There is no bound on μ, but None, if the mechanism is not charged as Gaussian.
        """
        if charge.mu is None:
            least = epsilon_of_guesses(right, self.guesses, self.coins, charge.delta, confidence, runs=self.runs)
            return least, None
        mu = mu_of_guesses(right, self.guesses, self.coins, confidence, runs=self.runs)
        return (epsilon_of(mu, charge.delta) if mu > 0 else 0.0), mu


def best_plan(information: Floats, confidence: float, shadows: int) -> Plan:
    """Return the plan with the best bound on made-up evidence: a function of nothing that was released.

    Args:
        information: `Guess.information` of a release of this kind.
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
            # The lower quartile: of plans that are as good on average, the one that varies least.
            poor = int(np.quantile([plan.right(rehearsal, truth) for rehearsal in evidence], 0.25, method="lower"))
            found.append((mu_of_guesses(poor, plan.guesses, each, confidence, runs=runs), plan))
    return max(found, key=lambda pair: pair[0])[1]


def guess_from_histograms(directions: Directions, released: ArrayLike, sigma: float) -> Guess:
    """Guess every coin from noisy histograms [queries, classes], rows of NaN where unanswered.

    Args:
        directions: Where coins move histograms.
        sigma: Standard deviation of their noise, in votes: above 0, tiny for none.
    """
    table = np.asarray(released, dtype=np.float64)
    answered = np.asarray(np.isfinite(table).all(axis=1))
    gradient = np.where(answered[:, None], table - directions.middle, 0.0) / sigma**2
    weights = np.broadcast_to(answered[:, None] / sigma**2, table.shape)
    design = directions.matrix
    return _decode(design @ gradient.ravel(), _products(design, weights.ravel()))


def guess_from_labels(directions: Directions, labels: NDArray[np.integer], sigma: float) -> Guess:
    """Guess every coin from released labels [queries], −1 where unanswered; `sigma` as in `guess_from_histograms`."""
    design, (queries, classes) = directions.matrix, directions.rest.shape
    # Coins that are not known yet blur the counts as noise does.
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
    """Noisy sums of outer products left·rightᵀ of records, one sum a round, in which coins choose between two records.

    All rounds have the same left factors.

    Attributes:
        left: Left factors of each canary's "one" and "other" record, two arrays [M, a].
        right: Its right factors, two arrays [M, rounds, b].
        residual: Released sums less what they are without noise if every coin were ½ [rounds, a, b].
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
        """Inner products of the residual and these directions, over the variance of the noise [M]."""
        one, other = (
            np.einsum("ma,kab,mkb->m", left, self.residual, right, optimize=True)
            for left, right in zip(self.left, self.right, strict=True)
        )
        return np.asarray((one - other) / self.sigma**2)

    @property
    def white(self) -> "Products":
        """The same sums in combinations of rounds whose residuals are uncorrelated.

        Independent noise is left nearly as it is. Noise that two rounds share cancels in a combination of both, which
        then shows the coins. Needs more coordinates than rounds; otherwise the sums are returned unchanged.
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
    """Posterior of z − ½ with its own mean 0 and variance ¼, and from it what the release adds to that."""
    factor = cho_factor(curvature + 4 * np.eye(len(curvature)))
    variance = np.diag(cho_solve(factor, np.eye(len(curvature))))
    mean = cho_solve(factor, gradient)
    return Guess(mean / variance, np.sqrt(np.maximum(1 / variance - 4, 0.0)))


def _products(rows: csr_array, weights: Floats) -> Floats:
    """Rows · diag(weights) · rowsᵀ, by blocks of columns that are dense: far faster than products of sparse ones."""
    columns, found = rows.tocsc(), np.zeros((rows.shape[0], rows.shape[0]))
    for first in range(0, rows.shape[1], _BLOCK):
        block = columns[:, first : first + _BLOCK].toarray()
        found += (block * weights[first : first + _BLOCK]) @ block.T
    return found


def _sum_of_classes(queries: int, classes: int) -> csr_array:
    """[queries · classes, queries], which adds up what belongs to one query."""
    rows = np.arange(queries * classes)
    return csr_array((np.ones(len(rows)), (rows, rows // classes)), shape=(queries * classes, queries))


def check_count(canaries: int, most: int, why: str) -> None:
    """Raise SettingError unless an audit can plant this number of canaries: 8 to `most`, which `why` explains."""
    if not 8 <= canaries <= most:
        raise SettingError(f"{why}: plant between 8 and {most:,} of them, not {canaries:,}.")
