"""The ledgers of parties: the guardian's release, and a teacher party's own account.

The guardian reserves the worst case before the first noise is drawn, and charges the realised cost when the last round
is complete. A teacher party may keep an account of its own people over all collaborations; each release is charged
there once, at its worst case, before the first report leaves, since only the guardian knows the realised cost.
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

    identity: what it is known by: what the parties agreed to release, whose data it is, and where noise comes from.
    """

    def __init__(self, config: PartyConfig) -> None:
        assert config.ledger is not None
        self._config, self._settings, self._terms = config, config.ledger, config.terms
        self._key = load_or_create_key(config.ledger.key)
        self._noise = noise_of(config)
        self._account = account_in_ledger(self._key, config.ledger)
        self.identity = release_of(self._key, config, self._account, self._noise)
        self._drawn_of: int | None = None  # the round that noise was drawn for last
        self._reservation: Reservation | None = None
        self._request: dict[str, Any] = {
            "dataset": self._account,
            "release_id": self.identity,
            "run": config.ledger.run or config.terms.called,
            "worst_case": config.terms.event(),
            "delta": config.terms.delta,
            "noise_kind": self._noise.kind,
            "data": None if config.ledger.people is None else People.load(config.ledger.people),
            "task": task_agreed(config),
        }

    def _ledger(self) -> Ledger:
        settings = self._settings
        return Ledger(settings.url, settings.store, self._key, draw_patience=self._config.patience, site=settings.site)

    def was_made(self) -> bool:
        """Whether it was made before; what was not and could not be paid for is refused, before anybody computes
        anything."""
        ledger = self._ledger()
        if ledger.committed(self.identity):
            return True
        terms = self._terms
        worst = terms.event()
        if not price(worst, terms.delta) <= terms.epsilon * (1 + 1e-9):  # rounding aside
            raise SettingError(
                f"The terms ask {terms.asked} queries, which may cost ε={round_up(price(worst, terms.delta)):g} at "
                f"δ={terms.delta:g}, more than the ε={terms.epsilon:g} agreed on. Ask fewer, or use more noise."
            )
        check_slack(terms.numbers, terms.epsilon, terms.delta)
        # An account for public benchmark data takes secure noise as well.
        public = self._account in ledger.datasets() and ledger.budget(self._account).mode == "replay"
        mode: Literal["release", "replay"] = "replay" if public or self._noise.kind == "replay" else "release"
        ledger.register(self._account, self._settings.epsilon, terms.delta, mode, unit=terms.unit)
        if not ledger.reserved([self.identity]):
            check_together(ledger.together(self._account), [worst], self._noise.kind)
        return False

    def open(self) -> StoredRelease | None:
        """Reserve the worst case unless it is reserved; return the release if it was made before."""
        if self._reservation is None:
            self._reservation = self._ledger().reserve(**self._request)
        return self._reservation.release

    def draw(self, number: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return noise for the guardian's sums of a round; the worst case is charged before the first of it is drawn.

        kind: `threshold` or `counts` (`terrine.collaboration.protocol.guardian_round`).
        """
        agreement = self._terms.agreement(number)
        if self.open() is not None:
            raise LedgerError("This batch was answered before. Nothing was drawn.")
        summed, source = self._terms.summed, self._source(number)
        if summed is not None and number < summed.passes:
            return summed.noise(source, number).reshape(shape)
        sigma = agreement.sigma_threshold if kind == "threshold" else agreement.sigma
        assert sigma is not None
        return source.gaussian(shape, sigma)

    def _source(self, number: int) -> NoiseSource:
        """Where the noise of a round comes from. Of replayed noise there is one stream for all rounds, whoever was
        started again between them."""
        summed = self._terms.summed
        if self._drawn_of != number:
            self._drawn_of = number
            if self._config.replay_seed is not None and summed is not None:
                self._noise = ReplayNoise(self._config.replay_seed)
                for earlier in range(number):
                    summed.noise(self._noise, earlier)
        return self._noise

    def settle(self, passed: np.ndarray) -> StoredRelease:
        """Charge what it cost: `passed` says which queries are answered."""
        if self._reservation is None:
            raise LedgerError("Nothing was reserved, so nothing can be charged.")
        return self._reservation.commit({"passed": passed}, self._terms.event(int(passed.sum())))

    def abandon(self) -> None:
        """Nothing comes of it in this process; what was reserved stays charged."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def record(self, release: StoredRelease, counted: list[str] | None, *, reused: bool) -> dict[str, Any]:
        """What there is to say of it once it is made, and nothing about any vote.

        counted: whose shares are in it, as far as that is known. reused: whether it was made before.
        """
        terms, passed = self._terms, release.arrays["passed"]
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
            "asked": terms.asked,
            "answered": int(passed.sum()),
            "counted": counted,
            "reused": reused,
            "edition": None if release.task is None else release.task.edition,
            "task": None if release.task is None else release.task.to_json(),
        }


