"""What it costs to try several settings on private data and publish the best: two prices for two ways of searching.

- `composed_epsilon`: every candidate is released and each distinct release is paid for. The choice may then use
  anything that was released, in any way and after the fact, because it is post-processing. It is what the ledger
  charges.
- `repeat_and_select_epsilon`: candidates are drawn at random, a random number of times, and only the best outcome is
  ever published, by whatever score of the candidates' own runs (Papernot & Steinke 2022). It hardly grows with the
  number of candidates, but it is no guarantee for a search whose number of runs was fixed, or of which more than the
  winner was published.

Both price what happens to the records that teachers learn from, with public quantities alone. Records that a score is
computed on besides, such as a test split, are covered by neither.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from terrine.errors import SettingError
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.accounting.pricing import price
from terrine.privacy.accounting.renyi import convert, default_orders, pure_epsilon, rdp_of_event


def composed_epsilon(releases: Mapping[str, Event], delta: float) -> float:
    """Return ε at `delta` of all `releases` together; exact if all are Gaussian.

    Args:
        releases: The cost of each distinct release by its identity: a release that several candidates share counts
            once.
    """
    return price(compose(*releases.values()), delta)


def repeat_and_select_epsilon(candidates: Sequence[Event], delta: float, *, mean: float | None = None) -> float:
    """Return ε at `delta` of drawing random candidates, a random number of times, and publishing only the best outcome.

    The number of runs K has a geometric distribution (Papernot & Steinke 2022, Theorem 2 with η = 1, where γ = 1/E[K]).
    A candidate drawn at random, whatever the probabilities, has at every order at most the RDP of the dearest one
    there, so the curve that is repeated is the largest of all. A single candidate leaves nothing to choose and costs
    what it costs.

    Args:
        candidates: The most each distinct candidate can spend, known before it runs: the realised cost of one run says
            nothing about runs that were not made.
        mean: Mean number of runs; by default the number of candidates.

    Raises:
        SettingError: no candidates, or an impossible mean.
        UnsupportedEventError: an event that has no RDP curve.
    """
    if not candidates:
        raise SettingError("A search needs at least one candidate.")
    if len(candidates) == 1 and mean is None:
        return price(candidates[0], delta)
    runs = float(len(candidates) if mean is None else mean)
    if not 1 <= runs < math.inf:
        raise SettingError(f"The mean number of runs must be at least 1, got {runs!r}.")
    orders = default_orders()
    dearest = np.max([rdp_of_event(event, orders) for event in candidates], axis=0)
    helper = np.min((1 - 1 / orders) * dearest + math.log(runs) / orders)
    curve = dearest + 2 * helper + math.log(runs) / (orders - 1)
    # RDP grows with the order, so the smallest value at a larger order holds for the smaller order, too.
    curve = np.minimum.accumulate(curve[::-1])[::-1]
    # Corollary 3: the best of ε-DP runs is 3 ε-DP.
    pure = 3 * max(pure_epsilon(event) for event in candidates)
    return min(pure, convert(orders, np.maximum(curve, 0.0), delta)[0])
