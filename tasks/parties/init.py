"""`terrine party init`: the terms of a trial from a run's parameters and public artefacts, and its parties' folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tasks.config.params import Params, validate
from tasks.config.presets import project_root, selected_run
from tasks.config.values import merge
from tasks.parties.release import VOTES, trial_terms
from tasks.parties.terms import Terms
from tasks.parties.trial import Endpoints, free_endpoints, lay_out
from tasks.runtime.run import Run, open_run
from tasks.runtime.store import read_json
from terrine.errors import ArtefactError, SettingError


def init_from_run(
    folder: Path,
    name: str | None,
    *,
    parties: int,
    minimum: int | None,
    guardian: str,
    student: str,
    account: str,
    epsilon: float | None,
    edition: str,
    days: float,
) -> Terms:
    """Lay out a trial about the queries of a run; return its terms.

    Args:
        folder: Where; it must not exist.
        name: The run; None for the one selected last. Its images must have been drawn and its dataset read.
        parties: Teacher parties that the run's teachers are dealt to.
        minimum: Fewest teachers that must be there; None for all.
        guardian: host:port of the guardian; port 0 for a free one.
        student: host:port of the student party.
        account: Name of the parties' data in the guardian's ledger.
        epsilon: Budget of the account over all releases; None for that of this one.
        edition: Names this vote.
        days: For how long certificates are good.

    Raises:
        SettingError: settings that parties cannot have, or a folder that exists.
        ArtefactError: the run has no images or dataset yet.
    """
    if folder.exists():
        raise SettingError(f"{folder} exists already. Choose another folder, or remove that one.")
    root = project_root()
    run = open_run(root, name or selected_run(root))
    run = Run(run.root, run.name, _with_parties(run.params, parties, minimum))
    if not (run.folders.images / "manifest.json").is_file():
        raise ArtefactError(f"{run.folders.images} is missing. Draw the queries first: dvc repro, or terrine run.")
    classes = len(read_json(run.folders.dataset / "manifest.json")["class_names"])
    terms = trial_terms(run, run.params.queries.count, classes, edition)
    free = free_endpoints()
    lay_out(
        folder,
        terms,
        Endpoints(_address(guardian, free.guardian), _address(student, free.student)),
        guardian={"ledger": {"account": account, "epsilon": epsilon or terms.epsilon}},
        student=_learning(run, folder / terms.student),
        teachers={party: {"votes": VOTES, "unit": terms.unit} for party in terms.teachers},
        common={"deadline": run.params.collaboration.deadline, "patience": run.params.collaboration.patience},
        days=days,
    )
    return terms


def _learning(run: Run, place: Path) -> dict[str, Any]:
    """Return how the student party makes its student; what is public for that is copied into its folder."""
    for public, name in ((run.folders.images, "queries"), (run.folders.backbone, "backbone")):
        shutil.copytree(public, place / name, copy_function=shutil.copyfile)
    names = read_json(run.folders.dataset / "manifest.json")["class_names"]
    params = {"student": run.params.student.model_dump(mode="json"), "seed": run.params.seed}
    return {"learn": {"images": "queries", "backbone": "backbone", "class_names": names, "params": params}}


def _with_parties(params: Params, parties: int, minimum: int | None) -> Params:
    values = {"aggregation": {"where": "parties"}, "collaboration": {"parties": parties, "minimum": minimum}}
    return validate(merge(params.model_dump(mode="json"), values))


def _address(given: str, free: str) -> str:
    host, _, port = given.rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(f"An address is host:port, not {given!r}.")
    return f"{host}:{free.rpartition(':')[2]}" if port == "0" else given
