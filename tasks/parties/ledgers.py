"""The ledgers of parties: the guardian's release, and a teacher party's own account.

The guardian reserves the worst case before the first noise is drawn, and charges the realised cost after the last
round. A teacher party may keep an account of its own people over all collaborations; each release is charged there
once, at its worst case, before the first report leaves, since only the guardian knows the realised cost.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tasks.parties.config import GuardianLedger, PartyConfig
from tasks.runtime.accounts import PEOPLE
from tasks.runtime.store import Folders
from terrine.errors import LedgerError, SettingError
from terrine.privacy.accounting.events import to_json
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import check_together
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.ledger.people import People
from terrine.privacy.ledger.release_protocol import Reservation
from terrine.privacy.ledger.site_key import account_of, canonical_json, keyed_digest, load_or_create_key
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise, check_slack


class PaidRelease:
    """A collaboration's release in its guardian's ledger.

    Attributes:
        identity: Keyed digest of terms, account and source of noise.
    """

    def __init__(self, config: PartyConfig) -> None:
        assert config.ledger is not None
        self._config, self._settings, self._terms = config, config.ledger, config.terms
        self._key = load_or_create_key(config.ledger.key)
        self._noise = _noise(config)
        self._account = account_in_ledger(self._key, config.ledger)
        self.identity = _release_id(self._key, config, self._account)
        self._round: int | None = None  # the round for which noise was drawn last
        self._reservation: Reservation | None = None

    def _ledger(self) -> Ledger:
        settings = self._settings
        return Ledger(settings.url, settings.store, self._key, draw_patience=self._config.patience, site=settings.site)

    def was_made(self) -> bool:
        """Return whether the release was made before; refuse one that cannot be paid for.

        Raises:
            SettingError: The terms cost more than their ε.
            BudgetError: The account cannot pay.
        """
        ledger = self._ledger()
        if ledger.committed(self.identity):
            return True
        terms = self._terms
        worst = terms.event()
        if not price(worst, terms.delta) <= terms.epsilon * (1 + 1e-9):  # up to rounding
            raise SettingError(
                f"The terms ask {terms.queried} queries, which may cost ε={round_up(price(worst, terms.delta)):g} at "
                f"δ={terms.delta:g}, more than the ε={terms.epsilon:g} agreed on. Ask fewer, or use more noise."
            )
        check_slack(terms.numbers, terms.epsilon, terms.delta)
        # An account for public benchmark data also accepts secure noise.
        public = self._account in ledger.datasets() and ledger.budget(self._account).mode == "replay"
        mode: Literal["release", "replay"] = "replay" if public or self._noise.kind == "replay" else "release"
        ledger.register(self._account, self._settings.epsilon, terms.delta, mode, unit=terms.unit)
        if not ledger.reserved([self.identity]):
            check_together(ledger.together(self._account), [worst], self._noise.kind)
        return False

    def open(self) -> StoredRelease | None:
        """Reserve the worst case unless it is reserved; return the release if it was made before."""
        if self._reservation is None:
            people = self._settings.people
            self._reservation = self._ledger().reserve(
                dataset=self._account,
                release_id=self.identity,
                run=self._settings.run or self._terms.called,
                worst_case=self._terms.event(),
                delta=self._terms.delta,
                noise_kind=self._noise.kind,
                data=None if people is None else People.load(people),
                task=_task(self._config),
            )
        return self._reservation.release

    def draw(self, number: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return noise for the guardian's sums of a round; the worst case is reserved before the first draw.

        Args:
            number: The round.
            kind: `threshold` or `counts` (`terrine.collaboration.protocol.guardian_round`).
            shape: Shape of the noise.
        """
        if self.open() is not None:
            raise LedgerError("The batch of queries was answered before. Nothing was drawn.")
        summed = self._terms.summed
        if self._round != number and summed is not None and self._config.replay_seed is not None:
            # All rounds replay one stream, even after a restart.
            self._noise = ReplayNoise(self._config.replay_seed)
            for earlier in range(number):
                summed.noise(self._noise, earlier)
        self._round = number
        if summed is not None and number < summed.passes:
            return summed.noise(self._noise, number).reshape(shape)
        agreement = self._terms.agreement(number)
        sigma = agreement.sigma_threshold if kind == "threshold" else agreement.sigma
        assert sigma is not None
        return self._noise.gaussian(shape, sigma)

    def settle(self, passed: np.ndarray) -> StoredRelease:
        """Charge the realised cost.

        Args:
            passed: bool [asked], the queries that are answered.
        """
        if self._reservation is None:
            raise LedgerError("Nothing was reserved, so nothing can be charged.")
        return self._reservation.commit({"passed": passed}, self._terms.event(int(passed.sum())))

    def abandon(self) -> None:
        """Close the reservation in this process; the reserved cost stays charged."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def record(self, release: StoredRelease, counted: list[str]) -> dict[str, Any]:
        """Return the public facts about a release, as JSON values; nothing about single votes.

        Args:
            release: The release.
            counted: Parties whose shares are in it.
        """
        terms = self._terms
        return {
            "release_id": release.release_id,
            "event": to_json(release.event),
            "digest": release.digest,
            "account": self._account,
            "epsilon_account": release.guarantee,
            "epsilon": round_up(price(release.event, terms.delta)),
            "delta": terms.delta,
            "epsilon_total": release.epsilon_total,
            "noise": self._noise.kind,
            "queried": terms.queried,
            "answered": int(release.arrays["passed"].sum()),
            "counted": counted,
            "edition": None if release.task is None else release.task.edition,
            "task": None if release.task is None else release.task.to_json(),
        }


def _noise(config: PartyConfig) -> NoiseSource:
    return SecureNoise() if config.replay_seed is None else ReplayNoise(config.replay_seed)


def _release_id(key: bytes, config: PartyConfig, account: str) -> str:
    if config.role == "teacher":
        content, purpose = {"terms": config.terms.identity(), "account": account}, "terrine release to a collaboration"
    else:
        content = {"terms": config.terms.identity(), "account": account, "noise": _noise(config).describe()}
        purpose = "terrine collaboration release"
    return keyed_digest(key, purpose, canonical_json(content))


def _task(config: PartyConfig) -> Task:
    """Return the task of a release: that of a trial's run, else the classes of the terms."""
    assert config.ledger is not None
    if (known := config.ledger.task) is not None:
        return Task.from_json(known["edition"], known)
    return Task(config.terms.edition, "classes", tuple(config.terms.class_names))


