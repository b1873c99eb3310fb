"""The ledger that a party keeps account in: it belongs to the party, and not to one folder of terms.

Every proposal has a folder of its own. The ledger that a party began with one goes on with the next: two ledgers would
each pay for all of an account, and neither would know what both have cost together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.values import read_yaml
from tasks.parties.agreement.terms import Terms
from tasks.parties.config import SQLITE, GuardianLedger, read_party
from tasks.parties.trial import CONFIG
from terrine.collaboration.transport.credentials import Role
from terrine.errors import SettingError

_ACCOUNT = "collaboration"


@dataclass(frozen=True)
class Charged:
    """What a party says of the account that terms are to be charged to.

    account: its name; None for the one that its ledger has, or `collaboration`. budget: its ε over all releases; None
    for that in the ledger, or the ε of the terms. beside: another folder of the party, whose ledger goes on; None for
    the folders beside the new one and here.
    """

    account: str | None = None
    budget: float | None = None
    beside: Path | None = None

    def ledger(self, folder: Path, name: str, role: Role, terms: Terms) -> dict[str, Any] | None:
        """Return `ledger` as it is to stand in the party.yaml of a folder; None for a party that keeps none.

        Raises SettingError where it is not clear which ledger or account goes on, and LedgerError for an account that
        the ledger knows with another budget or unit.
        """
        kept = self._kept(folder, name, role)
        if not kept:
            begins = role == "guardian" or (role == "teacher" and (self.account or self.budget))
            return {"account": self.account or _ACCOUNT, "epsilon": self.budget or terms.epsilon} if begins else None
        stores = {ledger.store: place for place, ledger in kept.items()}
        if len(stores) > 1:
            raise SettingError(
                f"{name} has begun a ledger in each of {', '.join(map(str, stores.values()))}, and none of them knows "
                "what all have cost together. Say whose goes on: --ledger FOLDER."
            )
        accounts = {ledger.account: ledger for ledger in kept.values()}
        if self.account is None and len(accounts) > 1:
            raise SettingError(
                f"The ledger of {name} has the accounts {', '.join(accounts)}. Say whose data these are: --account."
            )
        (*_, like) = accounts.values()
        account = self.account or like.account
        epsilon = accounts[account].epsilon if account in accounts else terms.epsilon
        ledger = like.model_copy(update={"account": account, "epsilon": self.budget or epsilon})
        ledger = self._as_registered(ledger, terms)
        url = ledger.url
        if url.startswith(SQLITE):
            url = SQLITE + os.path.relpath(url.removeprefix(SQLITE), folder.resolve())
        places = {key: os.path.relpath(getattr(ledger, key), folder.resolve()) for key in ("key", "store")}
        return ledger.model_dump(mode="json", exclude_defaults=True) | {"url": url, **places}

    def _kept(self, folder: Path, name: str, role: Role) -> dict[Path, GuardianLedger]:
        """Return the ledgers that party.yaml of this party name, by folder."""
        if self.beside is not None:
            ledger = read_party(self.beside / CONFIG, role).ledger
            if ledger is None:
                raise SettingError(f"{self.beside} keeps no ledger: its {CONFIG} names none.")
            return {self.beside: ledger}
        places = {folder.resolve()}
        if not (folder / CONFIG).exists():
            beside = (folder.resolve().parent, Path.cwd())
            found = [path for here in beside for path in here.glob(f"*/{CONFIG}")]
            places = {path.parent for path in found if os.access(path, os.R_OK)}  # not other users'
        kept = {}
        for place in sorted(places):
            values = read_yaml(place / CONFIG)
            if values.get("role") != role or values.get("ledger") is None:
                continue
            party = read_party(place / CONFIG)
            if party.terms.roles().get(name) == role and party.ledger is not None:
                kept[place] = party.ledger
        return kept

    def _as_registered(self, ledger: GuardianLedger, terms: Terms) -> GuardianLedger:
        """Return a ledger with the budget that it has registered for its account, where it was begun."""
        from tasks.parties.account import account_in_ledger, begun

        if (found := begun(ledger)) is None:
            return ledger
        key, there = found
        name = account_in_ledger(key, ledger)
        if (known := there.account(name)) is None:
            return ledger
        epsilon = self.budget or known.budget.epsilon
        there.register(name, epsilon, terms.delta, known.budget.mode, unit=terms.unit)  # which refuses any other
        return ledger.model_copy(update={"epsilon": epsilon})
