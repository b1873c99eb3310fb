"""A common centre for parties whose data differ: what batch statistics would be, were they not a party's own.

Features must be centred before a linear teacher can vote on images of another kind (docs/components.md). A
party that has one class cannot centre them by its own mean: what it would take away is the class. So the mean of the
parties' means is taken from all, in averaging `global` as a release of its own: every party's mean of features of unit
length is itself of length 1 at most, which bounds it without a clipping norm to be chosen. Queries are centred by the
mean of their own batch, which is public.

    record:   x / ‖x‖ - centre, to unit length again
    query:    x / ‖x‖ - mean over its batch of x / ‖x‖, to unit length again
"""

from collections.abc import Sequence

import numpy as np

from terrine.errors import InputError
from terrine.queries import Queries
from terrine.teachers.averaging.learners import unit_rows
from terrine.teachers.features import PrivateFeatures, digest_of
from terrine.teachers.kind import Records, rows_of


def party_means(records: Records, teachers: Sequence[int]) -> np.ndarray:
    """Return each party's mean of features of unit length, float64 [teachers, features]. Private.

    Zeros for a party with too few records: it counts in the centre like everybody, and zero is within the norm.
    """
    values = records.values
    if values.ndim != 2:
        raise InputError(f"Only features have a centre, not inputs of shape {list(values.shape)}.")
    means = np.zeros((len(teachers), values.shape[1]))
    enough = set(records.enough(teachers, 1))
    present = [position for position, teacher in enumerate(teachers) if teacher in enough]
    parts = rows_of(records.assignment, [teachers[position] for position in present])
    for position, own in zip(present, parts, strict=True):
        means[position] = unit_rows(values[own]).mean(axis=0, dtype=np.float64)
    return means


def centred_records(records: Records, teachers: Sequence[int], centres: np.ndarray) -> Records:
    """Return the records of these teachers alone, their features centred, in the order they had.

    centres: one for all, [features], or each teacher's, [teachers, features].
    """
    kept = np.flatnonzero(np.isin(records.assignment, teachers))
    assignment = records.assignment[kept]
    inputs = np.empty((len(kept), records.values.shape[1]), np.float32)
    for position, teacher in enumerate(teachers):
        own = np.flatnonzero(assignment == teacher)
        centre = centres if centres.ndim == 1 else centres[position]
        inputs[own] = unit_rows(unit_rows(records.values[kept[own]]) - centre)
    features: np.ndarray | PrivateFeatures = inputs
    if isinstance(records.inputs, PrivateFeatures):
        partition = None if records.inputs.partition is None else digest_of(assignment)
        features = PrivateFeatures(inputs, partition, records.inputs.least)
    return Records(features, records.labels[kept], assignment, records.classes)


def centred_queries(queries: Queries) -> Queries:
    """Return the queries with the features of each batch centred by its own mean."""
    inputs = np.empty(queries.inputs.shape, np.float32)
    for batch in queries.batches:
        own = unit_rows(queries.inputs[batch])
        inputs[batch] = unit_rows(own - own.mean(axis=0, dtype=np.float64))
    return Queries(inputs, queries.batches)
