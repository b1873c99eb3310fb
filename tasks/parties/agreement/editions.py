"""The next edition of a collaboration: the same terms under another name, and room in the party's folder for it.

What an edition left is kept in `editions/NAME` beside party.yaml: its terms, the outcome of its session, and at the
student party its answers and its student. Every party does this for itself, and all come to the same terms. A party
that signed the terms of the edition before signs these.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.values import as_document, read_yaml
from tasks.parties.agreement.acceptance import ACCEPTANCE, accept_terms, read_acceptance
from tasks.parties.agreement.terms import Terms, certain
from tasks.parties.answers import ABOUT
from tasks.parties.config import TERMS, PartyConfig, read_party
from tasks.parties.measuring import PLACE
from tasks.parties.standing import account_standing, answers_of, was_finished
from tasks.parties.state import OUTCOME, STANDING
from tasks.runtime.store import Folders, read_json, write_text
from terrine.errors import BudgetError, InputError, SettingError
from terrine.files import file_digest, json_object

EDITIONS = "editions"


@dataclass(frozen=True)
class Next:
    """The terms of the next edition, the account they are charged to as far as this party knows it (None where it knows
    none), and whether party.yaml names other queries now.
    """

    terms: Terms
    account: dict[str, Any] | None
    changed: bool


def look_ahead(path: Path, edition: str, queries: Path | None = None) -> Next:
    """Return what another edition would ask and cost, about the queries in a folder (None: the same); nothing is
    changed.

    Raises SettingError for an edition that this is or was, or terms that stand within party.yaml; BudgetError for one
    that the account, as far as this party knows it, does not pay for; InputError for a folder that holds no queries.
    """
    config = read_party(path)
    if not isinstance(read_yaml(path).get("terms", TERMS), str):
        raise SettingError(f"{path} holds its terms itself. Put them into {TERMS} beside it first.")
    if edition == config.terms.edition or _place(path, edition).exists():
        raise SettingError(f"Edition {edition!r} is this one or an earlier one. Choose another name.")
    about = {} if queries is None else _about(queries, config.terms)
    terms = Terms.model_validate(config.terms.public() | about | {"edition": edition})
    account = account_standing(config.model_copy(update={"terms": terms}))
    room = None if account is None or account["state"] != "not charged" else account["left"]
    if account is not None and room is not None and account["price"] > room * (1 + 1e-9):
        raise BudgetError(
            f"Edition {edition!r} may cost up to ε={account['price']:g} at δ={account['delta']:g}, and the account has "
            f"room for ε={room:.4g} more: ε={account['spent']:g} of {account['budget']:g} is spent. Agree on fewer "
            "queries or more noise, or raise the budget (terrine ledger --budget). Nothing was changed."
        )
    return Next(terms, account, queries is not None)


def begin(path: Path, found: Next, queries: Path | None = None) -> Path:
    """Lay the present edition aside and begin the next; return the folder that holds what was laid aside.

    Broken off at any moment, the same again goes on. Raises SettingError while the present edition is under way.
    """
    config = read_party(path)
    if _is_under_way(config):
        raise SettingError(
            f"The session of edition {config.terms.edition!r} is under way or broke off: finish it first (terrine "
            "party vote, or party finish for its accuracy). What was reserved for it stays charged."
        )
    place = _place(path, config.terms.edition)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    terms = path.parent / str(read_yaml(path).get("terms", TERMS))
    write_text(place / TERMS, terms.read_text(encoding="utf-8"))
    leaving = [config.state / OUTCOME, config.state / STANDING, config.state / PLACE, config.accepted]
    if config.answers is not None:
        leaving.append(config.answers)
    if config.learn is not None:
        leaving.append(config.learn.work)
    if config.own is not None:
        leaving.append(Folders(config.own.work, "own").evaluation)  # of the student of the edition before
    for one in leaving:
        if one.exists():
            os.replace(one, place / one.name)
    if queries is not None:
        _name_queries(path, queries)
    if (path.parent / ACCEPTANCE).exists():
        _sign(path.parent / ACCEPTANCE, config, found.terms, place)
    # The last step: until here the party is in the edition before.
    write_text(terms, as_document(found.terms.public()))
    return place


def _sign(path: Path, config: PartyConfig, terms: Terms, place: Path) -> None:
    """Sign the next terms, and lay aside what was signed of those before."""
    credentials = config.own_credentials()
    signed = read_acceptance(path, credentials.authority)
    if signed.terms == config.terms.digest:
        shutil.copy(path, place)
    accept_terms(path, credentials, terms, signed.proposal)


def _place(path: Path, edition: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in edition).strip(".")
    return path.parent / EDITIONS / (name or "first")


def _is_under_way(config: PartyConfig) -> bool:
    if config.answers is not None:
        found = (answers_of(config), json_object(config.answers / PLACE / ABOUT))
        return any(about is not None and about["guardian"] is None for about in found)
    measured = json_object(config.state / PLACE / OUTCOME) is not None
    return (any(config.state.glob("*/sums.npz")) and not was_finished(config)) or (
        any(config.state.glob(f"{PLACE}/*/sums.npz")) and not measured
    )


def _about(queries: Path, terms: Terms) -> dict[str, Any]:
    """Return what terms say of these queries."""
    manifest = queries / "manifest.json"
    if not manifest.is_file():
        raise InputError(f"{queries} holds no query images: there is no manifest.json. Give data/public/RUN/images.")
    found = read_json(manifest)
    about: dict[str, Any] = {"queries_digest": file_digest(manifest)}
    about["query_shards"] = [file_digest(queries / shard["file"]) for shard in found["shards"]["queries"]]
    if terms.votes:
        about["queries"] = count = sum(batch["count"] for batch in found["batches"])
        budget = (terms.epsilon, terms.delta, terms.overlap)
        about["asked"] = certain(terms.described, count, *budget, terms.averages)
    return about


def _name_queries(path: Path, queries: Path) -> None:
    values = read_yaml(path)
    for section in ("own", "learn"):
        if section in values:
            values[section]["images"] = str(queries.resolve())
    write_text(path, as_document(values))
