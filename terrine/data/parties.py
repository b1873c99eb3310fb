"""Which party holds a record: hospitals, branches, devices, as a column of the user's data says.

The party of a record is taken as public knowledge, like the list of parties itself: neighbouring datasets differ in
what one party holds, never in who holds it. So a partition by party moves nobody, whatever is in the records.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from terrine.data.labels import check_texts
from terrine.errors import InputError


def encode_parties(parties: Mapping[str, np.ndarray], where: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the party of each record as int64 [N] in 0..P-1 for each split, and the P names.

    `parties` maps the name of an array to its values, integers or text, [N] or [N, 1]. Parties are numbered by value,
    text in alphabetical order. Raises InputError, naming `where` and the array, for anything else.
    """
    columns = check_texts(parties, where, "a party")
    names, numbers = np.unique(np.concatenate([*columns.values()]), return_inverse=True)
    cuts = np.cumsum([len(values) for values in columns.values()])[:-1]
    split = np.split(numbers.astype(np.int64), cuts)
    return dict(zip(columns, split, strict=True)), tuple(str(name) for name in names)


def check_whole(groups: np.ndarray, parties: np.ndarray, names: Sequence[str]) -> None:
    """Raise InputError where a group, int64 [records], is with several `parties`, int64 [records] of these `names`.

    How many records a party holds is nobody's business, so one that holds too few to learn from is no error.
    """
    order = np.lexsort((parties, groups))
    same_group = groups[order][1:] == groups[order][:-1]
    split = np.flatnonzero(same_group & (parties[order][1:] != parties[order][:-1]))
    if len(split):
        first, second = (names[parties[order][split[0] + side]] for side in (0, 1))
        raise InputError(
            f"{len(np.unique(groups[order][split]))} groups have records with several parties, the first with "
            f"'{first}' and '{second}'. With privacy.unit=group one person must be with one party only, or she could "
            "move several votes: keep her records with one party, or set privacy.unit=record."
        )
