"""Release of sums over records instead of votes, in the stage `aggregate`.

Each record is a vector of features of its image (`terrine.aggregation.records`). All rounds of noisy sums are one
release of the ledger, whose worst case is reserved first. If the process dies before the release is stored, its noise
has not been published. A round is therefore neither lost nor released twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features, rows_in_parts
from tasks.artefacts.images import read_backbone
from tasks.artefacts.records import protected_units, read_assignment, read_dataset
from tasks.artefacts.released import SUMS, make_head
from tasks.config.values import digest
from tasks.parties.release import release_by_parties
from tasks.pipeline.figures.errors import exact_head_file
from tasks.pipeline.figures.released_accuracy import check_use_of_accuracy
from tasks.pipeline.moments import compute_statistics, count_moments, describe_moments, release_moments
from tasks.pipeline.public_inputs import describe_records
from tasks.reports.statement_page import write_statement_and_page
from tasks.runtime.accounts import ledger_account, noise_source, release_at_price
from tasks.runtime.parameters import explain_weak_sums
from tasks.runtime.progress import progress_reporter
from tasks.runtime.release_identity import check_queries, describe_release, input_digests, record_data_change
from tasks.runtime.releases import assurance, check_releases, describe_counting, describe_order, inputs_cost
from tasks.runtime.run import Run
from tasks.runtime.store import atomic_folder, read_array, read_tensors, write_array, write_json, write_tensors
from tasks.runtime.task import check_task, load_task
from terrine.aggregation.gradient_rounds import RoundSchedule, moments_in_steps
from terrine.aggregation.records import Records, Whitening, row_type
from terrine.aggregation.sums import mu_left
from terrine.aggregation.votes import answer_names
from terrine.deployment.model import MOMENTS
from terrine.errors import SettingError
from terrine.files import file_digest
from terrine.models.released_statistics import set_statistics
from terrine.privacy.accounting.events import compose
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.noise import check_slack
from terrine.privacy.statement import PrivacyStatement

NOTICE = "PRIVATE: there are no votes, and so no figures of them."


def release_sums(run: Run, release_id: str) -> None:
    """Release sums through the ledger, or read the stored ones, and write them with their privacy statement."""
    settings: Any = run.params.aggregation
    names = run.folders.dataset_manifest()["class_names"]
    before = inputs_cost(run.params)
    mu = mu_left(settings.epsilon, settings.delta, before)
    schedule = settings.schedule(mu)
    whitening = Whitening.fit(query_features(run, "original"))
    numbers = settings.numbers(whitening.length, len(names))
    drawn = numbers + count_moments(run) + (run.params.privacy.counted > 0)
    slack = check_slack(drawn, settings.epsilon, settings.delta, "aggregation.epsilon")
    units = protected_units(run, read_dataset(run.folders))
    weak = explain_weak_sums(run, len(np.unique(units)), len(names), whitening.length, len(units))
    if weak and not run.params.privacy.anyway:
        raise SettingError(weak)
    check_use_of_accuracy(run)
    check_releases(run)
    moments = release_moments(run)
    statistics = None if moments is None else compute_statistics(run, moments)
    noise, records = noise_source(run), run.folders.dataset_manifest()["fingerprint"]
    inputs = input_digests(run, records=records, queries=file_digest(run.folders.images / "manifest.json"))

    def draw() -> dict[str, np.ndarray]:
        return settings.release(_records(run, whitening, statistics), mu, noise) | whitening.arrays

    if settings.where == "parties":
        release = release_by_parties(run, names, release_id, lambda teachers: split_records(run, teachers), inputs)
    else:
        release = release_at_price(run, release_id, schedule.event, noise, draw, inputs, task=load_task(run))
    check_queries(run, release, inputs)
    about = {"teachers": run.params.partition.teachers, "class_names": names, "classes": len(names)}
    write_sums(run, release, schedule, whitening, about, moments)
    exact, path = {}, exact_head_file(run.folders, release.release_id)
    if (_work(run, whitening, statistics) / "vectors.npy").is_file():  # not if the release was stored before
        weights = settings.exact_head(_records(run, whitening, statistics), mu)
        exact = make_head(whitening, weights, settings.findings > 1).to_arrays()
    elif path.is_file():
        exact = read_tensors(path)
    with atomic_folder(run.folders.accounting) as folder:
        write_json(folder / "figures.json", {"notice": NOTICE})
        if exact:
            write_tensors(folder / path.name, exact)
    record_data_change(run, "answers", release, inputs)
    answers = answer_names(names, bool(run.params.data.several))
    write_statement_and_page(run, _statement(run, release, schedule, numbers, slack, len(answers)), answers)
    shutil.rmtree(_work(run, whitening, statistics), ignore_errors=True)


def write_sums(
    run: Run,
    release: StoredRelease,
    schedule: RoundSchedule,
    whitening: Whitening,
    about: dict[str, Any],
    moments: StoredRelease | None,
) -> None:
    """Write released sums and their manifest.

    Args:
        run: The run.
        release: The release.
        schedule: Its rounds.
        whitening: Map from features to vectors.
        about: `teachers`, `classes` and `class_names` of the records.
        moments: Released moments, if any.

    Raises:
        ArtefactError: If the release is for other classes.
    """
    check_task(release, about["class_names"])
    settings: Any = run.params.aggregation
    with atomic_folder(run.folders.answers) as folder:
        write_tensors(folder / SUMS, whitening.arrays | release.arrays)
        if moments is not None:
            write_tensors(folder / MOMENTS, compute_statistics(run, moments))
        write_json(
            folder / "manifest.json",
            {
                **settings.describe(),
                "release_id": release.release_id,
                "teachers": about["teachers"],
                "class_names": about["class_names"],
                "noise": settings.noise,
                "schedule": asdict(schedule),
                **dict.fromkeys(("queries", "queried", "answered"), 0),
                "numbers": settings.numbers(whitening.length, about["classes"]),
            },
        )


def load_summed_records(run: Run) -> Records:
    """Return the records to sum, normalised by released moments if there are any."""
    path = run.folders.answers / MOMENTS
    statistics = read_tensors(path) if run.params.privacy.moments and path.is_file() else None
    return _records(run, Whitening.fit(query_features(run, "original")), statistics)


def plant(run: Run, vectors: np.ndarray, known: np.ndarray | None = None) -> Records:
    """Replace the vectors of a run's last records, and return all records that the next release sums.

    Audits use this to plant canaries. Moments of images, if the run has any, are released here.

    Args:
        run: The run.
        vectors: Vectors of the last records.
        known: Vectors of all other records, if the caller has computed them.
    """
    moments = release_moments(run)
    statistics = None if moments is None else compute_statistics(run, moments)
    whitening = Whitening.fit(query_features(run, "original"))
    if known is None:
        known = _records(run, whitening, statistics).vectors[: -len(vectors)]
    write_array(_work(run, whitening, statistics) / "vectors.npy", np.concatenate([known, vectors]))
    return _records(run, whitening, statistics)


def split_records(run: Run, teachers: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Split the records among the parties of a trial, given their numbers of teachers.

    Returns:
        Each party's sums in integer grid steps, int64 [numbers], or its records [records] if they are asked in rounds.
    """
    records, teacher = load_summed_records(run), read_assignment(run.folders)
    party = np.repeat(np.arange(len(teachers)), list(teachers.values()))[teacher]
    if run.params.aggregation.mechanism == "moments":
        return {name: moments_in_steps(records.subset(party == number)) for number, name in enumerate(teachers)}
    rows = np.empty(len(records.labels), row_type(records.length))
    _, rows["unit"] = np.unique(protected_units(run, read_dataset(run.folders)), return_inverse=True)
    rows["vector"], rows["label"] = records.vectors, records.labels
    return {name: rows[party == number] for number, name in enumerate(teachers)}


