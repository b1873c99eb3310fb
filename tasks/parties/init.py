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
    """Lay out a trial in a folder that must not exist; return its terms.

    Queries, mechanism and budget are those of a preset (None: the run that params.yaml names) with assignments laid
    over it; its teachers are dealt to so many parties. minimum, edition, class_names: see `Wish`. guardian, student:
    host:port of either, port 0 for a free one. account, epsilon: of the guardian's ledger; None for the budget of this
    release. days: for how long certificates are good.

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
