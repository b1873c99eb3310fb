"""Release by parties: the aggregate stage of a run with `aggregation.where: parties` starts all parties locally.

The trial's folders are beside the ledger and stay until the release is complete, so an interrupted trial continues with
the same noise. The answers stay as long as the ledger; asking again costs nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.config.values import digest, read_yaml
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import CONFIG, TERMS, read_party
from tasks.parties.submit import Report
from tasks.parties.terms import TableColumns, Teaching, Terms, checked, epsilon_per_unit
from tasks.parties.trial import GUARDIAN, STUDENT, lay_out, run_trial, teachers_of_parties, with_keys
from tasks.runtime.accounts import PEOPLE, open_account, stored_people
from tasks.runtime.release_identity import Inputs
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from tasks.runtime.task import load_task
from terrine.aggregation.adaptive_queries import NEVER
from terrine.aggregation.fixed_point import FixedPoint
from terrine.aggregation.mechanism import UNANSWERED
from terrine.aggregation.records import Records
from terrine.aggregation.sums import mu_left
from terrine.determinism.randomness import derive_seed
from terrine.errors import BudgetError
from terrine.files import file_digest
from terrine.ports import HOST
from terrine.privacy.accounting.events import compose, from_json
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.ledger.task import Task
from terrine.teachers.averaging.shared import SharedAverages

INPUTS = "inputs.json"


def trial_folder(run: Run, identity: Mapping[str, Any]) -> Path:
    """Return the folder of a run's trial, beside the ledger that records it."""
    return run.path(run.params.ledger.store).parent / "parties" / digest(identity, 32)


def trial_terms(run: Run, class_names: Sequence[str], edition: str) -> Terms:
    """Return the terms of a run's trial; keys of its parties are created in its folder."""
    own = run.params.collaboration
    teachers = teachers_of_parties(run.params.partition.teachers, own.parties)
    values = make_terms(run, teachers, class_names=class_names, minimum=own.minimum, edition=edition)
    values |= {"deadline": own.deadline}
    about: dict[str, Any] = {
        "keys": {name: f"ed25519:{number:064x}" for number, name in enumerate((GUARDIAN, STUDENT, *teachers))},
        "services": {role: {"url": f"https://{HOST}:1"} for role in (GUARDIAN, STUDENT)},
    }
    folder = trial_folder(run, checked(values | about).identity())
    if (folder / STUDENT / TERMS).is_file():
        return checked(read_yaml(folder / STUDENT / TERMS))
    return checked(values | with_keys(folder, [*teachers]))


def make_terms(
    run: Run,
    teachers: Mapping[str, int],
    *,
    class_names: Sequence[str],
    minimum: int | None = None,
    edition: str = "",
    overlap: int = 1,
    records: int | None = None,
    teaching: Teaching | None = None,
    averages: SharedAverages | None = None,
) -> dict[str, Any]:
    """Return terms, without keys and services, for the queries of a run whose images and backbone exist.

    The number of queries is the largest that the budget certainly pays for. A person is one unit at each of `overlap`
    parties (`Terms.event`), so a budget μ pays only for the queries that μ / overlap would. Averages take their share
    first.

    Args:
        run: The run.
        teachers: Number of teachers of every party.
        class_names: Class names by label.
        minimum: Smallest number of teachers; None for all.
        edition: Name of the release.
        overlap: Largest number of parties that hold data of one person.
        records: With sums: largest number of records per teacher; None for the largest that shares can represent.
        teaching: How teachers are trained; None leaves it to each party.
        averages: Averages before the votes, if teachers average.

    Raises:
        BudgetError: The budget pays for no answer.
    """
    settings, total = run.params.aggregation, sum(teachers.values())
    images = read_json(run.folders.images / "manifest.json")
    shards = images["shards"]["queries"]
    about: dict[str, Any]
    if settings.reveals == "sums":
        length = query_features(run, "original").shape[1] + 1
        schedule = settings.schedule(mu_left(settings.epsilon, settings.delta) / overlap)
        known = {key: value for key, value in asdict(schedule).items() if key in Terms.model_fields}
        about = known if schedule.rounds else {"sigma": known["sigma"]}
        most = FixedPoint(length, len(class_names), schedule).most_units // total
        about |= {"length": length, "records": records or most, "mechanism": settings.mechanism}
        queries = queried = 1
    else:
        queries, about = sum(shard["count"] for shard in shards), settings.describe()
        if averages is not None:
            about |= {"noise_multiplier": averages.averaging.noise_multiplier, "weights": averages.weights}
            about |= {"features": averages.features or None}
        epsilon = epsilon_per_unit(settings.epsilon, settings.delta, overlap)
        spent = compose() if averages is None else averages.event
        queried = settings.certain(queries, epsilon, settings.delta, spent)
        if teaching is not None:
            about["teaching"] = teaching.model_dump(mode="json")
    if queried == 0:
        raise BudgetError(
            f"aggregation.epsilon={settings.epsilon:g} does not pay for one answer with this noise. Raise it, or use "
            "more noise. No noise was drawn, and nothing was charged."
        )
    data: Any = run.params.data
    return {
        "teachers": dict(teachers),
        "unit": run.params.privacy.unit,
        "overlap": overlap,
        "minimum": minimum or total,
        "queries": queries,
        "queried": queried,
        "queries_digest": file_digest(run.folders.images / "manifest.json"),
        "query_shards": [shard["sha256"] for shard in shards],
        "size": images.get("size"),
        "channels": images.get("channels"),
        "table": None if data.of_images else {key: getattr(data, key) for key in TableColumns.model_fields},
        "fit": getattr(data, "fit", "stretch"),
        "window": getattr(data, "limits", None) or getattr(data, "window", None),
        "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
        "backbone_manifest": file_digest(run.folders.backbone / "manifest.json"),
        "class_names": list(class_names),
        **about,
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "edition": edition,
    }


