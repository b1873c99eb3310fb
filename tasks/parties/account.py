"""A teacher party's own account, which adds up what all collaborations learn from the same people.

The guardian keeps account of one collaboration; an institution may take part in several with the same patients. So a
teacher party may keep a ledger of its own (`ledger` in its party.yaml), in which each release is charged, once, before
the first share of it leaves: at its worst case, since what it cost in the end the guardian knows alone. Records are
known again (`terrine.privacy.ledger.people`), so that another account's name is no second budget.
"""

from __future__ import annotations

from typing import Any

from tasks.parties.config import GuardianLedger, PartyConfig
from tasks.runtime.accounts import PEOPLE
from tasks.runtime.store import Folders
from terrine.privacy.accounting.gaussian import round_up
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import check_together
from terrine.privacy.ledger.identity import account_of, canonical_json, keyed_digest, load_or_create_key
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.people import People
from terrine.privacy.ledger.task import Task


class OwnAccount:
    """The account of a teacher party that has a ledger, which may be begun where `create` says so."""

    def __init__(self, config: PartyConfig, *, create: bool = True) -> None:
        settings = config.ledger
        assert settings is not None
        self._config = config
        key = load_or_create_key(settings.key)
        self._name = account_of(key, settings.account)
        content = {"terms": config.terms.public(), "account": self._name}
        self._release = keyed_digest(key, "terrine release to a collaboration", canonical_json(content))
        self._ledger = Ledger(settings.url, settings.store, key, create=create, site=settings.site)

    def check(self) -> None:
        """Raise BudgetError where the release could not be paid for; nothing is charged here."""
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
        """What was spent, and what is left, as `tasks.parties.standing` shows it."""
        return standing_of(self._ledger, self._name, self._release, self._config)


def begun(settings: GuardianLedger) -> tuple[bytes, Ledger] | None:
    """Return the key and the ledger that a party names, where it was begun; None where it was not."""
    if not settings.key.is_file() or not settings.store.is_dir():
        return None
    key = load_or_create_key(settings.key)
    return key, Ledger(settings.url, settings.store, key, create=False, site=settings.site)


def account_in_ledger(key: bytes, settings: GuardianLedger) -> str:
    """Return what a party's ledger knows its account as."""
    return account_of(key, settings.account) if settings.named else settings.account


def task_agreed(config: PartyConfig) -> Task:
    """Return what a party's release is about: a trial's run says it, else the terms."""
    assert config.ledger is not None
    if (said := config.ledger.task) is not None:
        return Task.from_json(said["edition"], said)
    return Task(config.terms.edition, "classes", tuple(config.terms.class_names))


def standing_of(ledger: Ledger | None, name: str, release: str, config: PartyConfig) -> dict[str, Any]:
    """Return an account's budget, what was spent and is left, and what the release of the terms would cost or has.

    `state` of the release is `charged`, `reserved` or `not charged`. `beside`: how many accounts its ledger has that do
    not add up with this one, of other people by what was said. An account that was never opened has spent 0, and so
    has one whose ledger was not begun (None).
    """
    terms, together, state, beside = config.terms, [], "not charged", 0
    if ledger is not None:
        state = "charged" if ledger.committed(release) else "reserved" if ledger.reserved([release]) else state
        together = ledger.together(name)
        beside = len(ledger.datasets()) - len(together)
    account, *linked = together or [None]
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
