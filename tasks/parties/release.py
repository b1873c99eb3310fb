"""A release by parties: the aggregate stage of a run with `aggregation.where: parties`, as a trial on this machine.

Every party is a process with a folder of its own, and they speak over mutual TLS, as they would between institutions.
What comes back is what the student party learned and what the guardian charged; then the run goes on as any other.

The folders lie beside the ledger and stay until the release is complete, so a trial that was interrupted is finished
with the same noise; the answers stay there for as long as the ledger does, and asked again they cost nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.values import digest
from tasks.parties.agreement.agreed import agreed
from tasks.parties.agreement.terms import Terms
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import read_party
from tasks.parties.trial import CONFIG, Endpoints, free_endpoints, lay_out, run_trial, teachers_of_parties
from tasks.runtime.accounts import PEOPLE, stored_people
from tasks.runtime.identity import Inputs
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_array, write_json
from tasks.runtime.task import task_of
from terrine.aggregation.adaptive_queries import NEVER
from terrine.aggregation.mechanism import UNANSWERED
from terrine.determinism.randomness import derive_seed
from terrine.privacy.accounting.events import from_json
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.ledger.task import Task

VOTES, INPUTS = "votes.npy", "inputs.json"


def trial_terms(run: Run, class_names: Sequence[str], edition: str) -> Terms:
    """Return what the parties of a run's trial agree on, as `agreed` does."""
    own = run.params.collaboration
    teachers = teachers_of_parties(run.params.partition.teachers, own.parties)
    return agreed(run, teachers, class_names=class_names, minimum=own.minimum, edition=edition)


def trial_folder(run: Run, terms: Terms) -> Path:
    """Return where the parties of this very trial live: beside the ledger that knows of it."""
    return run.path(run.params.ledger.store).parent / "parties" / digest(terms.identity(), 32)


def release_by_parties(
    run: Run, terms: Terms, held: Callable[[], Mapping[str, np.ndarray]], *, account: str, inputs: Inputs
) -> StoredRelease:
    """Release through a guardian and a student party; the same terms again cost nothing.

    terms: `trial_terms`; their edition is the identity of the run's answers. held: returns what each teacher party
    holds, its votes or its sums; called where nothing was released yet. account: what is charged, registered in the
    ledger. inputs: what is remembered about what the answers are drawn from; it stays in the trial's folder.

    Raises TrialError where a party failed, in its own words; running again goes on where it ended.
    """
    folder = trial_folder(run, terms)
    reused = _is_complete(folder, terms)
    if not reused:
        _lay_out(run, folder, terms, held(), account)
        # Parties that were interrupted go on with the sums of the votes that they had.
        if not (folder / INPUTS).is_file():
            write_json(folder / INPUTS, inputs)
        own = run.params.collaboration
        run_trial(folder, limit=2 * (own.deadline + own.patience) + terms.last * own.deadline)
    config = read_party(folder / terms.student / CONFIG)
    about = stored_answers(config)
    assert about is not None
    release = stored_release(about, terms, read_arrays(config))
    for name in (*terms.teachers, "authority"):
        shutil.rmtree(folder / name, ignore_errors=True)
    inputs = read_json(folder / INPUTS) if (folder / INPUTS).is_file() else {}
    return replace(release, reused=reused or release.reused, inputs=inputs)


def stored_release(about: dict[str, Any], terms: Terms, arrays: Mapping[str, np.ndarray]) -> StoredRelease:
    """Return the release that a student party's answers are: what it learned, and what the guardian charged."""
    record = about["guardian"]
    return StoredRelease(
        release_id=record["release_id"],
        arrays=released_arrays(terms, **arrays),
        event=from_json(record["event"]),
        digest=record["digest"],
        reused=record["reused"],
        epsilon_total=record["epsilon_total"],
        guarantee=record["epsilon_account"],
        task=None if record["task"] is None else Task.from_json(record["edition"], record["task"]),
    )


def released_arrays(terms: Terms, passed: np.ndarray, result: np.ndarray) -> dict[str, np.ndarray]:
    """Turn what the student party learned into the arrays of a release of all queries, or of sums.

    passed: bool [asked]. result: int64, labels [asked] or noisy histograms [asked, classes]; or sums [numbers, 1].
    """
    if terms.fixed_point is not None:
        return terms.fixed_point.released(result[:, 0])
    labels = np.full(terms.queries, UNANSWERED, dtype=np.int64)
    answered = np.zeros(terms.queries, dtype=np.bool_)
    turn = np.full(terms.queries, NEVER, dtype=np.int64)
    answered[: terms.asked], turn[: terms.asked] = passed, 0
    arrays = {"answered": answered, "labels": labels, "round": turn}
    if result.ndim == 2:
        histograms = np.full((terms.queries, terms.classes), np.nan)
        histograms[: terms.asked][passed] = result[passed]
        arrays["histograms"] = histograms
        result = result.argmax(axis=1)
    labels[: terms.asked][passed] = result[passed]
    return arrays


def _lay_out(run: Run, folder: Path, terms: Terms, held: Mapping[str, np.ndarray], account: str) -> None:
    settings, own, ledger, task = run.params.aggregation, run.params.collaboration, run.params.ledger, task_of(run)
    free = free_endpoints()
    guardian: dict[str, Any] = {
        "ledger": {
            "url": run.database(ledger.url),
            "key": str(run.path(ledger.key).resolve()),
            "store": str(run.path(ledger.store).resolve()),
            "account": account,
            "named": False,
            "epsilon": ledger.epsilon,
            "run": run.name,
            "site": str(run.site.resolve()),
            "people": None if stored_people(run) is None else str((run.folders.dataset / PEOPLE).resolve()),
            "task": {"edition": task.edition, **task.to_json()},
        },
        "noise": settings.noise,
    }
    if settings.noise == "replay":
        guardian["replay_seed"] = derive_seed(run.params.seed, "replayed noise")
    lay_out(
        folder,
        terms,
        Endpoints(own.guardian or free.guardian, own.student or free.student),
        guardian=guardian,
        teachers={name: {"votes": VOTES, "unit": terms.unit} for name in terms.teachers},
        common={"deadline": own.deadline, "patience": own.patience},
    )
    for name, given in held.items():
        write_array(folder / name / VOTES, given)


def _is_complete(folder: Path, terms: Terms) -> bool:
    path = folder / terms.student / CONFIG
    if not path.is_file():
        return False
    about = stored_answers(read_party(path))
    return about is not None and about["guardian"] is not None
