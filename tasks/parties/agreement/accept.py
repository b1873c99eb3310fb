"""`terrine party accept`: a party reads the terms, its own data are checked against them, and it signs them.

Its folder then holds all that it needs to take part:

    party.yaml, terms.yaml, terms.txt       what it is, what was agreed on, and that as a page
    proposal/                               as it was mailed: queries, backbone, parameters
    credentials/                            who it is (`terrine party enrol`)
    acceptance.json                         what it signed, which goes back to whoever proposed
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.config.values import as_document, flat, merge, parse_assignments, read_yaml
from tasks.parties.agreement.acceptance import ACCEPTANCE, accept_terms, read_acceptance
from tasks.parties.agreement.ledgers import Charged
from tasks.parties.agreement.proposal import Proposal
from tasks.parties.agreement.terms import Terms
from tasks.parties.agreement.terms_page import page
from tasks.parties.config import TERMS, OwnTeachers, read_party
from tasks.parties.training import check_public, own_params
from tasks.parties.trial import CONFIG
from tasks.pipeline.data_remarks import Remarks, listed, remarks_on
from tasks.runtime.run import SPLIT_SEED
from terrine.collaboration.transport.credentials import Credentials, Role, load_credentials
from terrine.data.labels import class_places
from terrine.data.source import Survey
from terrine.errors import InputError, SettingError
from terrine.files import atomic_file, private_folder
from terrine.planning import UNITS_EACH

PAGE, PROPOSAL, CREDENTIALS = "terms.txt", "proposal", "credentials"


@dataclass(frozen=True)
class Candidate:
    """A party that has read a proposal, and has signed nothing yet.

    params: of a teacher party, its own parameters, as they will stand in party.yaml. listen: where it listens; None for
    the address in the proposal. charged: to which account, of a guardian, or a teacher party that keeps one.
    """

    proposal: Proposal
    name: str
    role: Role
    folder: Path
    params: dict[str, Any]
    listen: str | None = None
    charged: Charged = field(default_factory=Charged)

    @property
    def page(self) -> str:
        """The terms, to be read."""
        return page(self.proposal.terms, self.proposal.addresses, self.proposal.shown)

    def look(self) -> tuple[Survey | None, Remarks]:
        """Look at a teacher party's data; return what there is, and what speaks against it: private. Nothing is read
        in full where that takes long, trained or kept.

        Raises InputError and SettingError for data and settings that do not go with the terms.
        """
        terms = self.proposal.terms
        terms.check_version()
        check_public(self.proposal.images, self.proposal.backbone, terms)
        if self.role != "teacher":
            return None, Remarks()
        held = terms.teachers[self.name]
        params = own_params(self._own, terms, held)
        survey = params.data.survey(Path(), seed=SPLIT_SEED)
        class_places(survey.class_names, terms.class_names)
        remarks = remarks_on(survey, params)
        _look_at_classes(remarks, survey, terms)
        _look_at_units(remarks, survey, self)
        return survey, remarks

    @property
    def _own(self) -> OwnTeachers:
        return OwnTeachers(params=self.params, images=self.proposal.images, backbone=self.proposal.backbone)


def candidate(
    proposal: Proposal,
    name: str,
    *,
    folder: Path | None = None,
    data: Path | None = None,
    assignments: Sequence[str] = (),
    **others: Any,
) -> Candidate:
    """Return the party of this name that would accept a proposal; others: see `Candidate`.

    folder: the party's own; None for one of its name here. data: of a teacher party, a folder of class folders, a CSV
    of images, or an .npz file. assignments: section.key=value, parameters of its own.

    Raises SettingError for a name that the terms do not know, and for data at a party that has no use for them.
    """
    role = proposal.terms.roles().get(name)
    if role is None:
        known = ", ".join(proposal.terms.roles())
        raise SettingError(f"{name!r} takes no part in this proposal. Who does: {known}.")
    params: dict[str, Any] = {}
    if role == "teacher":
        params = proposal.params.get("teacher", {})
        if data is not None:
            params = merge(
                params, {"data": {"name": "npz" if data.suffix == ".npz" else "folder", "path": str(data.resolve())}}
            )
        params = merge(params, parse_assignments(assignments))
        if "name" not in params.get("data", {}):
            raise SettingError(f"--data is missing: say where the records of {name} are.")
    elif data is not None or assignments:
        raise SettingError(
            f"{name} is the {role}: it has no data and no settings of its own. Leave --data and --set out."
        )
    return Candidate(proposal, name, role, folder or Path(name), params, **others)


def accept(party: Candidate) -> Path:
    """Lay out a party's folder, and sign the terms; return the acceptance, to be sent back. What was accepted before is
    as it was.

    Raises SettingError for a folder of a party of other terms, or of this one with other settings; CredentialError
    without credentials for this name and role; and InputError for a proposal that changed since it was read.
    """
    folder, terms = party.folder, party.proposal.terms
    credentials = _credentials(party)
    if (folder / CONFIG).exists() and read_party(folder / CONFIG).terms.digest != terms.digest:
        raise SettingError(
            f"{folder} holds a party of other terms. Choose another --folder for these, beside it: "
            "an account that it keeps goes on there."
        )
    if (folder / ACCEPTANCE).exists():  # the last to be written: without it, nothing was accepted yet
        accepted = read_acceptance(folder / ACCEPTANCE, credentials.authority)
        if accepted.proposal != party.proposal.digest:
            raise SettingError(
                f"{folder} holds a party that accepted another proposal. Choose another --folder for this."
            )
        _refuse_other_settings(party)
        return folder / ACCEPTANCE
    private_folder(folder)
    os.chmod(folder, 0o700)
    copied = party.proposal.copy(folder / PROPOSAL)
    for name, text in (
        (TERMS, as_document(terms.public())),
        (PAGE, party.page + "\n"),
        (CONFIG, as_document(_config(replace(party, proposal=copied)))),
    ):
        with atomic_file(folder / name, "w", owner_only=True) as file:
            file.write(text)
    read_party(folder / CONFIG, party.role)
    accept_terms(folder / ACCEPTANCE, credentials, terms, copied.digest)
    return folder / ACCEPTANCE


def _refuse_other_settings(party: Candidate) -> None:
    """Raise SettingError where a party that accepted before says something else now than its party.yaml."""
    path = party.folder / CONFIG
    known, said = flat(read_yaml(path)), flat(_config(party))
    charged = party.charged
    optional = {"listen": party.listen, "ledger.account": charged.account, "ledger.epsilon": charged.budget}
    other = [
        key
        for key, value in said.items()
        if (key.startswith("own.params.") or optional.get(key) is not None) and known.get(key) != value
    ]
    if other:
        listed = "; ".join(f"{key} is {known.get(key)} there, and {said[key]} here" for key in other[:3])
        raise SettingError(
            f"{party.name} accepted before, and what {path} says stays: {listed}. To change it, edit that file; what "
            "teachers learned from other records is then learned anew. Or choose another --folder."
        )


def _credentials(party: Candidate) -> Credentials:
    place = party.folder / CREDENTIALS
    if not place.is_dir():
        raise SettingError(
            f"{place} is missing: a party signs with its own key. Enrol first (terrine party enrol request {place} "
            f"--name {party.name} --role {party.role}), or put the site's own credentials there: key.pem, "
            "certificate.pem, authority.pem."
        )
    credentials = load_credentials(place, party.role)
    if credentials.name != party.name:
        raise SettingError(f"{place} holds the certificate of {credentials.name!r}, and not that of {party.name!r}.")
    return credentials


def _config(party: Candidate) -> dict[str, Any]:
    """Return what stands in party.yaml."""
    terms, addresses = party.proposal.terms, party.proposal.addresses
    public = {"images": f"{PROPOSAL}/images", "backbone": f"{PROPOSAL}/backbone"}
    config: dict[str, Any] = {"role": party.role}
    if terms.deadline is not None:
        # Nobody gives up before the guardian would.
        config |= {"deadline": terms.deadline, "patience": terms.deadline}
    ledger = party.charged.ledger(party.folder, party.name, party.role, terms)
    kept = {} if ledger is None else {"ledger": ledger}
    if party.role == "teacher":
        return config | addresses | {"own": {"params": party.params, **public}} | kept
    config["listen"] = party.listen or addresses[party.role]
    if party.role == "guardian":
        return config | kept
    learn = {"params": party.proposal.params.get("student", {}), **public}
    return config | {"guardian": addresses["guardian"], "answers": "answers", "learn": learn}


def _look_at_classes(remarks: Remarks, survey: Survey, terms: Terms) -> None:
    """Name the classes that were agreed on and have no name in the data; of others `remarks_on` knows."""
    if absent := [name for name in terms.class_names if name not in survey.class_names]:
        then = "no teacher here will ever answer so" if terms.votes else "nothing is added to its sums here"
        remarks.notes.append(f"No record here is of {listed(absent)}: {then}. Other parties may have it.")


def _look_at_units(remarks: Remarks, survey: Survey, party: Candidate) -> None:
    """Say whether there are whom the terms protect, and enough of them for the party's teachers."""
    terms, held = party.proposal.terms, party.proposal.terms.teachers[party.name]
    if terms.unit == "group" and survey.groups is None:
        raise InputError(
            "The terms protect a group (all records of a person), and these data do not say whose records are whose: "
            "give groups (a column `group`, or an array `groups`), or agree on unit record."
        )
    units = survey.units(terms.unit)
    if terms.records is not None:
        if units > held * terms.records:
            remarks.refusals.append(
                f"{units:,} {terms.unit}s here, and the terms allow {party.name} {held * terms.records:,} ({held} "
                f"times {terms.records:,}). Agree on terms that allow more, or give fewer."
            )
    elif held > units:
        remarks.refusals.append(
            f"{held} teachers cannot share {units:,} {terms.unit}s to learn from. Agree on terms in which {party.name} "
            "holds fewer."
        )
    elif units < UNITS_EACH[terms.unit] * held:
        remarks.doubts.append(
            f"{held} teachers share {units:,} {terms.unit}s: fewer than {UNITS_EACH[terms.unit]:g} each, so many of "
            f"them will know little. Better agree on terms in which {party.name} holds fewer."
        )
