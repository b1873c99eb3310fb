"""Ledger of all releases about each dataset, and the only way to make new ones.

Drawing noise twice costs twice. A release therefore has an identity and four steps:

1. *reserve*: one serialisable transaction checks the dataset's budget over all runs and charges the worst case. If the
   budget would be exceeded, nothing is drawn.
2. *draw*: the caller draws the noise, once.
3. *store*: the arrays are written atomically, sealed, and never replaced.
4. *commit*: the realised cost and the digest of the arrays are recorded. The realised cost replaces the worst case.

`Ledger.reserve` is the first step, and `Reservation.commit` the last two (`release_protocol`).

Requesting the same identity again returns the stored arrays at no cost. If a process dies between two steps, the worst
case stays charged, and a retry continues from the last finished step. A lock protects the identity during a release and
is freed if its holder dies.

Costs are composed exactly from the recorded events. ε of different runs are never added up.

    >>> ledger = Ledger("sqlite:///ledger.db", Path("releases"), load_or_create_key(Path("key")))
    >>> ledger.register("fingerprint", epsilon=6.0, delta=1e-5, mode="release")
"""

import contextlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine.errors import LedgerError, SettingError
from terrine.files import private_folder
from terrine.privacy.accounting.events import Event
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import Account, Budget
from terrine.privacy.ledger.chain import Row, Tip, ledger_lock
from terrine.privacy.ledger.database import Database
from terrine.privacy.ledger.people import PUBLIC, Mention, People, PeopleStore, among, distinct_values, mentioned
from terrine.privacy.ledger.release_protocol import (
    Arrays,
    Permit,
    ReleaseProtocol,
    ReleaseRequest,
    Reservation,
    StoredRelease,
    costs_of,
)
from terrine.privacy.ledger.release_store import ReleaseStore
from terrine.privacy.ledger.site_key import account_of, load_or_create_key, release_identity
from terrine.privacy.ledger.site_registry import SiteRegistry
from terrine.privacy.ledger.task import Task, recorded
from terrine.privacy.ledger.transaction import LedgerTransaction, Transactions, verify, witness

__all__ = ["Budget", "Ledger", "StoredRelease", "load_or_create_key", "release_identity"]