def release_by_parties(
    run: Run,
    class_names: Sequence[str],
    release_id: str,
    held: Callable[[Mapping[str, int]], Mapping[str, np.ndarray]],
    inputs: Inputs,
) -> StoredRelease:
    """Release through a guardian and a student party, or return what they released before.

    Args:
        run: The run.
        class_names: Class names by label.
        release_id: Identity of the run's answers in the ledger.
        held: Function from the number of teachers of each party to what each holds: votes, sums or records.
        inputs: Digests of the release's inputs, stored with it.

    Raises:
        TrialError: A service stopped; running the command again resumes the trial.
    """
    _, account = open_account(run)  # the guardian opens the ledger itself
    terms = trial_terms(run, class_names, release_id)
    folder = trial_folder(run, terms.identity())
    config = folder / STUDENT / CONFIG
    about = stored_answers(read_party(config)) if config.is_file() else None
    reused = about is not None and about["guardian"] is not None
    if not reused:
        own = run.params.collaboration
        given = {name: reported(terms, name, values) for name, values in held(terms.teachers).items()}
        teachers = {name: {"own": {"params": {"privacy": {"unit": terms.unit}}}} for name in terms.teachers}
        lay_out(folder, terms, guardian=_guardian(run, account), teachers=teachers)
        if not (folder / INPUTS).is_file():
            write_json(folder / INPUTS, inputs)
        about = run_trial(folder, lambda party: given[party.name], limit=60.0 + (1 + terms.last) * own.deadline)
    assert about is not None
    release = stored_release(about, terms, read_arrays(read_party(config)))
    for name in terms.teachers:
        shutil.rmtree(folder / name, ignore_errors=True)
    inputs = read_json(folder / INPUTS) if (folder / INPUTS).is_file() else {}
    return replace(release, reused=reused, inputs=inputs)


def reported(terms: Terms, name: str, values: np.ndarray) -> Report:
    """Return the reports of a party of a trial, from its votes, its sums in steps, or its records."""
    if (fixed := terms.fixed_point) is None:
        return lambda number, weights: values[: terms.queried]
    most = terms.teachers[name] * (terms.records or 0)
    if not fixed.schedule.rounds:
        return lambda number, weights: fixed.shared(values, most, number)[:, None]
    make = Records.of if len(values) else Records
    summed = fixed.schedule.summing(make(values["vector"], values["label"], values["unit"], terms.classes))
    return lambda number, weights: fixed.shared(summed(weights), most, number)[:, None]


def _guardian(run: Run, account: str) -> dict[str, Any]:
    ledger, task = run.params.ledger, load_task(run)
    settings: dict[str, Any] = {
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
    }
    if run.params.aggregation.noise == "replay":
        settings["replay_seed"] = derive_seed(run.params.seed, "replayed noise")
    return settings


def stored_release(about: Mapping[str, Any], terms: Terms, arrays: Mapping[str, np.ndarray]) -> StoredRelease:
    """Return the release of a student party's answers, with the guardian's charge."""
    record = about["guardian"]
    return StoredRelease(
        release_id=record["release_id"],
        arrays=released_arrays(terms, **arrays),
        event=from_json(record["event"]),
        digest=record["digest"],
        reused=False,
        epsilon_total=record["epsilon_total"],
        guarantee=record["epsilon_account"],
        task=None if record["task"] is None else Task.from_json(record["edition"], record["task"]),
    )


def released_arrays(terms: Terms, passed: np.ndarray, result: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a release of all queries, or of sums.

    Args:
        terms: The terms.
        passed: bool [asked].
        result: int64, labels [asked] or noisy histograms [asked, classes]; or sums [numbers, 1].
    """
    if terms.fixed_point is not None:
        return terms.fixed_point.released(result[:, 0])
    labels = np.full(terms.queries, UNANSWERED, dtype=np.int64)
    answered = np.zeros(terms.queries, dtype=np.bool_)
    turn = np.full(terms.queries, NEVER, dtype=np.int64)
    answered[: terms.queried], turn[: terms.queried] = passed, 0
    arrays: dict[str, np.ndarray] = {"answered": answered, "labels": labels, "round": turn}
    if result.ndim == 2:
        histograms = np.full((terms.queries, terms.classes), np.nan)
        histograms[: terms.queried][passed] = result[passed]
        arrays["histograms"] = histograms
        result = result.argmax(axis=1)
    labels[: terms.queried][passed] = result[passed]
    return arrays
