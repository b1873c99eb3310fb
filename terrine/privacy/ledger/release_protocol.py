"""Steps of a release: reserve, draw, store, commit. Repeating a step costs nothing.

`Ledger.reserve` charges the worst case and returns a `Reservation`, which is locked until it is committed or closed.
The caller draws the noise, within one function or over days, and commits the result.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from terrine.errors import LedgerError
from terrine.privacy.accounting.events import Event, compose, from_json, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import covers, price
from terrine.privacy.ledger.account import Account, check_together
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.people import Mention, People, PeopleStore
from terrine.privacy.ledger.release_store import ReleaseStore, StoredArrays
from terrine.privacy.ledger.site_registry import SiteRegistry
from terrine.privacy.ledger.snapshot import task_in
from terrine.privacy.ledger.task import Task, as_recorded
from terrine.privacy.ledger.transaction import LedgerTransaction, Transactions, refuse_older

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class ReleaseRequest:
    """A requested release, see `Ledger.reserve`."""

    dataset: str
    release_id: str
    run: str
    worst_case: Event
    delta: float
    noise_kind: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    data: People | None = None
    tests: bool = False
    task: Task | None = None


Permit = Callable[[LedgerTransaction, ReleaseRequest], None]
"""Raises an error if a release may not be drawn. Called within a transaction, so it must not have side effects."""


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """A stored release, as returned by the ledger.

    Attributes:
        release_id: Identity of the release.
        arrays: Released arrays, by name.
        event: Cost of the release.
        digest: Keyed digest of arrays and event.
        reused: Whether the release was drawn before this call.
        epsilon_total: Exact ε of the dataset over all runs up to this release, with open reservations at their worst
            case. Later requests for the release return the same value.
        guarantee: ε that the account guarantees over all past and future runs (`Account.guarantee`).
        inputs: Digests of the inputs, by name. Private.
        task: The classes recorded with the reservation; None if the release depends on no labels.
    """

    release_id: str
    arrays: Arrays
    event: Event
    digest: str
    reused: bool
    epsilon_total: float
    guarantee: float | None
    inputs: Mapping[str, str] = field(default_factory=dict)
    task: Task | None = None


class Charged(NamedTuple):
    """Outcome of a reservation's transaction.

    Attributes:
        is_new: Whether the release was charged in this transaction.
        digest: Digest of the arrays if the release is committed.
        task: Recorded task.
    """

    is_new: bool
    digest: str | None
    task: Task | None


class Reservation:
    """A release whose worst case is charged, locked against all other processes and threads.

    If the reservation is closed without a commit, the worst case stays charged, and the release can be reserved again.

    Attributes:
        release: The release if it is committed, now or earlier. None: the caller must draw the noise and commit.
    """

    def __init__(self, protocol: "ReleaseProtocol", request: ReleaseRequest, lock: contextlib.ExitStack) -> None:
        self.release: StoredRelease | None = None
        self._protocol, self._request = protocol, request
        self._lock: contextlib.ExitStack | None = lock
        try:
            self._charged = protocol.charge(request)
            stored = protocol.stored(request, self._charged)
            if stored is not None:
                self._finish(stored, reused=True)
        except BaseException:
            self.close()
            raise

    def commit(self, arrays: Arrays, event: Event) -> StoredRelease:
        """Store the arrays, charge their cost, and free the lock.

        Args:
            arrays: Arrays to release, by name, drawn once.
            event: Their cost.

        Raises:
            LedgerError: If the reservation is closed, the event costs more than reserved, an array contains objects, or
                the file cannot be written. Nothing was released; the worst case stays charged.
        """
        if self._lock is None:
            raise LedgerError(f"The reservation of {self._request.release_id} is closed. Nothing was released.")
        return self._finish(self._protocol.store(self._request, arrays, event), reused=False)

    def _finish(self, stored: StoredArrays, *, reused: bool) -> StoredRelease:
        request = self._request
        total, guarantee = self._protocol.commit(request, stored)
        self.release = StoredRelease(
            request.release_id,
            stored.arrays,
            stored.event,
            stored.digest,
            reused,
            total,
            guarantee,
            stored.inputs,
            self._charged.task,
        )
        self.close()
        return self.release

    def close(self) -> None:
        """Release the lock without committing; the worst case stays charged. Idempotent."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ReleaseProtocol:
    """Steps of the releases of one ledger.

    Args:
        transactions: Transactions of the ledger.
        releases: Its stored releases.
        people: Digests of the records of earlier releases.
        registry: Registry of the data claimed by ledgers of the site, or None.
        address: Address of the ledger, for error messages of other ledgers.
        permit: Function that refuses releases without an approval; None to refuse none.
    """

    def __init__(
        self,
        transactions: Transactions,
        releases: ReleaseStore,
        people: PeopleStore,
        registry: SiteRegistry | None,
        address: str,
        permit: Permit | None = None,
    ) -> None:
        self._transactions, self._releases, self._registry = transactions, releases, registry
        self._people, self._address, self._permit = people, address, permit

    def charge(self, request: ReleaseRequest) -> Charged:
        """Charge the worst case unless the release is already reserved."""
        files, people = self._releases.files(), request.data  # files are listed first, so that each was reserved
        stored = self._people.write(people) if people is not None and len(people) else None

        def watched(transaction: LedgerTransaction) -> tuple[Charged, str, tuple[int, str]]:
            outcome = self._charge(transaction, request, stored, files)
            first = transaction.row(1)  # identifies the ledger, even after it is moved
            assert first is not None
            if outcome.digest is None and people is not None:
                # Claimed last, so that refused releases claim nothing.
                self._claim(transaction, first.mac, people)
            return outcome, first.mac, transaction.end()

        if stored is None or self._registry is None:
            return self._transactions.transact(lambda transaction: self._charge(transaction, request, stored, files))
        outcome, identity, end = self._transactions.transact(watched)
        if outcome.digest is None:
            self._registry.saw(identity, *end)
        return outcome

    def _charge(
        self,
        transaction: LedgerTransaction,
        request: ReleaseRequest,
        stored: tuple[str, People] | None,
        files: list[str],
    ) -> Charged:
        """Reserve within a transaction. files: stored releases before it started."""
        dataset, release_id = request.dataset, request.release_id
        account, snapshot = transaction.require(dataset), transaction.snapshot
        known, commit = transaction.find("reserve", release_id), transaction.find("commit", release_id)
        open_ = any(release_id in other.reserved for other in snapshot.accounts.values())
        if open_ != (known is not None and commit is None) or (commit is not None and known is None):
            raise LedgerError(
                f"Rows about the release {release_id} are missing: the ledger was changed by hand. Nothing was "
                "released. Restore the ledger from a backup."
            )
        if commit is None and self._permit is not None:
            self._permit(transaction, request)
        mention = None if stored is None else Mention(stored[0], "tested" if request.tests else "taught")
        is_news = stored is not None and mention not in account.people and commit is None
        if stored is not None and is_news:
            transaction.check_people(dataset, stored[1], self._people)
        task = request.task and as_recorded(account.tasks, request.task)
        if known is None:
            refuse_older(transaction, self._releases, files)
            check_together(snapshot.together(dataset), [request.worst_case], request.noise_kind)
            body: dict[str, Any] = {
                "event": to_json(request.worst_case),
                "noise": request.noise_kind,
                "run": request.run,
            }
            if mention is not None:
                body["people"] = list(mention)
            if task is not None:
                body |= {"edition": task.edition, "task": task.to_json()}
            transaction.append("reserve", dataset, release_id, body)
            return Charged(True, None, task)
        reserved = from_json(known.content["event"])
        if (
            known.dataset != dataset
            or known.content["noise"] != request.noise_kind
            or (commit is None and not covers(reserved, request.worst_case, account.budget.delta))
        ):
            raise LedgerError(
                f"The release {release_id} was reserved with another dataset, noise or worst case (row "
                f"{known.position}). The release ID must depend on all of its settings. Nothing was released."
            )
        task = task_in(known.content)
        if request.task is not None and (task is None or task.identity() != request.task.identity()):
            raise LedgerError(
                f"The release {release_id} was reserved for {task or 'no classes'}, not for {request.task}. Its "
                "identity must depend on its classes. Nothing was released."
            )
        if is_news and mention is not None:
            # Reserved but never drawn, and the data changed: the draw uses the current data.
            transaction.append("people", dataset, None, {"people": list(mention)})
        return Charged(False, None if commit is None else str(commit.content["digest"]), task)

    def _claim(self, transaction: LedgerTransaction, identity: str, people: People) -> None:
        """Register the data at the site as belonging to this ledger, unless the ledger is an old copy."""
        assert self._registry is not None
        seen = self._registry.claim(identity, self._address, people)
        row = None if seen is None else transaction.row(seen[0])
        if seen is not None and (row is None or row.mac != seen[1]):
            raise LedgerError(
                f"The ledger lacks row {seen[0]}, which this site has seen: it is an old copy and lacks what was spent "
                "since. Nothing was released. Restore the latest copy."
            )

    def stored(self, request: ReleaseRequest, charged: Charged) -> StoredArrays | None:
        """Return the arrays of a release drawn earlier, or None."""
        release_id = request.release_id
        stored = self._releases.read(release_id, request.noise_kind)
        if charged.digest is not None and (stored is None or stored.digest != charged.digest):
            raise LedgerError(
                f"The stored release {self._releases.path(release_id)} is missing or differs from the committed one. "
                "It cannot be drawn again at no cost. Nothing was released. Restore the file from a backup."
            )
        if not charged.is_new:
            self._releases.clear(release_id)
        return stored

    def store(self, request: ReleaseRequest, arrays: Arrays, event: Event) -> StoredArrays:
        """Store the arrays with digests of their inputs."""
        if not covers(request.worst_case, event, request.delta):
            raise LedgerError(
                f"The release {request.release_id} would cost ε={round_up(price(event, request.delta)):g}, more than "
                f"the ε={round_up(price(request.worst_case, request.delta)):g} reserved for it. Its mechanism's "
                "worst case is wrong. Nothing was released."
            )
        released = {name: np.asarray(array) for name, array in arrays.items()}
        return self._releases.write(request.release_id, request.noise_kind, released, event, request.inputs)

    def commit(self, request: ReleaseRequest, stored: StoredArrays) -> tuple[float, float | None]:
        """Record the realised cost unless it is recorded.

        Returns:
            ε of the dataset up to this release, and the guarantee of its account.
        """
        dataset, release_id, delta = request.dataset, request.release_id, request.delta
        body = {"digest": stored.digest, "event": to_json(stored.event), "noise": request.noise_kind}

        def work(transaction: LedgerTransaction) -> float:
            row = transaction.find("commit", release_id)
            if row is None:
                # The total after this row is part of the row, so that it is the same whenever it is requested.
                account = Account.from_json(transaction.require(dataset).to_json())
                account.finish(release_id, stored.event)
                total = price(account.used(), delta)
                figure = {"delta": delta, "epsilon": None if math.isinf(total) else total}
                transaction.append("commit", dataset, release_id, body | {"total": figure})
                return total
            figure = row.content["total"]
            if figure["delta"] == delta:
                return math.inf if figure["epsilon"] is None else float(figure["epsilon"])
            # Requested at another δ: computed from all rows.
            return price(compose(*costs_of(dataset, transaction.rows()[: row.position]).values()), delta)

        return self._transactions.transact(
            lambda transaction: (work(transaction), transaction.require(dataset).guarantee())
        )


def costs_of(dataset: str, rows: Iterable[Row]) -> dict[str, Event]:
    """Return the cost of each release about a dataset, in order; uncommitted ones at their worst case."""
    return {
        row.release_id: from_json(row.content["event"])
        for row in rows
        if row.dataset == dataset and row.kind in ("reserve", "commit") and row.release_id is not None
    }