def noise_of(config: PartyConfig) -> NoiseSource:
    """Where the guardian's noise comes from."""
    return SecureNoise() if config.replay_seed is None else ReplayNoise(config.replay_seed)


def release_of(key: bytes, config: PartyConfig, account: str, noise: NoiseSource) -> str:
    """The identity of the release: what the parties agreed to release, whose data it is, and where noise comes from."""
    content = {"terms": config.terms.identity(), "account": account, "noise": noise.describe()}
    return keyed_digest(key, "terrine collaboration release", canonical_json(content))


class OwnAccount:
    """The account of a teacher party that keeps a ledger; it is begun unless `create` is false."""

    def __init__(self, config: PartyConfig, *, create: bool = True) -> None:
        settings = config.ledger
        assert settings is not None
        self._config = config
        key = load_or_create_key(settings.key)
        self._name = account_of(key, settings.account)
        content = {"terms": config.terms.identity(), "account": self._name}
        self._release = keyed_digest(key, "terrine release to a collaboration", canonical_json(content))
        self._ledger = Ledger(settings.url, settings.store, key, create=create, site=settings.site)

    def check(self) -> None:
        """Raise BudgetError if the account cannot pay for the release; nothing is charged."""
        terms, settings = self._config.terms, self._config.ledger
        assert settings is not None
        self._ledger.register(self._name, settings.epsilon, terms.delta, "release", unit=terms.unit)
        if not self._ledger.reserved([self._release]):
            check_together(self._ledger.together(self._name), [terms.event()], "secure")

    def charge(self) -> None:
        """Charge the worst case, once. Raises BudgetError, and LedgerError for records of another account."""
        assert self._config.ledger is not None
        event = self._config.terms.event()
        people = self._config.ledger.people
        if people is None and self._config.own is not None:
            people = Folders(self._config.own.work, "own").dataset / PEOPLE
        self._ledger.release(
            dataset=self._name,
            release_id=self._release,
            run=self._config.ledger.run or self._config.terms.called,
            worst_case=event,
            delta=self._config.terms.delta,
            noise_kind="secure",
            draw=lambda: ({}, event),
            data=People.load(people) if people is not None and people.is_file() else None,
            task=task_agreed(self._config),
        )

    def standing(self) -> dict[str, Any]:
        """Return what was spent and is left (`account_standing`)."""
        return _standing(self._ledger, self._name, self._release, self._config)


def begun(settings: GuardianLedger) -> tuple[bytes, Ledger] | None:
    """Return key and ledger of a party's settings, or None if the ledger was not begun."""
    if not settings.key.is_file() or not settings.store.is_dir():
        return None
    key = load_or_create_key(settings.key)
    return key, Ledger(settings.url, settings.store, key, create=False, site=settings.site)


def account_in_ledger(key: bytes, settings: GuardianLedger) -> str:
    """Return the ledger's name of a party's account."""
    return account_of(key, settings.account) if settings.named else settings.account


def task_agreed(config: PartyConfig) -> Task:
    """Return the task of a release: that of a trial's run, else that of the terms."""
    assert config.ledger is not None
    if (said := config.ledger.task) is not None:
        return Task.from_json(said["edition"], said)
    return Task(config.terms.edition, "classes", tuple(config.terms.class_names))


def account_standing(config: PartyConfig) -> dict[str, Any] | None:
    """Return budget, spending and the cost of these terms for the account that a party keeps; None if it keeps none.

    `state` of the release is `charged`, `reserved` or `not charged`. `beside` counts accounts of the same ledger that
    do not add up with this one. An account that was never opened has spent 0.
    """
    settings = config.ledger
    if settings is None:
        return None
    if (found := begun(settings)) is None:
        return _standing(None, "", "", config)
    if config.role == "teacher":
        return OwnAccount(config, create=False).standing()
    key, ledger = found
    account = account_in_ledger(key, settings)
    return _standing(ledger, account, release_of(key, config, account, noise_of(config)), config)


def _standing(ledger: Ledger | None, name: str, release: str, config: PartyConfig) -> dict[str, Any]:
    terms, together, state, beside = config.terms, [], "not charged", 0
    if ledger is not None:
        state = "charged" if ledger.committed(release) else "reserved" if ledger.reserved([release]) else state
        together = ledger.together(name)
        beside = len(ledger.datasets()) - len(together)
    account, linked = (together[0], together[1:]) if together else (None, [])
    budget = config.ledger.epsilon if config.ledger is not None else None
    return {
        "budget": budget if account is None else account.budget.epsilon,
        "spent": 0.0 if account is None else round_up(price(account.used(), terms.delta)),
        "left": budget if account is None else account.left(*linked),
        "price": round_up(price(terms.event(), terms.delta)),
        "delta": terms.delta,
        "unit": terms.unit,
        "state": state,
        "beside": beside,
    }
