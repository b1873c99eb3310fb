"""DP-SGD of a linear head, with all records in one place (Abadi et al. 2016), at the ε of exchanging a record.

In every round each record takes part with probability q. Exchanging it moves a sum of gradients of length at most C by
at most 2C, so a round is dominated by the pair (1 − q) N(0, σ²) + q N(±1, σ²), in units of C (Zhu, Dong & Wang 2022).
dp-accounting composes it from the masses of a fine grid.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, softmax

from terrine.determinism.randomness import numpy_generator
from terrine.extras import from_extra
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.noise import NoiseSource


@dataclass(frozen=True)
class Recipe:
    """Training settings: expected records in a batch, passes over the data, rate, clipping norm, momentum.

    The defaults were chosen on MNIST, for vectors of length 1.
    """

    batch: int = 1024
    epochs: int = 10
    rate: float = 8.0
    clip: float = 0.5
    momentum: float = 0.9

    def sampling(self, records: int) -> tuple[float, int]:
        """Return with which probability a record takes part in a round, and the number of rounds."""
        q = min(1.0, self.batch / records)
        return q, math.ceil(self.epochs / q)


def exchanged(sigma: float, q: float, rounds: int, delta: float, before: float = 0.0, step: float = 1e-3) -> float:
    """Compute ε at δ of `rounds` rounds with noise σ·C on a sum, under replacement of one record.

    before: μ of what Gaussian noise was spent on before. step: of the lattice of privacy losses, which are rounded up.
    """
    with from_extra("dev", "Prices of DP-SGD"):
        from dp_accounting.pld import privacy_loss_distribution as losses

    edges = np.linspace(-10 * sigma - 1, 10 * sigma + 1, 4_001)
    none, one = (np.diff(ndtr((edges - shift) / sigma)) for shift in (0.0, 1.0))
    upper = (1 - q) * none + q * one
    masses = [dict(enumerate(np.log(np.maximum(side, 1e-300)))) for side in (upper[::-1], upper)]
    spent = losses.from_two_probability_mass_functions(*masses, value_discretization_interval=step).self_compose(rounds)
    if before:
        spent = spent.compose(losses.from_gaussian_mechanism(1 / before, value_discretization_interval=step))
    return float(spent.get_epsilon_for_delta(delta))


def added(sigma: float, q: float, rounds: int, delta: float, before: float = 0.0) -> float:
    """Compute the same if a record is added or removed. Arguments: `exchanged`."""
    with from_extra("dev", "Prices of DP-SGD"):
        from dp_accounting.pld import privacy_loss_distribution as losses

    spent = losses.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-3)
    spent = spent.self_compose(rounds)
    if before:
        spent = spent.compose(losses.from_gaussian_mechanism(1 / before, value_discretization_interval=1e-3))
    return float(spent.get_epsilon_for_delta(delta))


@functools.cache
def noise_for(
    epsilon: float, q: float, rounds: int, delta: float, before: float = 0.0, step: float = 1e-3
) -> tuple[float, float]:
    """Return σ at which the rounds, with what was spent before, cost between 99 % of ε and ε; and that cost."""
    sigma = 1.3 * q * 2 * math.sqrt(rounds) / math.sqrt(mu_of(epsilon, delta) ** 2 - before**2)
    while True:  # ε falls about as σ grows
        cost = exchanged(sigma, q, rounds, delta, before, step)
        if 0.99 * epsilon <= cost <= epsilon:
            return sigma, cost
        sigma *= (cost / (0.995 * epsilon)) ** 0.9


def train(
    vectors: np.ndarray, labels: np.ndarray, classes: int, recipe: Recipe, sigma: float, noise: NoiseSource, seed: int
) -> np.ndarray:
    """Return a softmax head's weights, float64 [length, classes].

    Args:
        vectors: [records, length].
        labels: int64 [records].
        sigma: Noise on a sum of gradients, in units of the clipping norm.
    """
    q, rounds = recipe.sampling(len(vectors))
    generator, truth = numpy_generator(seed, "DP-SGD"), np.eye(classes)[labels]
    weights = np.zeros((vectors.shape[1], classes))
    step = np.zeros_like(weights)
    for _ in range(rounds):
        part = np.flatnonzero(generator.random(len(vectors)) < q)
        own = vectors[part].astype(np.float64)
        errors = softmax(own @ weights, axis=1) - truth[part]
        lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(errors, axis=1)
        errors /= np.maximum(lengths / recipe.clip, 1)[:, None]
        noisy = own.T @ errors + noise.gaussian(weights.shape, sigma * recipe.clip)
        step = recipe.momentum * step + noisy / (q * len(vectors))
        weights -= recipe.rate * step
    return weights
