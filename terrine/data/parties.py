"""Which party holds a record: hospitals, branches, devices, as a column of the user's data says.

The party of a record is taken as public knowledge, like the list of parties itself: neighbouring datasets differ in
what one party holds, never in who holds it. So a partition by party moves nobody, whatever is in the records.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from terrine.data.labels import encode_groups
from terrine.errors import InputError

SMALLEST = 2
"""Fewest training records of a party: current statistics, and any mean, need two."""


def encode_parties(parties: Mapping[str, np.ndarray], where: str) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the party of each record as int64 [N] in 0..P-1 for each split, and the P names.

    `parties` maps the name of an array to its values, integers or text, [N] or [N, 1]. Parties are numbered by value,
    text in alphabetical order. Raises InputError, naming `where` and the array, for anything else.
    """
    numbers = encode_groups(parties, where, what="party")
    values = np.concatenate([np.ravel(array) for array in parties.values()])
    return numbers, tuple(str(value) for value in np.unique(values))


def check_parties(parties: np.ndarray, names: Sequence[str], groups: np.ndarray | None = None) -> None:
    """Raise InputError where parties cannot be teachers.

    Args:
        parties: int64 [records], the party of each training record.
        names: Name of each party.
        groups: int64 [records] where groups are what is protected: each must be with one party.
    """
    counts = np.bincount(parties, minlength=len(names))
    small = np.flatnonzero(counts < SMALLEST)
    if len(small):
        shown = ", ".join(f"'{names[party]}' ({counts[party]})" for party in small[:5])
        raise InputError(
            f"{len(small)} of {len(names)} parties have fewer than {SMALLEST} training records: {shown}"
            f"{', ...' if len(small) > 5 else ''}. A party trains a teacher of its own: give it more records, join it "
            "with another, or leave it out."
        )
    if groups is None:
        return
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
