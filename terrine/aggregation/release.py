"""The release of answers: votes in, what may be published out, through the ledger, exactly once.

Everything that turns votes into a release is here once, for the stage `aggregate` and for `terrine.ledger`: votes are
counted, the worst case is reserved before anything is drawn, and the statement says what was drawn.
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

if TYPE_CHECKING:  # the settings of teachers and students lead here, and need no database
    from terrine.privacy.ledger.ledger import Ledger, StoredRelease

PARTITION, SALT = "partition", "salt"


@dataclass(frozen=True, eq=False, repr=False)
class Votes:
    """What each teacher says about each query: private, with what a release must know of it.

    Attributes:
        values: Unsigned integers [queries, teachers], 0 .. classes - 1.
        queries: SHA-256 of the query images, which are public.
        assignment: int64 [records], the teacher of each record: private.
        unit: What sits in one teacher's part, and is protected.
        public: Whether anyone may already read the records.
        disjoint: Whether every unit was found in exactly one part.
        made_from: The settings that decide what the votes are, as JSON values: public, and never a function of records.
        public_inputs: The public material that went in.
        facts: What is known about the records; None: the queries are examples that the caller provides as public.
        people: Digests by which a ledger recognises the records; None if they are not known, or public.
        class_names: Names of the classes, public and part of the release ID; empty: they have numbers alone.
        declared: Whether these were named beforehand, instead of being the labels that occurred.
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
    """What was released about some queries: it may be published, and anything may be computed from it.

    Attributes:
        mechanism: What was done with the votes.
        labels: int64 [queries], -1 where unanswered.
        answered: bool [queries].
        histograms: Noisy counts, float64 [queries, classes], NaN where unanswered; None for mechanisms that release
            labels alone.
        queries: SHA-256 of the query images.
        reused: Whether it had been drawn before, and cost nothing now.
        changed: What it was drawn from that is another by now, under the same edition: private, for the ledger's
            keeper alone.
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
        """Return what is guaranteed: printed, a few sentences; `to_dict()` has every figure."""
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
    """Release answers through the ledger, or return those that were released before under this identity.

    Args:
        ledger: Where `account` is registered.
        histograms: int64 [queries, classes], rows summing to the number of teachers.
        account: Whose budget it draws on.
        release_id: A function of public things alone (`terrine.privacy.ledger.site_key.release_identity`).
        epsilon: The release's own budget, for what was spent `before`, too.
        inputs: Digests of what is drawn from; sealed with the release.
        rounds: See `answer_in_rounds`, as for `adviser`.
        before: What the same run spent before anything was asked.
        drawn_before: How many values with noise that was.
        unprotected: Whether nothing is guaranteed, whatever noise is drawn.
        data: See `Ledger.release`, as for `task`.

    Raises:
        SettingError: an impossible budget.
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
        if answers.histograms is not None:
            arrays["histograms"] = answers.histograms
        if answers.reinforced is not None:
            arrays["reinforced"] = answers.reinforced
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
    """Return what a statement says of released answers, from public quantities and the recorded event alone."""
    labels, looked_at = release.arrays["labels"], asked(release)
    answered = int(release.arrays["answered"].sum())
    return {
        "event": release.event if unprotected else compose(before, release.event),
        "delta": delta,
        "delta_slack": 0.0 if unprotected else delta_slack(drawn_before + looked_at * (classes + 1), epsilon),
        "epsilon_budget": epsilon,
        "teachers": teachers,
        "queries": len(labels),
        "asked": looked_at,
        "answered": answered,
        "answered_per_class": released_per_class(labels, classes),
        "epsilon_claimed": mechanism.claimed(looked_at, answered, delta) if unprotected else None,
    }


def asked(release: StoredRelease) -> int:
    """Return how many queries were looked at before the budget ended."""
    return int((release.arrays["round"] != NEVER).sum())


def committed(partition: str) -> dict[str, str]:
    """Return what is sealed with a release about its partition: its keyed digest, and a salt that is new each time."""
    return {PARTITION: partition, SALT: secrets.token_hex(32)}


def partition_commitment(release: StoredRelease) -> str:
    """Return the digest of the partition that a release may publish.

    It is salted anew for every release and says nothing without the salt, which is sealed in the ledger: with it, the
    keeper of the ledger can show later which partition the release was made from. The same again for a release that is
    returned again, whatever the data are by then.
    """
    salt = bytes.fromhex(release.inputs[SALT])
    return keyed_digest(salt, "terrine partition", release.inputs[PARTITION].encode())


def changed_inputs(release: StoredRelease, inputs: Mapping[str, str]) -> list[str]:
    """Return what a stored release was drawn from that is another by now. Private."""
    names = sorted((inputs.keys() & release.inputs.keys()) - {SALT})
    return [name for name in names if inputs[name] != release.inputs[name]]
