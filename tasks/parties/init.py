"""`terrine party init`: a trial on one machine, with a proposal of its own and the folders of all its parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.config.presets import project_root, selected_run
from tasks.parties.agreement.accept import PROPOSAL
from tasks.parties.agreement.proposal import Proposal
from tasks.parties.agreement.propose import Wish, check_address, propose, teachers_of_preset
from tasks.parties.agreement.terms import Terms
from tasks.parties.release import VOTES
from tasks.parties.trial import Endpoints, free_endpoints, lay_out, teachers_of_parties
from terrine.errors import SettingError


def init(
    folder: Path,
    preset: str | None,
    assignments: Sequence[str],
    *,
    parties: int,
    minimum: int | None,
    guardian: str,
    student: str,
    account: str,
    epsilon: float | None,
    edition: str,
    days: float,
    class_names: Sequence[str] | None = None,
) -> Terms:
    """Lay out a trial; return its terms.

    Args:
        folder: Where; it must not exist.
        preset: Queries, mechanism and budget are its; None for the one that params.yaml names.
        assignments: section.key=value, laid over it.
        parties: Teacher parties that the preset's teachers are dealt to.
        minimum: Fewest teachers that must be there; None for all.
        guardian: host:port of the guardian; port 0 for a free one.
        student: host:port of the student party.
        account: Name of the parties' data in the guardian's ledger.
        epsilon: Budget of the account over all releases; None for that of this one.
        edition: Names this vote.
        days: For how long certificates are good.
        class_names: By label; None for those of a public benchmark.

    Raises SettingError for settings that parties cannot have, or a folder that exists.
    """
    if folder.exists():
        raise SettingError(f"{folder} exists already. Choose another folder, or remove that one.")
    root, free = project_root(), free_endpoints()
    preset = preset or selected_run(root)
    endpoints = Endpoints(_address(guardian, free.guardian), _address(student, free.student))
    wish = Wish(
        teachers_of_parties(teachers_of_preset(root, preset, assignments), parties),
        ("guardian", endpoints.guardian),
        ("student", endpoints.student),
        class_names=class_names,
        minimum=minimum,
        edition=edition or None,
    )
    proposal, _ = propose(folder / PROPOSAL, preset, assignments, wish)
    terms = proposal.terms
    lay_out(
        folder,
        terms,
        endpoints,
        guardian={"ledger": {"account": account, "epsilon": epsilon or terms.epsilon}},
        student={"learn": {"params": proposal.params["student"], **_public(folder / terms.student, proposal)}},
        teachers={party: _given(folder / party, proposal) for party in terms.teachers},
        days=days,
    )
    return terms


def _given(place: Path, proposal: Proposal) -> dict[str, Any]:
    """Return what a teacher party gives: a file of votes, or data of its own where teachers learn in the session."""
    if proposal.terms.averages is None:
        return {"votes": VOTES, "unit": proposal.terms.unit}
    data = {"name": "folder", "path": str((place / "data").resolve())}
    return {"own": {"params": proposal.params["teacher"] | {"data": data}, **_public(place, proposal)}}


def _public(place: Path, proposal: Proposal) -> dict[str, str]:
    """Copy what is public into a party's folder; return where it lies."""
    copied = proposal.copy(place / PROPOSAL)
    return {"images": f"{PROPOSAL}/{copied.images.name}", "backbone": f"{PROPOSAL}/{copied.backbone.name}"}


def _address(given: str, free: str) -> str:
    check_address(given)
    host, _, port = given.rpartition(":")
    return f"{host}:{free.rpartition(':')[2]}" if port == "0" else given
