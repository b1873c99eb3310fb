"""Release of answers from votes, through the ledger, exactly once.

The stage `aggregate` and `terrine.ledger` share this code: votes are counted, the worst case is reserved before any
noise is drawn, and the statement describes the release.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.aggregation.adaptive_queries import NEVER, Adviser, answer_in_rounds, in_order
from terrine.aggregation.mechanism import NOTHING, Mechanism
from terrine.aggregation.votes import HistogramArray, IntegerArray
from terrine.privacy.accounting.events import Event, NonPrivateEvent, compose
from terrine.privacy.facts import Facts
from terrine.privacy.ledger.people import People
from terrine.privacy.ledger.site_key import keyed_digest
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseSource, check_slack, delta_slack
from terrine.privacy.statement import PrivacyStatement, PublicInput, released_per_class

if TYPE_CHECKING:  # the settings of teachers and students import this module but need no database
    from terrine.privacy.ledger.ledger import Ledger, StoredRelease

PARTITION, SALT = "partition", "salt"


@dataclass(frozen=True, eq=False, repr=False)
class Votes:
    """Each teacher's vote on each query: private, with the facts that a release needs.

    Attributes:
        values: Unsigned integers [queries, teachers], 0 .. classes - 1.
        queries: SHA-256 of the query images, which are public.
        assignment: int64 [records], the teacher of each record: private.
        unit: Protected unit: `record` or `group`; each unit belongs to one teacher.
        public: Whether the records are already public.
        disjoint: Whether every unit is in exactly one part.
        made_from: The settings that determine the votes, as JSON values: public, and never a function of records.
        public_inputs: Public inputs of the votes.
        facts: Facts about the records; None if the queries are examples that the caller passes as public.
        people: Digests by which a ledger recognises the records; None if unknown or public.
        class_names: Names of the classes, public and part of the release ID; empty if classes have only numbers.
        declared: Whether the names were declared in advance, or are the labels that occurred.
    """

    values: IntegerArray
    classes: int
    queries: str
    assignment: NDArray[np.int64]
    unit: Literal["record", "group"] = "record"
    public: bool = False
    disjoint: bool = True
    made_from: Mapping[str, Any] = field(default_factory=dict)
    public_inputs: tuple[PublicInput, ...] = ()
    facts: Facts | None = None
    people: People | None = None
    class_names: tuple[str, ...] = ()
    declared: bool = True

    def __repr__(self) -> str:
        queries, teachers = self.values.shape
        return f"Votes(of {teachers} teachers on {queries} queries, {self.classes} classes: private)"


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """Released answers to queries. They, and anything computed from them, may be published.

    Attributes:
        mechanism: The mechanism that processed the votes.
        labels: int64 [queries], -1 if unanswered.
        answered: bool [queries].
        histograms: Noisy counts, float64 [queries, classes], NaN if unanswered; None if only labels are released.
        queries: SHA-256 of the query images.
        reused: Whether an earlier release was returned, at no further cost.
        changed: Names of inputs whose digest has changed since the release, under the same edition. Private.
    """

    mechanism: Mechanism
    labels: NDArray[np.int64]
    answered: NDArray[np.bool_]
    histograms: NDArray[np.float64] | None
    teachers: int
    classes: int
    queries: str
    reused: bool
    changed: tuple[str, ...]
    privacy: PrivacyStatement

    def statement(self) -> PrivacyStatement:
        """Return the privacy statement: it prints as a few sentences, and `to_dict()` has all figures."""
        return self.privacy

    def __repr__(self) -> str:
        return (
            f"Release({int(self.answered.sum())} answers to {len(self.labels)} queries, ε={self.privacy.epsilon:.4g})"
        )


def release_histograms(
    ledger: Ledger,
    mechanism: Mechanism,
    histograms: HistogramArray,
    *,
    account: str,
    release_id: str,
    run: str,
    epsilon: float,
    delta: float,
    noise: NoiseSource,
    inputs: Mapping[str, str],
    rounds: int = 1,
    adviser: Adviser = in_order,
    before: Event = NOTHING,
    drawn_before: int = 0,
    unprotected: bool = False,
    data: People | None = None,
    task: Task | None = None,
) -> StoredRelease:
    """Release answers through the ledger, or return the earlier release with this ID.

    Args:
        ledger: Ledger that charges and stores the release.
        mechanism: Mechanism that answers the queries.
        histograms: int64 [queries, classes], rows summing to the number of teachers.
        account: Account that is charged.
        release_id: A function of public facts only (`terrine.privacy.ledger.site_key.release_identity`).
        run: Name of the run, for reports.
        epsilon: The release's budget, including `before`.
        delta: δ of the budget.
        noise: Source of the noise.
        inputs: Digests of the inputs, sealed with the release.
        rounds: Maximum number of rounds, see `answer_in_rounds`.
        adviser: Orders the queries before each round, see `answer_in_rounds`.
        before: Cost of earlier releases of the run.
        drawn_before: Number of noisy values in earlier releases of the run.
        unprotected: Whether the release has no guarantee in spite of its noise.
        data: Digests of the records, see `Ledger.reserve`.
        task: Classes of the release, see `Ledger.reserve`.

    Raises:
        SettingError: the budget is invalid.
        BudgetError: the account's budget does not cover the worst case. Nothing was drawn.
        LedgerError: see `Ledger.release`.
    """
    if not unprotected:
        check_slack(drawn_before + len(histograms) * (histograms.shape[1] + 1), epsilon, delta)

    def draw() -> tuple[dict[str, NDArray[Any]], Event]:
        released = answer_in_rounds(
            mechanism,
            histograms,
            rounds=rounds,
            adviser=adviser,
            epsilon=epsilon,
            delta=delta,
            noise=noise,
            before=before,
        )
        answers = released.answers
        arrays: dict[str, NDArray[Any]] = {
            "answered": answers.answered,
            "labels": answers.labels,
            "round": released.round,
        }
        optional = {"histograms": answers.histograms, "reinforced": answers.reinforced}
        arrays |= {name: array for name, array in optional.items() if array is not None}
        return arrays, NonPrivateEvent() if unprotected else answers.event

    worst_case = NonPrivateEvent() if unprotected else mechanism.worst_case(len(histograms), epsilon, delta, before)
    return ledger.release(
        dataset=account,
        release_id=release_id,
        run=run,
        worst_case=worst_case,
        delta=delta,
        noise_kind=noise.kind,
        draw=draw,
        inputs=inputs,
        data=data,
        task=task,
    )


def answer_facts(
    release: StoredRelease,
    mechanism: Mechanism,
    *,
    teachers: int,
    classes: int,
    epsilon: float,
    delta: float,
    before: Event = NOTHING,
    drawn_before: int = 0,
    unprotected: bool = False,
) -> dict[str, Any]:
    """Return the facts of a statement about released answers, from public quantities and the recorded event."""
    labels, inspected = release.arrays["labels"], count_queried(release)
    answered = int(release.arrays["answered"].sum())
    return {
        "event": release.event if unprotected else compose(before, release.event),
        "delta": delta,
        "delta_slack": 0.0 if unprotected else delta_slack(drawn_before + inspected * (classes + 1), epsilon),
        "epsilon_budget": epsilon,
        "teachers": teachers,
        "queries": len(labels),
        "queried": inspected,
        "answered": answered,
        "answered_per_class": released_per_class(labels, classes),
        "epsilon_claimed": mechanism.claimed(inspected, answered, delta) if unprotected else None,
    }


def count_queried(release: StoredRelease) -> int:
    """Return how many queries were processed before the budget ended."""
    return int((release.arrays["round"] != NEVER).sum())


def partition_inputs(partition: str) -> dict[str, str]:
    """Return what to seal with a release about its partition: the partition's keyed digest and a fresh salt."""
    return {PARTITION: partition, SALT: secrets.token_hex(32)}


def partition_commitment(release: StoredRelease) -> str:
    """Return the digest of the partition that a release may publish.

    Each release has its own salt, sealed in the ledger, without which the digest reveals nothing. With the salt, the
    operator can later prove the partition of the release. A reused release keeps its digest even if the data have
    changed.
    """
    salt = bytes.fromhex(release.inputs[SALT])
    return keyed_digest(salt, "terrine partition", release.inputs[PARTITION].encode())


def changed_inputs(release: StoredRelease, inputs: Mapping[str, str]) -> list[str]:
    """Return the names of inputs that have changed since a stored release. Private."""
    names = sorted((inputs.keys() & release.inputs.keys()) - {SALT})
    return [name for name in names if inputs[name] != release.inputs[name]]