class Ledger:
    """Ledger of a site: rows in a database and releases in a folder, sealed with one key.

    Formal guarantees for every dataset registered with mode `release` and a budget, even if processes crash or race:
    - the composition of all its releases is within its budget, as a filter over adaptively chosen runs;
    - no identity is released with two different draws;
    - no release uses replayed noise.

    Args:
        url: `sqlite:///path` or `postgresql://…`.
        store: Folder of releases and chain head, on a file system with hard links. Machines that share a PostgreSQL
            ledger also share this folder.
        key: Key of the site, see `load_or_create_key`.
        patience: Seconds to wait for another process's transaction.
        draw_patience: Seconds to wait for another process that draws the same release.
        create: Create the ledger if it is missing.
        site: Folder of the site registry, which records about which data each ledger released; None for no registry.
        permit: Called in the transaction that charges a release, and before an already reserved one is drawn; raises
            an error to refuse it.

    Raises:
        LedgerError: If the ledger cannot be opened, is damaged, or was edited.
    """

    def __init__(
        self,
        url: str,
        store: Path,
        key: bytes,
        *,
        patience: float = 60.0,
        draw_patience: float = 1800.0,
        create: bool = True,
        site: Path | None = None,
        permit: Permit | None = None,
    ) -> None:
        self._key = key
        self._registry = None if site is None else SiteRegistry(Path(site))
        self._store = Path(store)
        self._draw_patience = draw_patience
        self._releases = ReleaseStore(self._store, key)
        try:
            if create:
                private_folder(self._store)
        except OSError as error:
            raise LedgerError(f"The folder of releases {self._store} cannot be created: {error.strerror}.") from error
        self._database = Database(url, patience=patience, create=create)
        self._transactions = Transactions(self._database, Tip(self._store / "head.json", key), key)
        address = f"{self._database.name} with {self._store}"
        self._people = PeopleStore(self._store / "people", key)
        self._protocol = ReleaseProtocol(
            self._transactions, self._releases, self._people, self._registry, address, permit
        )

    def register(
        self,
        dataset: str,
        epsilon: float | None,
        delta: float,
        mode: Literal["release", "replay"],
        *,
        unit: str | None = None,
    ) -> None:
        """Open the account of a dataset, unless it exists.

        Args:
            dataset: Digest of the account's name.
            epsilon: Budget over all runs; None for no limit (public benchmarks).
            delta: δ of the budget.
            mode: `release` for secure noise only, `replay` to allow replayed noise.
            unit: Protected unit: `record`, `group` or `label`. With a budget, an account has a single unit, because ε
                for records guarantees nothing for groups, and ε for labels nothing for images.

        Raises:
            LedgerError: If the account has another budget, mode or unit. Without a budget, δ and unit may differ.
            SettingError: If the budget is invalid.
        """
        if mode not in ("release", "replay"):
            raise SettingError(f"The mode of a dataset must be 'release' or 'replay', got {mode!r}.")
        wanted = Budget(dataset, _checked_epsilon(epsilon), _checked_delta(delta), mode)

        def work(transaction: LedgerTransaction) -> None:
            known = transaction.account(dataset)
            if known is None:
                body: dict[str, Any] = {"epsilon": wanted.epsilon, "delta": wanted.delta, "mode": mode}
                if unit is not None:
                    body["unit"] = unit
                if transaction.end()[0] == 0:
                    body["ledger"] = secrets.token_hex(16)  # makes the first row unique to this ledger
                transaction.append("register", dataset, None, body)
            else:
                known.check_same(wanted, unit)

        self._transactions.transact(work)

    def set_budget(self, dataset: str, epsilon: float | None, delta: float | None = None) -> None:
        """Change a dataset's budget over all runs. Changing a budget does not change what was spent.

        Args:
            dataset: Dataset whose account is registered in this ledger.
            epsilon: New budget, or None for no limit.
            delta: New δ, or None to keep it.

        Raises:
            LedgerError: If the dataset is not registered.
            SettingError: If the budget is invalid.
        """
        new_epsilon = _checked_epsilon(epsilon)
        new_delta = None if delta is None else _checked_delta(delta)

        def work(transaction: LedgerTransaction) -> None:
            old = transaction.require(dataset).budget
            body = {"epsilon": new_epsilon, "delta": old.delta if new_delta is None else new_delta}
            transaction.append("budget", dataset, None, body)

        self._transactions.transact(work)

    def link(self, dataset: str, other: str) -> None:
        """Link two accounts permanently: past and future releases of either are charged to both budgets.

        Raises:
            LedgerError: If either is not registered, they protect different units, or they are already linked.
        """

        def work(transaction: LedgerTransaction) -> None:
            one, two = transaction.require(dataset), transaction.require(other)
            if one.unit != two.unit and None not in (one.unit, two.unit):
                raise LedgerError(
                    f"One account protects each {one.unit}, the other each {two.unit}: their ε do not add up. Nothing "
                    "was changed."
                )
            if dataset == other or other in one.linked:
                raise LedgerError("These accounts are identical or already linked. Nothing was changed.")
            transaction.append("link", dataset, None, {"with": other})

        self._transactions.transact(work)

    def record(self, kind: Literal["request", "decision"], dataset: str, body: Mapping[str, Any]) -> Row:
        """Add a row about an approval. It changes no account.

        Raises:
            LedgerError: If the dataset is not registered.
        """

        def work(transaction: LedgerTransaction) -> Row:
            transaction.require(dataset)
            return transaction.append(kind, dataset, None, body)

        return self._transactions.transact(work)

    def recorded(self, *kinds: str) -> list[Row]:
        """Return the rows of these kinds in order, each verified."""
        rows = self._transactions.transact(lambda transaction: [transaction.verified(kind=kind) for kind in kinds])
        return sorted((row for each in rows for row in each), key=lambda row: row.position)

    def check_people(self, dataset: str, people: People) -> None:
        """Make the checks of `reserve` and `publish` on records before any work. Nothing is stored or charged.

        Args:
            dataset: The account, which may not be registered yet.
            people: Digests of its records, including those to be published.

        Raises:
            LedgerError: If another account or ledger of the site released about some of the records, a later edition
                has no ids, or records protected by a release of the account would be published.
        """
        if len(people):
            keyed = people.keyed(self._key)
            self._transactions.transact(lambda transaction: self._check(transaction, dataset, people, keyed))

    def publish(self, dataset: str, people: People) -> None:
        """Register records as published, before they are written.

        Raises:
            LedgerError: As `check_people`. If this method raises an error, the caller must not write the public
                records.
        """
        file, keyed = self._people.write(people)
        mention = Mention(file, "published")

        def work(transaction: LedgerTransaction) -> None:
            known = transaction.require(dataset).people
            self._check(transaction, dataset, people, keyed)
            if mention not in known:
                transaction.append("people", dataset, None, {"people": list(mention)})

        self._transactions.transact(work)

    def _check(self, transaction: LedgerTransaction, dataset: str, people: People, keyed: People) -> None:
        """Check records within a transaction. `keyed` are the same digests under the ledger's key."""
        transaction.check_people(dataset, keyed, self._people)
        transaction.check_publication(dataset, keyed, self._people)
        if self._registry is not None:
            first = transaction.row(1)
            self._registry.check("" if first is None else first.mac, people)

    def settings_before(self, dataset: str) -> dict[str, Any]:
        """Return the settings that selected the public records in the account's last run, by name."""
        account = self.account(dataset)
        if account is None or not account.people:
            return {}
        return dict(self._people.read(account.people[-1].file).settings)

    def published(self, dataset: str, people: People | None = None) -> int:
        """Return the number of records that the account and linked accounts published over all runs.

        Args:
            dataset: The account.
            people: Digests of records; the public ones among them are not counted.
        """
        found = [
            public.contents[public.sides == PUBLIC, 0]
            for account in self.together(dataset)
            for public, _ in mentioned(self._people, account.people, "published")
        ]
        everyone = distinct_values(np.concatenate([*found, np.empty(0, np.uint64)]))
        if people is None:
            return len(everyone)
        keyed = people.keyed(self._key)
        own = distinct_values(keyed.contents[keyed.sides == PUBLIC, 0])
        return int((~among(everyone, own)).sum())

    def budget(self, dataset: str) -> Budget:
        """Return the dataset's budget over all runs."""
        return self._required(dataset).budget

    def guarantee(self, dataset: str) -> float | None:
        """Return the ε that the account guarantees over all runs, see `Account.guarantee`."""
        return self._required(dataset).guarantee()

    def costs(self, dataset: str) -> dict[str, Event]:
        """Return the cost of each release in order of reservation; uncommitted ones at their worst case."""
        self._required(dataset)
        return costs_of(dataset, self.rows())

    def events(self, dataset: str) -> list[Event]:
        """Return the cost of each release of the dataset, see `costs`."""
        return list(self.costs(dataset).values())

    def spent(self, dataset: str, delta: float) -> float:
        """Return the exact ε at `delta` of all releases on the dataset and on linked accounts."""
        return price(self._required(dataset).used(), delta)

    def reserve(
        self,
        *,
        dataset: str,
        release_id: str,
        run: str,
        worst_case: Event,
        delta: float,
        noise_kind: str,
        inputs: Mapping[str, str] | None = None,
        data: People | None = None,
        tests: bool = False,
        task: Task | None = None,
    ) -> Reservation:
        """Charge the worst case of a release, and lock it until the reservation is committed or closed.

            with ledger.reserve(...) as reservation:
                release = reservation.release or reservation.commit(*draw())

        Validate inputs first: if the draw fails, the worst case stays charged. An identity that was released before
        costs nothing; its reservation contains the stored release.

        Args:
            dataset: The registered dataset.
            release_id: Identity of the release, see `release_identity`.
            run: Name of the run, for reports.
            worst_case: The highest possible cost.
            delta: δ of `StoredRelease.epsilon_total`. The budget is checked at the dataset's own δ.
            noise_kind: `secure` or `replay`.
            inputs: Digests of the inputs of the draw, by name, sealed with the release. These digests tell the operator
                whether the data changed under one identity. No decision depends on them.
            data: Digests of the records, if known. Other accounts and ledgers of the site then refuse these records,
                and this account never publishes the private ones.
            tests: Whether the release is also about the held-out records.
            task: The classes of the release, recorded with the reservation; None if it depends on no labels.

        Raises:
            BudgetError: If the budget does not allow the worst case. Nothing was charged.
            LedgerError: If the ledger or the stored release is damaged, locked or contradicts the arguments; if the
                data belong to another account or ledger; if undeclared classes differ from those of the edition; or if
                noise is replayed in an account for releases. Nothing was released.
        """
        if noise_kind not in ("secure", "replay"):
            raise SettingError(f"noise_kind must be 'secure' or 'replay', got {noise_kind!r}.")
        request = ReleaseRequest(
            dataset, release_id, run, worst_case, delta, noise_kind, inputs or {}, data, tests, task
        )
        with contextlib.ExitStack() as lock:
            lock.enter_context(ledger_lock(self._releases.path(release_id).with_suffix(".lock"), self._draw_patience))
            lock.enter_context(self._database.exclusive(release_id, self._draw_patience))
            return Reservation(self._protocol, request, lock.pop_all())

    def release(self, *, draw: Callable[[], tuple[Arrays, Event]], **request: Any) -> StoredRelease:
        """Reserve, draw and commit a release, or return the stored one.

        Args:
            draw: Draws the noise and returns the arrays to release with their cost. This function is called at most
                once.
            request: Arguments of `reserve`, which raises the same errors.
        """
        with self.reserve(**request) as reservation:
            return reservation.release or reservation.commit(*draw())

    def witness(self) -> str:
        """Return one line about the current end of the ledger, see `transaction.witness`."""
        return witness(self._transactions)

    def verify(self, witness: str = "") -> int:
        """Check all rows and stored releases, and return the number of rows, see `transaction.verify`."""
        return verify(self._transactions, self._releases, self._people, witness)

    def account(self, dataset: str) -> Account | None:
        """Return a dataset's account, or None if it is not registered."""
        return self._transactions.transact(lambda transaction: transaction.account(dataset))

    def task(self, dataset: str, edition: str, target: str | None = None) -> Task | None:
        """Return the first task of an account for this edition and this label column of a table, or None."""
        account = self.account(dataset)
        return None if account is None else recorded(account.tasks, edition, target)

    def together(self, dataset: str) -> list[Account]:
        """Return an account and those linked with it; an empty list if it is not registered."""

        def work(transaction: LedgerTransaction) -> list[Account]:
            known = transaction.account(dataset) is not None
            return transaction.snapshot.together(dataset) if known else []

        return self._transactions.transact(work)

    def reserved(self, release_ids: Iterable[str]) -> set[str]:
        """Return which of these releases are reserved or committed."""
        wanted = list(release_ids)
        return self._transactions.transact(lambda rows: {name for name in wanted if rows.find("reserve", name)})

    def committed(self, release_id: str) -> bool:
        """Return whether a release is committed."""
        return self._transactions.transact(lambda rows: rows.find("commit", release_id) is not None)

    def stored(self, release_id: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a committed release after checking their seal. Nothing is drawn or charged.

        Raises:
            LedgerError: If the release is not committed, or its file is missing or damaged.
        """
        reserved, committed = self._transactions.transact(
            lambda transaction: [transaction.find(kind, release_id) for kind in ("reserve", "commit")]
        )
        found = self._releases.read(release_id, reserved.content["noise"]) if reserved and committed else None
        if committed is None or found is None or found.digest != committed.content["digest"]:
            raise LedgerError(f"The release {release_id} is not committed, or its file is missing.")
        return found.arrays

    def rows(self) -> list[Row]:
        """Return all rows in order, verified."""
        return self._transactions.transact(lambda transaction: transaction.rows())

    def named(self, name: str) -> str:
        """Return the digest of an account's name in this ledger."""
        return account_of(self._key, name)

    def datasets(self) -> list[str]:
        """Return the registered datasets, in order of registration."""
        return self._transactions.transact(lambda transaction: list(transaction.snapshot.accounts))

    def _required(self, dataset: str) -> Account:
        return self._transactions.transact(lambda transaction: transaction.require(dataset))


def _checked_epsilon(epsilon: float | None) -> float | None:
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise SettingError(f"A budget must be a finite epsilon greater than 0, or None, got {epsilon!r}.")
    return None if epsilon is None else float(epsilon)


def _checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise SettingError(f"delta must be strictly between 0 and 1, got {delta!r}.")
    return float(delta)
