"""`terrine party accept`: check a proposal and the party's own data, and create the party's folder.

    party.yaml, terms.yaml, terms.txt       settings, agreement, and the agreement as a page
    proposal/                               the proposal as it was sent
    acceptance.json                         the signed digest of the terms, which `submit` sends with a report

The folder contains the key already (`terrine party key`). The ledger is next to the folder, in `ledger-NAME`, so that
further proposals are charged to the same ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tasks.collaboration.local_training import own_params
from tasks.collaboration.proposal import Proposal
from tasks.collaboration.propose import teacher_params
from tasks.collaboration.terms_page import page
from tasks.config.params import parse_assignment
from tasks.config.values import as_document, flat, merge, read_yaml
from tasks.parties.config import CONFIG, SQLITE, TERMS, GuardianLedger, OwnTeachers, read_party
from tasks.parties.keys import acceptance_content, own_key, public_text, sign
from tasks.parties.ledgers import account_in_ledger, open_ledger
from tasks.parties.terms import Role, Terms
from tasks.pipeline.data_warnings import Remarks, listed, remarks_on
from tasks.runtime.run import SPLIT_SEED
from terrine.data.labels import class_places
from terrine.data.source import Survey
from terrine.errors import InputError, SettingError
from terrine.files import private_folder, write_text
from terrine.planning import UNITS_EACH

ACCEPTANCE, ACCOUNT, PAGE, PROPOSAL = "acceptance.json", "account", "terms.txt", "proposal"


@dataclass(frozen=True)
class Candidate:
    """A party that has read a proposal and signed nothing yet.

    Attributes:
        proposal: The proposal.
        name: Name of the party in the terms.
        role: Its role.
        folder: Its folder.
        params: A teacher party's own parameters.
        listen: host:port of a service; None for the port of its URL on all interfaces.
        account: Name of the account that is charged; None for that of an existing ledger, otherwise `collaboration`.
        budget: The account's ε over all releases; None for that of an existing ledger, otherwise the terms'.
        ledger: Folder of the ledger; None for `ledger-NAME` beside the folder.
    """

    proposal: Proposal
    name: str
    role: Role
    folder: Path
    params: dict[str, Any]
    listen: str | None = None
    account: str | None = None
    budget: float | None = None
    ledger: Path | None = None

    def check_data(self) -> tuple[Survey | None, Remarks]:
        """Check a teacher party's data against the terms; return a private survey and remarks.

        Raises:
            InputError: The data do not match the terms.
            SettingError: The settings do not match the terms.
        """
        terms = self.proposal.terms
        terms.check_version()
        if self.role != "teacher":
            return None, Remarks()
        folder = self.proposal.folder
        own = OwnTeachers(params=self.params, images=folder / "images", backbone=folder / "backbone")
        params = own_params(own, terms, terms.teachers[self.name])
        survey = params.data.survey(Path(), seed=SPLIT_SEED)
        class_places(survey.class_names, terms.class_names)
        remarks = remarks_on(survey, params)
        if absent := [name for name in terms.class_names if name not in survey.class_names]:
            then = "no teacher here will ever answer so" if terms.votes else "nothing is added to its sums here"
            remarks.notes.append(f"No record here is of {listed(absent)}: {then}. Other parties may have it.")
        _check_units(remarks, survey, terms, self.name)
        return survey, remarks


def candidate(
    proposal: Proposal,
    name: str,
    *,
    folder: Path | None = None,
    data: Path | None = None,
    assignments: Sequence[str] = (),
    **others: Any,
) -> Candidate:
    """Return the candidate of this name that may accept a proposal.

    Args:
        proposal: The proposal.
        name: The party's name.
        folder: The party's folder; None for its name in the current folder.
        data: A teacher party's records: class folders, a CSV of images, an .npz file, or the CSV of a table.
        assignments: A teacher party's own settings, each as section.key=value.
        **others: Further attributes of `Candidate`.

    Raises:
        SettingError: The terms have no such party, or data are given for a service.
    """
    role = proposal.terms.roles().get(name)
    if role is None:
        raise SettingError(f"{name!r} takes no part in this proposal: {', '.join(proposal.terms.roles())} do.")
    params: dict[str, Any] = {}
    if role == "teacher":
        params = teacher_params(proposal.terms)
        if data is not None:
            images = "npz" if data.suffix == ".npz" else "folder"
            source = {"name": "table" if proposal.terms.table else images, "path": str(data.resolve())}
            params = merge(params, {"data": source})
        params = merge(params, parse_assignment(*assignments))
        if "name" not in params.get("data", {}):
            raise SettingError(f"--data is missing: give the place of the records of {name}.")
    elif data is not None or assignments:
        raise SettingError(f"{name} is the {role}: it has no data and no settings. Leave --data and --set out.")
    return Candidate(proposal, name, role, folder or Path(name), params, **others)


def accept(party: Candidate) -> Path:
    """Create a party's folder and sign the terms; return the acceptance. Repeating the command changes nothing.

    Raises:
        SettingError: The folder has other terms or settings, or its key is not that of the terms.
    """
    folder, terms = party.folder, party.proposal.terms
    key = own_key(folder)
    if terms.party_of(public_text(key)) != party.name:
        raise SettingError(f"The key in {folder} is not that of {party.name} in the terms.")
    exists = (folder / CONFIG).exists()
    if exists and read_party(folder / CONFIG).terms.digest != terms.digest:
        raise SettingError(
            f"{folder} holds a party of other terms. Copy its key.pem (of a service also certificate.pem and "
            "tls-key.pem) into another --folder for these."
        )
    if exists:
        _refuse_other_settings(party)
    private_folder(folder)
    os.chmod(folder, 0o700)
    copied = party.proposal.copy(folder / PROPOSAL)
    if not exists:
        config = as_document(_config(replace(party, proposal=copied)))
        for name, text in ((TERMS, as_document(terms.public())), (PAGE, page(terms) + "\n"), (CONFIG, config)):
            write_text(folder / name, text)
    read_party(folder / CONFIG, party.role)
    signed = {"party": party.name, "terms": terms.digest, "signature": sign(key, acceptance_content(terms.digest))}
    write_text(folder / ACCEPTANCE, json.dumps(signed, indent=2) + "\n")
    return folder / ACCEPTANCE


def _refuse_other_settings(party: Candidate) -> None:
    known, given = flat(read_yaml(party.folder / CONFIG)), flat(_config(party))
    optional = {"listen": party.listen, "ledger.account": party.account, "ledger.epsilon": party.budget}
    other = [
        f"{key} is {known.get(key)} there, and {value} here"
        for key, value in given.items()
        if (key.startswith("own.params.") or optional.get(key) is not None) and known.get(key) != value
    ]
    if other:
        raise SettingError(
            f"{party.name} accepted before with other settings: {'; '.join(other[:3])}. Edit {party.folder / CONFIG}, "
            "or choose another --folder."
        )


def _config(party: Candidate) -> dict[str, Any]:
    """Return the content of party.yaml."""
    terms, config = party.proposal.terms, {"role": party.role} | _ledger(party)
    if party.role == "teacher":
        return config | {"own": {"params": party.params}}
    port = terms.services[party.role].url.rpartition(":")[2]
    config["listen"] = party.listen or f"0.0.0.0:{port if port.isdigit() else 443}"
    return config if party.role == "guardian" else config | {"answers": "answers", "learn": {}}


def _ledger(party: Candidate) -> dict[str, Any]:
    """Return the setting `ledger`; empty for a party that keeps no ledger.

    Without `--account`, an existing ledger keeps its account: another name would get a second budget.

    Raises:
        LedgerError: The ledger has the account with another budget or unit.
    """
    place = party.ledger or party.folder.resolve().parent / f"ledger-{party.name}"
    has_ledger = party.role == "teacher" and (party.account or party.budget or place.is_dir())
    if party.role != "guardian" and not has_ledger:
        return {}
    private_folder(place)
    if not (place / ACCOUNT).exists():
        write_text(place / ACCOUNT, party.account or "collaboration")
    settings = GuardianLedger(
        url=f"{SQLITE}{(place / 'ledger.db').resolve()}",
        key=place / "key",
        store=place / "releases",
        account=party.account or (place / ACCOUNT).read_text(encoding="utf-8"),
        epsilon=party.budget,
    )
    terms, epsilon, found = party.proposal.terms, party.budget, open_ledger(settings)
    if found is not None:
        name = account_in_ledger(found[0], settings)
        if (known := found[1].account(name)) is not None:
            epsilon = epsilon or known.budget.epsilon
            mode: Literal["release", "replay"] = "replay" if known.budget.mode == "replay" else "release"
            found[1].register(name, epsilon, terms.delta, mode, unit=terms.unit)
    place = Path(os.path.relpath(place, party.folder.resolve()))
    about = {"url": f"{SQLITE}{place / 'ledger.db'}", "key": str(place / "key"), "store": str(place / "releases")}
    return {"ledger": about | {"account": settings.account, "epsilon": epsilon or terms.epsilon}}


def _check_units(remarks: Remarks, survey: Survey, terms: Terms, name: str) -> None:
    """Check that the data contain the protected unit, and enough units for the party's teachers."""
    held = terms.teachers[name]
    if terms.unit == "group" and survey.groups is None:
        raise InputError(
            "The terms protect a group (all records of a person), and these data have no groups: give them (a column "
            "`group`, or an array `groups`), or agree on unit record."
        )
    units = survey.units(terms.unit)
    if terms.records is not None:
        if units > held * terms.records:
            remarks.refusals.append(
                f"{units:,} {terms.unit}s here, and the terms allow {name} {held * terms.records:,} ({held} times "
                f"{terms.records:,}). Agree on terms that allow more, or give fewer."
            )
    elif held > units:
        remarks.refusals.append(
            f"{held} teachers cannot share {units:,} {terms.unit}s. Agree on terms in which {name} holds fewer."
        )
    elif units < UNITS_EACH[terms.unit] * held:
        remarks.doubts.append(
            f"{held} teachers share {units:,} {terms.unit}s: fewer than {UNITS_EACH[terms.unit]:g} each, so most "
            f"of them will learn little. Better agree on terms in which {name} holds fewer."
        )
