"""Train and test: every unit draws its side by itself.

>>> from terrine.data.units import place_codes
>>> train, test = split_units(place_codes(1000), test_fraction=0.2, seed=0)
>>> len(train) + len(test)
1000

Labels have no say, nor has any other unit: who is on which side tells nothing about anybody, and a unit that is added,
removed or filled with other contents moves no other across the split. So shares of classes, and the size of the test
split, are those that chance gives; a rare class may be missing on one side.
"""

import numpy as np

from terrine.data.units import count_units, shares
from terrine.errors import InputError


def split_units(units: np.ndarray, test_fraction: float, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test): ascending indices that share no record, cover all, and share no unit.

    `units` is int64 [N], the code of each record's group, or of its name where there are no groups
    (`terrine.data.units`). A unit is held out when what it draws is below `test_fraction`: about that share of units,
    always the same ones for one `seed`. Raises InputError when a side is empty.
    """
    in_test = shares(units, seed, "data.split") < test_fraction
    if in_test.all() or not in_test.any():
        count = count_units(units)
        what = f"{len(units)} records" if count == len(units) else f"{count} groups or names of {len(units)} records"
        raise InputError(
            f"{what} are too few to draw a test split of {test_fraction} from: one side is empty. Give the split "
            "yourself, bring more, or change data.test_fraction."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
