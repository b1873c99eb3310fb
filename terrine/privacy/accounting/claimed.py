"""What a paper would say that its votes cost, where what it says does not hold.

Not a guarantee, and never used as one: a statement prints it beside the figure that holds, so that both are seen.
"""

import math
from collections.abc import Mapping
from typing import Any

from terrine.errors import SettingError
from terrine.privacy.accounting.events import RepeatedEvent, compose, threshold_test, vote_answer
from terrine.privacy.accounting.pricing import price

_MOMENTS = 8


def claimed_epsilon(mechanism: Mapping[str, Any], asked: int, answered: int, delta: float) -> float:
    """ε as if one record moved one vote per query at most, although every teacher is a function of every record.

    For LNMax as TTAC (Dodwadmath and Stich 2022) computes it (`by_moments`), for the other mechanisms exactly.

    Args:
        mechanism: `Mechanism.describe()`.
        asked: How many queries were looked at.
        answered: How many labels were released.
        delta: δ in (0, 1).
    """
    name = mechanism["mechanism"]
    if name == "lnmax":
        return by_moments(1 / mechanism["scale"], asked, delta)
    if name in ("gnmax", "histogram"):
        return price(RepeatedEvent(vote_answer(mechanism["sigma"]), asked), delta)
    tests = RepeatedEvent(threshold_test(mechanism["sigma1"]), asked)
    return price(compose(tests, RepeatedEvent(vote_answer(mechanism["sigma2"]), answered)), delta)


def by_moments(gamma: float, queries: int, delta: float) -> float:
    """The data-independent ε of LNMax by the moments accountant of Papernot et al. (2017).

    Each query has the moments 2γ² l (l + 1); TTAC (Dodwadmath and Stich 2022, appendix A.3, eq. 10) looks at l up to 8.

    >>> round(by_moments(0.1, 100, 1e-5), 2)     # Table 1 there: 11.75
    11.76

    Raises:
        SettingError: an impossible number.
    """
    if not gamma > 0 or queries < 0 or not 0 < delta < 1:
        raise SettingError(f"No claim can be computed for gamma={gamma!r}, {queries!r} queries and delta={delta!r}.")
    orders = range(1, _MOMENTS + 1)
    return min((queries * 2 * gamma**2 * order * (order + 1) - math.log(delta)) / order for order in orders)
