"""The steps by which the ledger makes a release: reserve, draw and store, commit. Each may be taken again, and costs no
more then: `Ledger.release` goes on from the last that was finished.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from terrine.errors import LedgerError
from terrine.privacy.accounting.events import Event, compose, from_json, to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import covers, price
from terrine.privacy.ledger.account import Account, check_together
from terrine.privacy.ledger.chain import Row
from terrine.privacy.ledger.data import Fingerprint
from terrine.privacy.ledger.release_store import ReleaseStore, StoredArrays
from terrine.privacy.ledger.site import SiteMemory
from terrine.privacy.ledger.standing import task_in
from terrine.privacy.ledger.task import Task, as_recorded
from terrine.privacy.ledger.transaction import LedgerTransaction, Transactions
from terrine.privacy.ledger.verification import refuse_older


class Reserved(NamedTuple):
    """A reservation.

    Attributes:
        is_new: Whether the release was charged just now.
        digest: Digest of its arrays if it is committed.
        task: What it is about, as the ledger recorded it.
    """

    is_new: bool
    digest: str | None
    task: Task | None


@dataclass(frozen=True)
class Asked:
    """A release as it was asked for, see `Ledger.release`."""

    dataset: str
    release_id: str
    run: str
    worst_case: Event
    delta: float
    noise_kind: str
    task: Task | None = None


class Steps:
    """The steps of one ledger.

    Args:
        memory: Which data the site's ledgers released about; None where there is no such memory.
        address: Where the ledger lies, for errors of others.
    """

    def __init__(
        self, transactions: Transactions, releases: ReleaseStore, memory: SiteMemory | None, address: str, key: bytes
    ) -> None:
        self._transactions, self._releases, self._memory = transactions, releases, memory
        self._address, self._key = address, key

    def reserve(self, asked: Asked, sketch: NDArray[np.uint64] | None) -> Reserved:
        """Charge the worst case unless the release is reserved. sketch: of the data, where they are known."""
        # An empty sketch says nothing.
        data = None if sketch is None or not len(sketch) else Fingerprint.of(sketch, self._key)
        there = self._releases.files()  # before the transaction: each of them was reserved by then

        def work(transaction: LedgerTransaction) -> Reserved:
            return self._charge(transaction, asked, data, there)

        def watched(transaction: LedgerTransaction) -> tuple[Reserved, str, tuple[int, str]]:
            outcome = work(transaction)
            first = transaction.row(1)  # by which a ledger is known, wherever it is moved to
            assert first is not None
            if outcome.is_new and sketch is not None:
                # The last that can refuse, so that nothing is claimed for a release that is not made.
                self._claim(transaction, first.mac, sketch)
            return outcome, first.mac, transaction.end()

        if data is None or self._memory is None:
            return self._transactions.transact(work)
        outcome, identity, end = self._transactions.transact(watched)
        if outcome.is_new:
            self._memory.saw(identity, *end)
        return outcome

    def _charge(
        self, transaction: LedgerTransaction, asked: Asked, data: Fingerprint | None, there: list[str]
    ) -> Reserved:
        """Reserve within a transaction. there: the files of releases before it began."""
        dataset, release_id = asked.dataset, asked.release_id
        account, standing = transaction.require(dataset), transaction.standing
        known, commit = transaction.find("reserve", release_id), transaction.find("commit", release_id)
        open_ = any(release_id in other.reserved for other in standing.accounts.values())
        if open_ != (known is not None and commit is None) or (commit is not None and known is None):
            raise LedgerError(
                f"Rows about the release {release_id} are missing: they were changed by hand. Nothing was "
                "released; restore the ledger from a backup."
            )
        task = asked.task and as_recorded(account.tasks, asked.task)
        if known is None:
            refuse_older(transaction, self._releases, there)
            check_together(standing.together(dataset), [asked.worst_case], asked.noise_kind)
            worst = to_json(asked.worst_case)
            body = {"event": worst, "noise": asked.noise_kind, "run": asked.run}
            if data is not None:
                transaction.claim(dataset, data)
                body["data"] = data.name
            if task is not None:
                body |= {"edition": task.edition, "task": task.to_json()}
            transaction.append("reserve", dataset, release_id, body)
            return Reserved(True, None, task)
        if (
            known.dataset != dataset
            or known.content["noise"] != asked.noise_kind
            or (
                commit is None and not covers(from_json(known.content["event"]), asked.worst_case, account.budget.delta)
            )
        ):
            raise LedgerError(
                f"The release {release_id} was reserved for another dataset, noise or worst case (row "
                f"{known.position}): an identity must cover everything that decides what is released. Nothing was "
                "released."
            )
        task = task_in(known.content)
        if asked.task is not None and (task is None or task.identity() != asked.task.identity()):
            raise LedgerError(
                f"The release {release_id} was reserved for {task or 'no classes'}, not for {asked.task}: an identity "
                "must cover the classes that a release is about. Nothing was released."
            )
        return Reserved(False, None if commit is None else str(commit.content["digest"]), task)

    def _claim(self, transaction: LedgerTransaction, identity: str, sketch: NDArray[np.uint64]) -> None:
        """Have the site remember that the data are this ledger's, which is the latest copy of it."""
        assert self._memory is not None
        seen = self._memory.claim(identity, self._address, sketch)
        row = None if seen is None else transaction.row(seen[0])
        if seen is not None and (row is None or row.mac != seen[1]):
            raise LedgerError(
                f"This site saw the ledger go on to a row {seen[0]} that it does not have: it is a copy of another "
                "time, which does not know what was spent since. Nothing was released; restore the latest copy."
            )

    def draw(
        self, asked: Asked, draw: Callable[[], tuple[dict[str, NDArray[Any]], Event]], inputs: Mapping[str, str]
    ) -> StoredArrays:
        """Draw the noise, and store what is released with digests of what it was drawn from."""
        arrays, event = draw()
        if not covers(asked.worst_case, event, asked.delta):
            raise LedgerError(
                f"The release {asked.release_id} would cost ε={round_up(price(event, asked.delta)):g}, more than the "
                f"ε={round_up(price(asked.worst_case, asked.delta)):g} reserved for it: its mechanism's worst case is "
                "wrong. Nothing was released."
            )
        released = {name: np.asarray(array) for name, array in arrays.items()}
        return self._releases.write(asked.release_id, asked.noise_kind, released, event, inputs)

    def commit(self, asked: Asked, stored: StoredArrays) -> float:
        """Record the realised cost unless it is recorded; ε of the dataset up to and including this release."""
        dataset, release_id, delta = asked.dataset, asked.release_id, asked.delta
        body = {"digest": stored.digest, "event": to_json(stored.event), "noise": asked.noise_kind}

        def work(transaction: LedgerTransaction) -> float:
            row = transaction.find("commit", release_id)
            if row is None:
                # As it will be: the total is part of the row, so that the same is said whenever it is asked for.
                account = transaction.require(dataset)
                account = Account.from_json(account.to_json())
                account.finish(release_id, stored.event)
                total = price(account.used(), delta)
                said = {"delta": delta, "epsilon": None if math.isinf(total) else total}
                transaction.append("commit", dataset, release_id, body | {"total": said})
                return total
            said = row.content.get("total", {})
            if said.get("delta") == delta:
                return math.inf if said["epsilon"] is None else float(said["epsilon"])
            # Asked for at another δ: from all rows.
            return price(compose(*costs_of(dataset, transaction.rows()[: row.position]).values()), delta)

        return self._transactions.transact(work)


def costs_of(dataset: str, rows: Iterable[Row]) -> dict[str, Event]:
    """What each release about a dataset cost, in their order: unfinished ones at their worst."""
    spent: dict[str, Event] = {}
    for row in rows:
        if row.dataset != dataset:
            continue
        if row.kind in ("reserve", "commit") and row.release_id is not None:
            spent[row.release_id] = from_json(row.content["event"])
    return spent
