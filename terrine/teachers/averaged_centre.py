"""A common centre for parties whose data differ: what batch statistics would be, were they not a party's own.

Features must be centred before a linear teacher can vote on images of another kind (docs/current-statistics.md). A
party that has one class cannot centre them by its own mean: what it would take away is the class. So the mean of the
parties' means is taken from all, in averaging `global` as a release of its own: every party's mean of features of unit
length is itself of length 1 at most, which bounds it without a clipping norm to be chosen. Queries are centred by the
mean of their own batch, which is public.

    record:   x / ‖x‖ - centre, to unit length again
    query:    x / ‖x‖ - mean over its batch of x / ‖x‖, to unit length again
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from terrine.errors import InputError
from terrine.teachers.averaged_learners import unit_rows
from terrine.teachers.kind import Queries, Records, rows_of

CLIP = 1.0
"""The largest norm of a party's mean of unit vectors."""


def party_means(records: Records, teachers: Sequence[int]) -> np.ndarray:
    """Return each party's mean of features of unit length, float64 [teachers, features]. Private."""
    if records.inputs.ndim != 2:
        raise InputError(f"Only features have a centre, not inputs of shape {list(records.inputs.shape)}.")
    means = [
        unit_rows(records.inputs[own]).mean(axis=0, dtype=np.float64) for own in rows_of(records.assignment, teachers)
    ]
    return np.stack(means)


def centred_records(records: Records, teachers: Sequence[int], centres: np.ndarray) -> Records:
    """Return the records of these teachers alone, their features centred, in the order they had.

    centres: one for all, [features], or each teacher's, [teachers, features].
    """
    rows = rows_of(records.assignment, teachers)
    kept = np.sort(np.concatenate(rows))
    inputs = np.empty((len(kept), records.inputs.shape[1]), np.float32)
    for position, own in enumerate(rows):
        centre = centres if centres.ndim == 1 else centres[position]
        inputs[np.searchsorted(kept, own)] = unit_rows(unit_rows(records.inputs[own]) - centre)
    return Records(inputs, records.labels[kept], records.assignment[kept], records.classes)


def centred_queries(queries: Queries) -> Queries:
    """Return the queries with the features of each batch centred by its own mean."""
    inputs = np.empty(queries.inputs.shape, np.float32)
    for batch in queries.batches:
        own = unit_rows(queries.inputs[batch])
        inputs[batch] = unit_rows(own - own.mean(axis=0, dtype=np.float64))
    return Queries(inputs, queries.batches)