class OwnAccount:
    """The account of a teacher party that keeps a ledger; it is created if necessary."""

    def __init__(self, config: PartyConfig) -> None:
        assert config.ledger is not None
        self._config, self._settings, self._terms = config, config.ledger, config.terms
        key = load_or_create_key(self._settings.key)
        self._name = account_in_ledger(key, self._settings)
        self._release = _release_id(key, config, self._name)
        self._ledger = Ledger(self._settings.url, self._settings.store, key, create=True, site=self._settings.site)

    def check(self) -> None:
        """Raise BudgetError if the account cannot pay for the release; nothing is charged."""
        self._ledger.register(self._name, self._settings.epsilon, self._terms.delta, "release", unit=self._terms.unit)
        if not self._ledger.reserved([self._release]):
            check_together(self._ledger.together(self._name), [self._terms.event()], "secure")

    def charge(self) -> None:
        """Charge the worst case once.

        Raises:
            BudgetError: The account cannot pay.
            LedgerError: The records belong to another account.
        """
        event, people = self._terms.event(), self._settings.people
        if people is None and self._config.own is not None:
            people = Folders(self._config.own.work, "own").dataset / PEOPLE
        self._ledger.release(
            dataset=self._name,
            release_id=self._release,
            run=self._settings.run or self._terms.called,
            worst_case=event,
            delta=self._terms.delta,
            noise_kind="secure",
            draw=lambda: ({}, event),
            data=People.load(people) if people is not None and people.is_file() else None,
            task=_task(self._config),
        )


def open_ledger(settings: GuardianLedger) -> tuple[bytes, Ledger] | None:
    """Return key and ledger of a party's settings, or None if the ledger does not exist."""
    if not settings.key.is_file() or not settings.store.is_dir():
        return None
    key = load_or_create_key(settings.key)
    return key, Ledger(settings.url, settings.store, key, create=False, site=settings.site)


def account_in_ledger(key: bytes, settings: GuardianLedger) -> str:
    """Return the name of a party's account in the ledger."""
    return account_of(key, settings.account) if settings.named else settings.account


def account_status(config: PartyConfig) -> dict[str, Any] | None:
    """Return budget, spending and the cost of these terms for the account that a party keeps; None if it keeps none.

    `state` of the release is `charged`, `reserved` or `not charged`. `beside` is the number of accounts in the same
    ledger that are not linked to this one. A new account has spent 0.
    """
    settings, terms = config.ledger, config.terms
    if settings is None:
        return None
    known: dict[str, Any] = {"budget": settings.epsilon, "spent": 0.0, "left": settings.epsilon}
    known |= {"state": "not charged", "beside": 0}
    if (found := open_ledger(settings)) is not None:
        key, ledger = found
        name = account_in_ledger(key, settings)
        release, together = _release_id(key, config, name), ledger.together(name)
        if ledger.committed(release) or ledger.reserved([release]):
            known["state"] = "charged" if ledger.committed(release) else "reserved"
        known["beside"] = len(ledger.datasets()) - len(together)
        if together:
            account, *linked = together
            known["budget"], known["left"] = account.budget.epsilon, account.left(*linked)
            known["spent"] = round_up(price(account.used(), terms.delta))
    return known | {"price": round_up(price(terms.event(), terms.delta)), "delta": terms.delta, "unit": terms.unit}
