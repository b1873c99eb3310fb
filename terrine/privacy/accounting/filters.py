"""Filters: budgets for releases that are chosen adaptively, one after the other.

Composition theorems price what was fixed in advance. If each release may depend on earlier ones, a budget needs a
*filter*: one measure in which costs add up, with one limit. The smallest of several measures is not a filter, because
which one is smallest then depends on the releases. An account therefore uses one measure permanently, chosen by the
public description of its first release:

- *Gaussian*, if the first release is Gaussian: Σ μ² ≤ μ²(ε, δ) (Smith & Thakurta 2022; Koskela, Tobaben & Honkela
  2023, for every μ-GDP step). Later steps that are not Gaussian enter by `gaussian.pure_mu`.
- *Rényi at one order α* otherwise: Σ RDP(α) ≤ ε − c(α, δ), c the conversion (Feldman & Zrnic 2021, Theorem 4.3 at a
  fixed order). α is the order at which the budget pays for most releases like the first.

docs/accounting.md has the proofs in full.
"""

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from terrine.privacy.accounting.events import Event, UnsupportedEventError
from terrine.privacy.accounting.gaussian import epsilon_of, mu_of, mu_squared
from terrine.privacy.accounting.renyi import conversion_cost, convert, default_orders, mu_squared_bound, rdp_of_event

# Accumulated rounding error of a sum of costs; sums are rounded up by it.
_ROUNDING = 1e-12


class Filter(Protocol):
    """Measure in which the costs of adaptively chosen releases add up.

    Formal guarantee: if each adaptively chosen release is made only if `epsilon` of the sum of costs including it is
    at most ε, all releases together are (ε, δ)-differentially private.
    """

    def cost(self, event: Event) -> float:
        """Return the cost that `event` adds to the filter's sum; infinite if the filter never allows the event."""

    def epsilon(self, cost: float, delta: float) -> float:
        """Return the ε at `delta` for a sum of costs; it increases with the sum."""

    def mu_left(self, cost: float, epsilon: float, delta: float) -> float:
        """Return the μ of the largest Gaussian release allowed after a sum of costs."""


@dataclass(frozen=True)
class GaussianSum:
    """Σ μ²: exact for Gaussian steps."""

    def cost(self, event: Event) -> float:
        """Return `renyi.mu_squared_bound`, see `Filter.cost`."""
        return mu_squared_bound(event)

    def epsilon(self, cost: float, delta: float) -> float:
        """See `Filter.epsilon`."""
        return epsilon_of(math.sqrt(cost), delta)

    def mu_left(self, cost: float, epsilon: float, delta: float) -> float:
        """See `Filter.mu_left`."""
        return math.sqrt(max(0.0, mu_of(epsilon, delta) ** 2 - cost))


@dataclass(frozen=True)
class RenyiSum:
    """Filter that adds RDP at one fixed order α.

    Attributes:
        order: α.
    """

    order: float

    def cost(self, event: Event) -> float:
        """Return the RDP at the order, see `Filter.cost`."""
        return float(rdp_of_event(event, [self.order])[0]) * (1 + _ROUNDING)

    def epsilon(self, cost: float, delta: float) -> float:
        """See `Filter.epsilon`."""
        return convert([self.order], [cost], delta)[0]

    def mu_left(self, cost: float, epsilon: float, delta: float) -> float:
        """See `Filter.mu_left`: a Gaussian's RDP is μ²α/2."""
        left = epsilon - float(conversion_cost(np.array([self.order]), delta)[0]) - cost
        return math.sqrt(2 * max(0.0, left) / self.order)


@functools.lru_cache(maxsize=128)
def filter_for(first: Event, epsilon: float | None, delta: float) -> Filter:
    """Return the filter of an account.

    Args:
        first: Worst case of the first release with a cost.
        epsilon: Budget under which the release was reserved. If None, the order minimises the cost of the first
            release.
        delta: δ of the budget.
    """
    try:
        mu_squared(first)
    except UnsupportedEventError:
        pass
    else:
        return GaussianSum()
    orders = default_orders()
    curve, cost = rdp_of_event(first, orders), conversion_cost(orders, delta)
    held = np.isfinite(curve) & (curve > 0)
    payable = np.divide(-math.inf if epsilon is None else epsilon - cost, curve, out=np.zeros_like(curve), where=held)
    best = np.argmax(payable) if np.any(payable > 0) else np.argmin(curve + cost)
    return RenyiSum(float(orders[best]))
