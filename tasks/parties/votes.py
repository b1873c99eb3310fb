"""The votes, or the sums, that a teacher party gives: its own file of them, checked at the door."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tasks.parties.config import PartyConfig
from tasks.parties.terms import Terms
from terrine import npy
from terrine.errors import InputError


def votes_of(config: PartyConfig, name: str) -> np.ndarray:
    """Return the votes of the party called `name`, whole numbers [asked queries, own teachers]; or what it shares of
    its sums, whole numbers [numbers, 1].

    They are read from the file that the configuration names, or cast by teachers that are trained here. Raises
    InputError for votes that are not on this batch by as many teachers as the terms say.
    """
    terms = config.terms
    if config.own is not None:
        # Here, because torch takes seconds to load and most parties never need it.
        from tasks.parties.training import cast_votes, sum_records

        if terms.fixed_point is not None:
            return _shared(sum_records(config.own, terms, terms.teachers[name]), terms, name)
        return check_votes(
            cast_votes(config.own, terms, terms.teachers[name]), config.own.work, config, terms.teachers[name]
        )
    assert config.votes is not None
    votes = npy.read(config.votes)
    if terms.fixed_point is not None:
        return _shared(votes, terms, name)
    return check_votes(votes, config.votes, config, terms.teachers[name])


def _shared(sums: np.ndarray, terms: Terms, name: str) -> np.ndarray:
    """Return what is shared of sums, once they are such as the terms allow the party."""
    assert terms.fixed_point is not None
    assert terms.records is not None
    return terms.fixed_point.shared(sums, terms.teachers[name] * terms.records)[:, None]


def check_votes(votes: np.ndarray, source: Path, config: PartyConfig, held: int) -> np.ndarray:
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
