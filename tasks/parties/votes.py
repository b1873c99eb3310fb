"""The votes, or the sums, that a teacher party gives: its own file of them, or its own data; checked at the door."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tasks.parties.config import PartyConfig
from tasks.parties.teaching import VOTES, records_of, taught
from terrine import npy
from terrine.errors import InputError

if TYPE_CHECKING:
    from terrine.aggregation.records import Records

Given = Callable[[int, np.ndarray | None], np.ndarray]
"""Returns what is shared in the round of a number, at a head (None in the first): whole numbers, [queries, own
teachers] or, of sums, [numbers, 1]."""


def given_by(config: PartyConfig, name: str) -> Given:
    """Return what answers for the party called `name`: votes on the asked queries, or its sums in each round, and of
    teachers that average, sums of their updates and then votes.

    They come from the file that the configuration names, or of own data. Raises InputError for what is not on this
    batch by as many teachers as the terms say; and whenever asked, for sums that so many records cannot have.
    """
    terms, held = config.terms, config.terms.teachers[name]
    if terms.averages is not None:
        # Here, because a party that gives a file has no use for torch.
        from tasks.parties.averaging import OwnAverages

        return OwnAverages(config, name, held)
    if (fixed := terms.fixed_point) is None:
        votes = _votes(config, name, held)
        return lambda number, head: votes
    assert terms.records is not None
    most = held * terms.records
    if config.own is None and not fixed.course.rounds:
        given = _read(config)
        return lambda number, head: fixed.shared(given, most, number)[:, None]
    summed = fixed.course.summing(_records(config, name, held))
    return lambda number, head: fixed.shared(summed(head), most, number)[:, None]


def _votes(config: PartyConfig, name: str, held: int) -> np.ndarray:
    if config.own is None:
        return check_votes(_read(config), config.votes, config, held)
    return check_votes(taught(config, name, held)[VOTES], config.own.work, config, held)


def _records(config: PartyConfig, name: str, held: int) -> Records:
    if config.own is not None:
        return records_of(taught(config, name, held), config.terms.classes)
    from terrine.aggregation.records import Records, row_type

    rows, expected = _read(config), row_type(config.terms.length or 0)
    if rows.ndim != 1 or rows.dtype != expected:
        raise InputError(
            f"{config.votes} holds {rows.dtype} of shape {list(rows.shape)}. Sums in several rounds need the records: "
            f"rows of {expected} (terrine.aggregation.records.row_type)."
        )
    if not len(rows):
        return Records(rows["vector"], rows["label"], rows["unit"], config.terms.classes)
    return Records.of(rows["vector"], rows["label"], rows["unit"], config.terms.classes)


def _read(config: PartyConfig) -> np.ndarray:
    assert config.votes is not None
    return npy.read(config.votes)


def check_votes(votes: np.ndarray, source: object, config: PartyConfig, held: int) -> np.ndarray:
    """Return the votes on the queries that are asked, once they are what the terms say."""
    terms = config.terms
    if votes.ndim != 2 or votes.shape != (terms.queries, held) or not np.issubdtype(votes.dtype, np.integer):
        raise InputError(
            f"{source} holds {votes.dtype} of shape {list(votes.shape)}. The terms say {terms.queries} queries and "
            f"{held} teachers of this party: give whole numbers [{terms.queries}, {held}]."
        )
    asked = votes[: terms.asked]
    if asked.size and not (int(asked.min()) >= 0 and int(asked.max()) < terms.classes):
        raise InputError(
            f"{source} holds votes from {int(asked.min())} to {int(asked.max())}; the {terms.classes} classes are 0 to "
            f"{terms.classes - 1}."
        )
    return asked