def _records(run: Run, whitening: Whitening, statistics: dict[str, np.ndarray] | None) -> Records:
    """Return the vectors and units of all records. Vectors are cached on disk until they are summed."""
    dataset, path = read_dataset(run.folders), _work(run, whitening, statistics) / "vectors.npy"
    backbone = read_backbone(run.folders)
    if statistics is not None:
        set_statistics(backbone, statistics)
    if not path.is_file():
        report = progress_reporter(run.name, "private-features")
        write_array(path, rows_in_parts(path, backbone, dataset.train_images, whitening.vectors, report))
    return Records.of(
        read_array(path, memory_map=True), dataset.train_labels, protected_units(run, dataset), dataset.classes
    )


def _work(run: Run, whitening: Whitening, statistics: dict[str, np.ndarray] | None) -> Path:
    """Return the folder of intermediate results for exactly these inputs."""
    folders = run.folders
    identity = digest(
        {
            "dataset": folders.dataset_manifest()["fingerprint"],
            "backbone": file_digest(folders.backbone / "backbone.safetensors"),
            "queries": file_digest(folders.images / "manifest.json"),
            "moments": {name: sha256(array.data).hexdigest() for name, array in (statistics or {}).items()},
        }
    )
    return folders.work / f"sums-{identity}"


def _statement(
    run: Run, release: StoredRelease, schedule: RoundSchedule, numbers: int, slack: float, classes: int
) -> PrivacyStatement:
    """Return the statement of the release, from public quantities and the recorded event only."""
    settings: Any = run.params.aggregation
    described, before = settings.describe(), inputs_cost(run.params)
    return PrivacyStatement(
        **describe_release(run, ledger_account(run), release),
        unit=run.params.privacy.unit,
        trust_model="parties" if settings.where == "parties" else "central",
        noise=settings.noise,
        mechanism={
            **described,
            "numbers": numbers,
            **describe_order(run.params),
            **describe_counting(run.params),
            **describe_moments(run),
        },
        event=compose(before, release.event),
        event_added=compose(before, schedule.event_added),
        delta=settings.delta,
        delta_slack=slack,
        epsilon_budget=settings.epsilon,
        teachers=run.params.partition.teachers,
        queries=0,
        queried=0,
        answered=0,
        answered_per_class=(0,) * classes,
        **describe_records(run),
        **assurance(run, described | {"mu": mu_left(settings.epsilon, settings.delta, before)}),
    )
