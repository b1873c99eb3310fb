"""What a paper would say that its votes cost, where what it says does not hold.

Not a guarantee, and never used as one: a statement prints it beside the figure that holds, so that both are seen.
"""

import math

from terrine.errors import SettingError

_MOMENTS = 8


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
