"""The ledger: what was released about a dataset over all runs, and the only door through which more may be.

A noisy answer that is drawn twice costs twice. So a release has an identity, and goes through four steps:

1. *reserve*: in one serialisable transaction the budget of the dataset over all runs is checked and the worst case of
   the release is charged. Over budget: refused, and nothing is drawn.
2. *draw*: the caller draws the noise, once.
3. *store*: the arrays are written whole, sealed, and never replaced.
4. *commit*: the realised cost and the digest of the arrays are recorded; from here on the realised cost counts.

`Ledger.reserve` is the first step and `Reservation.commit` the last two (`release_protocol`).

The same identity again returns the stored arrays at no cost. A process that dies between two steps leaves the worst
case charged; running again goes on from the last finished step. While a release is under way its identity is locked,
and the lock dies with its holder.

Costs are composed from the recorded events, exactly; ε of different runs are never added up.

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
    """A site's ledger: its rows in a database, its releases in a folder, both sealed with one key.

    Formal guarantees, for every dataset registered with mode `release` and a budget, whatever processes crash or race:
    - the composition of everything released about it is within its budget, as a filter over adaptively chosen runs;
    - no identity is released with two different draws;
    - nothing drawn from replayed noise is released about it.

    Args:
        url: `sqlite:///path` or `postgresql://…`.
        store: Folder of the releases and of the chain's head; on one file system with hard links. Machines that share
            a PostgreSQL ledger share this folder too.
        key: The site's key, see `load_or_create_key`.
        patience: Seconds to wait for another process's transaction.
        draw_patience: Seconds to wait for another process that is drawing the same release.
        create: Whether to begin a new ledger where there is none.
        site: Folder in which the site remembers which ledger data were released through, whatever this one's address,
            key and store; None where there is no such memory.

    Raises:
        LedgerError: the ledger cannot be opened, is damaged, or was changed by hand.
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
            raise LedgerError(f"The folder of releases {self._store} cannot be made: {error.strerror}.") from error
        self._database = Database(url, patience=patience, create=create)
        self._transactions = Transactions(self._database, Tip(self._store / "head.json", key), key)
        address = f"{self._database.name} with {self._store}"
        self._people = PeopleStore(self._store / "people", key)
        self._protocol = ReleaseProtocol(self._transactions, self._releases, self._people, self._registry, address)

    def register(
        self,
        dataset: str,
        epsilon: float | None,
        delta: float,
        mode: Literal["release", "replay"],
        *,
        unit: str | None = None,
    ) -> None:
        """Open the account of a dataset. The same again changes nothing; without a budget, δ and unit may differ.

        Args:
            epsilon: Budget over all runs; None to record and compose without ever refusing (public benchmark data).
            mode: `release` for secure noise only, `replay` to allow replayed noise too.
            unit: What its releases protect: `record`, `group`, `label`. ε of records says nothing about a group, and
                that of labels nothing about images, so an account with a budget keeps to one.

        Raises:
            LedgerError: it is registered with another budget, mode or unit.
            SettingError: an impossible budget.
        """
        if mode not in ("release", "replay"):
            raise SettingError(f"A dataset is registered for 'release' or 'replay', got {mode!r}.")
        wanted = Budget(dataset, _checked_epsilon(epsilon), _checked_delta(delta), mode)

        def work(transaction: LedgerTransaction) -> None:
            known = transaction.account(dataset)
            if known is None:
                body: dict[str, Any] = {"epsilon": wanted.epsilon, "delta": wanted.delta, "mode": mode}
                if unit is not None:
                    body["unit"] = unit
                if transaction.end()[0] == 0:
                    body["ledger"] = secrets.token_hex(16)  # no two ledgers begin alike
                transaction.append("register", dataset, None, body)
            else:
                known.check_same(wanted, unit)

        self._transactions.transact(work)

    def set_budget(self, dataset: str, epsilon: float | None, delta: float | None = None) -> None:
        """Change a dataset's budget over all runs; what was spent stays spent.

        Args:
            epsilon: The new budget, None for no limit.
            delta: The new δ; as before where None.

        Raises:
            LedgerError: the dataset is not registered.
            SettingError: an impossible budget.
        """
        new_epsilon = _checked_epsilon(epsilon)
        new_delta = None if delta is None else _checked_delta(delta)

        def work(transaction: LedgerTransaction) -> None:
            old = transaction.require(dataset).budget
            body = {"epsilon": new_epsilon, "delta": old.delta if new_delta is None else new_delta}
            transaction.append("budget", dataset, None, body)

        self._transactions.transact(work)

    def link(self, dataset: str, other: str) -> None:
        """Add two accounts up, for ever: what either releases, and has released, counts in both, against each budget.

        Raises:
            LedgerError: one is not registered, they protect different units, or they are linked already.
        """

        def work(transaction: LedgerTransaction) -> None:
            one, two = transaction.require(dataset), transaction.require(other)
            if one.unit != two.unit and None not in (one.unit, two.unit):
                raise LedgerError(
                    f"One account protects a {one.unit}, the other a {two.unit}: their ε do not add up. Nothing was "
                    "changed."
                )
            if dataset == other or other in one.linked:
                raise LedgerError("These are one account already, or linked. Nothing was changed.")
            transaction.append("link", dataset, None, {"with": other})

        self._transactions.transact(work)

    def check_people(self, dataset: str, people: People) -> None:
        """Refuse records as `release` and `publish` would, before any work; nothing is stored or charged.

        Args:
            dataset: The account, registered or not.
            people: Digests of its records, and of those that are to be published.

        Raises:
            LedgerError: another account, or another ledger of the site, released about some of the records; a later
                edition has no ids; or records would be published that a release of the account protects.
        """
        if len(people):
            keyed = people.keyed(self._key)
            self._transactions.transact(lambda transaction: self._check(transaction, dataset, people, keyed))

    def publish(self, dataset: str, people: People) -> None:
        """Record, before they are written, that records are published; refuse those that a release protects.

        What was published stays public. The same again changes nothing.

        Raises:
            LedgerError: see `check_people`. Nothing may be written then.
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
        """Refuse records within a transaction, see `check_people`. keyed: the same digests under the ledger's key."""
        transaction.check_people(dataset, keyed, self._people)
        transaction.check_publication(dataset, keyed, self._people)
        if self._registry is not None:
            first = transaction.row(1)
            self._registry.check("" if first is None else first.mac, people)

    def settings_before(self, dataset: str) -> dict[str, Any]:
        """Return the settings that decided which records are public in the account's last run, by name."""
        account = self.account(dataset)
        if account is None or not account.people:
            return {}
        return dict(self._people.read(account.people[-1].file).settings)

    def published(self, dataset: str, people: People | None = None) -> int:
        """Return how many records the account, or one that is linked with it, has published over all runs.

        Args:
            people: Digests of records; those that are public among them do not count.
        """
        found = [
            public.contents[public.sides == PUBLIC, 0]
            for account in self.together(dataset)
            for public, _ in mentioned(self._people, account.people, "published")
        ]
        everybody = distinct_values(np.concatenate([*found, np.empty(0, np.uint64)]))
        if people is None:
            return len(everybody)
        keyed = people.keyed(self._key)
        own = distinct_values(keyed.contents[keyed.sides == PUBLIC, 0])
        return int((~among(everybody, own)).sum())

    def budget(self, dataset: str) -> Budget:
        """The dataset's budget over all runs."""
        return self._required(dataset).budget

    def guarantee(self, dataset: str) -> float | None:
        """The ε that the dataset's account holds to over all runs, see `Account.guarantee`."""
        return self._required(dataset).guarantee()

    def costs(self, dataset: str) -> dict[str, Event]:
        """What was spent on the dataset by each release, in the order of reservation, from all rows.

        A release that is reserved and not committed counts with its worst case.
        """
        self._required(dataset)
        return costs_of(dataset, self.rows())

    def events(self, dataset: str) -> list[Event]:
        """What was spent on the dataset, one event a release: see `costs`."""
        return list(self.costs(dataset).values())

    def spent(self, dataset: str, delta: float) -> float:
        """ε at `delta` of everything in `events`, and of linked accounts, exactly composed over all runs."""
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

        Check inputs before: if the draw fails, the worst case stays charged. An identity that was released before
        costs nothing; its reservation has the stored release.

        Args:
            release_id: The release's identity, see `release_identity`.
            worst_case: The highest possible cost.
            delta: δ at which `StoredRelease.epsilon_total` is given. The budget is checked at the dataset's own δ.
            noise_kind: `secure` or `replay`.
            inputs: Digests of the inputs of the draw, by name. They are sealed with the release, so that the operator
                learns whether the data changed under one identity; no decision depends on them.
            data: Digests of the records that are released about, if they are known. From then on other accounts and
                ledgers of the site are refused them, and this account never publishes those that are private.
            tests: Whether the release is about the held-out records, too.
            task: The classes that the release is about; None if it depends on no labels. They are recorded with the
                reservation.

        Raises:
            BudgetError: the dataset's budget does not allow the worst case; nothing was charged.
            LedgerError: the ledger or the stored release is damaged, locked, or contradicts the arguments, the data
                belong to another account or ledger, undeclared classes are not those of the edition, or the noise is
                replayed on a dataset kept for releases; nothing was released.
        """
        if noise_kind not in ("secure", "replay"):
            raise SettingError(f"Noise is 'secure' or 'replay', got {noise_kind!r}.")
        request = ReleaseRequest(
            dataset, release_id, run, worst_case, delta, noise_kind, inputs or {}, data, tests, task
        )
        with contextlib.ExitStack() as lock:
            lock.enter_context(ledger_lock(self._releases.path(release_id).with_suffix(".lock"), self._draw_patience))
            lock.enter_context(self._database.exclusive(release_id, self._draw_patience))
            return Reservation(self._protocol, request, lock.pop_all())

    def release(self, *, draw: Callable[[], tuple[Arrays, Event]], **request: Any) -> StoredRelease:
        """Reserve, draw and commit a release, or return it if it was made before.

        Args:
            draw: Draws the noise and returns the arrays to release with their cost. Called at most once.
            request: The arguments of `reserve`, which raises the same errors.
        """
        with self.reserve(**request) as reservation:
            return reservation.release or reservation.commit(*draw())

    def witness(self) -> str:
        """One line about how far the ledger goes now, see `verification.witness`."""
        return witness(self._transactions)

    def verify(self, witness: str = "") -> int:
        """Check all there is, see `verification.verify`; return how many rows there are."""
        return verify(self._transactions, self._releases, self._people, witness)

    def account(self, dataset: str) -> Account | None:
        """What a dataset may spend and has spent; None where it is not registered."""
        return self._transactions.transact(lambda transaction: transaction.account(dataset))

    def task(self, dataset: str, edition: str, target: str | None = None) -> Task | None:
        """The first task that an account has a release about, in this edition and of this column of a table."""
        account = self.account(dataset)
        return None if account is None else recorded(account.tasks, edition, target)

    def together(self, dataset: str) -> list[Account]:
        """That account, and those that are linked with it; nothing where it is not registered."""

        def work(transaction: LedgerTransaction) -> list[Account]:
            known = transaction.account(dataset) is not None
            return transaction.snapshot.together(dataset) if known else []

        return self._transactions.transact(work)

    def reserved(self, release_ids: Iterable[str]) -> set[str]:
        """Those of these releases that are reserved, committed or not."""
        wanted = list(release_ids)
        return self._transactions.transact(lambda rows: {name for name in wanted if rows.find("reserve", name)})

    def committed(self, release_id: str) -> bool:
        """Return whether a release is made and recorded."""
        return self._transactions.transact(lambda rows: rows.find("commit", release_id) is not None)

    def stored(self, release_id: str) -> dict[str, NDArray[Any]]:
        """The arrays of a committed release, their seal checked, without anything being drawn or charged.

        Raises:
            LedgerError: it is not committed, or its file is missing or damaged.
        """
        reserved, committed = self._transactions.transact(
            lambda transaction: [transaction.find(kind, release_id) for kind in ("reserve", "commit")]
        )
        found = self._releases.read(release_id, reserved.content["noise"]) if reserved and committed else None
        if committed is None or found is None or found.digest != committed.content["digest"]:
            raise LedgerError(f"The release {release_id} is not committed, or its file is missing.")
        return found.arrays

    def rows(self) -> list[Row]:
        """All rows, verified, in order."""
        return self._transactions.transact(lambda transaction: transaction.rows())

    def named(self, name: str) -> str:
        """What this ledger knows the account of a name as, whether there is one or not."""
        return account_of(self._key, name)

    def datasets(self) -> list[str]:
        """The registered datasets, in order of registration."""
        return self._transactions.transact(lambda transaction: list(transaction.snapshot.accounts))

    def _required(self, dataset: str) -> Account:
        return self._transactions.transact(lambda transaction: transaction.require(dataset))


def _checked_epsilon(epsilon: float | None) -> float | None:
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise SettingError(f"A dataset's budget is a finite epsilon greater than 0, or none, got {epsilon!r}.")
    return None if epsilon is None else float(epsilon)


def _checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise SettingError(f"delta must lie strictly between 0 and 1, got {delta!r}.")
    return float(delta)
