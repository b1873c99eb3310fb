"""aggregate: read the votes, and write the noisy answers and the privacy statement.

The ledger returns an existing release, checks the account's budget over all runs, and reserves the worst-case cost
before noise is drawn (docs/ledger.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tasks.artefacts.averages import coordinates_released, describe_averages
from tasks.artefacts.records import partition_settings
from tasks.artefacts.released import sums_over_records
from tasks.artefacts.teachers import (
    cost_before_votes,
    make_findings,
    read_teachers_manifest,
    read_votes,
    teachers_made_from,
    votes_made_from,
)
from tasks.parties.release import release_by_parties
from tasks.pipeline.figures.released_accuracy import check_use_of_accuracy
from tasks.pipeline.moments import compute_statistics, count_moments, describe_moments, release_moments
from tasks.pipeline.public_inputs import describe_records
from tasks.pipeline.query_strategy import adviser, describe_selection
from tasks.pipeline.sums import release_sums
from tasks.pipeline.vote_costs import private_figures
from tasks.reports.statement_page import write_statement_and_page
from tasks.runtime.accounts import ledger_account, noise_source, open_account, site_key, stored_people
from tasks.runtime.release_identity import Inputs, check_queries, describe_release, input_digests, record_data_change
from tasks.runtime.releases import assurance, check_releases, describe_counting, describe_order, identity_in_ledger
from tasks.runtime.run import Run
from tasks.runtime.staleness import check_made
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, read_json, write_array, write_json, write_table, write_tensors
from tasks.runtime.task import check_task, load_task
from terrine.aggregation.release import answer_facts, count_queried, release_histograms
from terrine.aggregation.votes import answer_names, count_finding_votes, count_votes
from terrine.data.content_digest import digest_of_arrays
from terrine.deployment.model import MOMENTS
from terrine.files import file_digest
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.statement import PrivacyStatement
from terrine.teachers.averaging.averaged import AveragedTeachers


@step("aggregate")
def release_answers(run: Run) -> None:
    """Turn votes into noisy answers, charge the ledger, and write the answers and their privacy statement.

    For sum mechanisms, delegates to `tasks.pipeline.sums`.
    """
    if sums_over_records(run):
        release_sums(run, identity_in_ledger(run, "answers"))
        return
    votes_manifest = read_json(run.folders.votes / "manifest.json")
    _check_origin(run, votes_manifest)
    votes = read_votes(run.folders)
    findings = make_findings(run)
    histograms = (
        count_votes(votes, votes_manifest["classes"])
        if findings is None
        else count_finding_votes(votes, findings.number, findings.bound)
    )
    mechanism = run.params.aggregation
    digest = digest_of_arrays("terrine votes 1", {"votes": (votes, "<i8")}, site_key(run))
    inputs = input_digests(run, votes=digest, queries=file_digest(run.folders.images / "manifest.json"))
    check_use_of_accuracy(run)
    check_releases(run, len(histograms))
    moments = release_moments(run)
    if mechanism.where == "parties":
        release_id = identity_in_ledger(run, "answers")
        names = votes_manifest["class_names"]
        release = release_by_parties(run, names, release_id, lambda teachers: split_votes(votes, teachers), inputs)
    else:
        release = release_once(run, histograms, inputs)
    check_queries(run, release, inputs)
    write_answers(run, votes_manifest, release, moments)
    with atomic_folder(run.folders.accounting) as folder:
        write_array(folder / "histograms.npy", histograms)
        write_json(folder / "figures.json", private_figures(mechanism, mechanism.delta, histograms, release))
    record_data_change(run, "answers", release, inputs)
    names = answer_names(votes_manifest["class_names"], findings is not None)
    write_statement_and_page(run, privacy_statement(run, votes_manifest, release), names)


def split_votes(votes: np.ndarray, teachers: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Split votes [queries, teachers] among parties, given their numbers of teachers."""
    ends = np.cumsum(list(teachers.values()))[:-1]
    return dict(zip(teachers, np.split(votes, ends, axis=1), strict=True))


def _check_origin(run: Run, votes: dict[str, Any]) -> None:
    """Check that votes, teachers and partition were made with the settings that the statement names."""
    dealt, expected = read_json(run.folders.partition / "manifest.json"), partition_settings(run)
    check_made(
        run,
        partition=all(dealt.get(name) == value for name, value in expected.items()),
        teachers=read_teachers_manifest(run.folders).get("made_from") == teachers_made_from(run),
        votes=votes.get("made_from") == votes_made_from(run),
    )


def release_once(run: Run, histograms: np.ndarray, inputs: Inputs) -> StoredRelease:
    """Release answers through the ledger, or return the stored ones for the same account, edition and settings."""
    settings = run.params.aggregation
    ledger, dataset = open_account(run)
    # The adviser reads its inputs now, because nothing may fail after the worst case has been reserved.
    advise = adviser(run, int(histograms[0].sum()), histograms.shape[1])
    return release_histograms(
        ledger,
        settings,
        histograms,
        account=dataset,
        release_id=identity_in_ledger(run, "answers"),
        run=run.name,
        epsilon=settings.epsilon,
        delta=settings.delta,
        noise=noise_source(run),
        inputs=inputs,
        rounds=run.params.queries.rounds,
        adviser=advise,
        data=stored_people(run),
        task=load_task(run),
        **_before(run),
    )


def _before(run: Run) -> dict[str, Any]:
    """Return the arguments about earlier releases for `release_histograms` and `answer_facts`."""
    return {
        "before": cost_before_votes(run),
        "drawn_before": coordinates_released(run) + count_moments(run) + (run.params.privacy.counted > 0),
        "unprotected": run.params.teachers.unprotected,
    }


def write_answers(
    run: Run, votes_manifest: dict[str, Any], release: StoredRelease, moments: StoredRelease | None
) -> None:
    """Write released answers and their manifest.

    Args:
        run: The run.
        votes_manifest: `teachers`, `classes` and `class_names` of the votes.
        release: The release.
        moments: Released moments, if any.

    Raises:
        ArtefactError: If the stored release is for other classes than the run.
    """
    check_task(release, votes_manifest["class_names"])
    arrays = release.arrays
    numbers, findings = np.arange(len(arrays["labels"])), run.params.aggregation.findings
    table = {
        "query": numbers // findings,
        **({"finding": numbers % findings} if findings > 1 else {}),
        "round": arrays["round"],
        "answered": arrays["answered"],
        "label": arrays["labels"],
    }
    if "reinforced" in arrays:
        table["reinforced"] = arrays["reinforced"]
    if "histograms" in arrays:
        table |= {f"count_{number}": arrays["histograms"][:, number] for number in range(votes_manifest["classes"])}
    with atomic_folder(run.folders.answers) as folder:
        write_table(folder / "answers.parquet", pd.DataFrame(table))
        if moments is not None:
            write_tensors(folder / MOMENTS, compute_statistics(run, moments))
        write_json(
            folder / "manifest.json",
            {
                **run.params.aggregation.describe(),
                "release_id": release.release_id,
                "teachers": votes_manifest["teachers"],
                "class_names": votes_manifest["class_names"],
                "queries": len(arrays["labels"]),
                "queried": count_queried(release),
                "answered": int(arrays["answered"].sum()),
                "noise": run.params.aggregation.noise,
            },
        )


def privacy_statement(run: Run, votes_manifest: dict[str, Any], release: StoredRelease) -> PrivacyStatement:
    """Return the statement of the release, from public quantities and the recorded event only."""
    settings, teachers = run.params.aggregation, run.params.teachers
    blocks = isinstance(teachers, AveragedTeachers) and teachers.block is not None
    return PrivacyStatement(
        **describe_release(run, ledger_account(run), release),
        unit=run.params.privacy.unit,
        trust_model="parties" if settings.where == "parties" else "central",
        noise=settings.noise,
        mechanism={
            **settings.describe(),
            **describe_selection(run),
            **describe_averages(run),
            **({"block": teachers.block} if blocks else {}),
            **describe_order(run.params),
            **describe_counting(run.params),
            **describe_moments(run),
        },
        **describe_records(run),
        **answer_facts(
            release,
            settings,
            teachers=votes_manifest["teachers"],
            classes=votes_manifest["classes"],
            epsilon=settings.epsilon,
            delta=settings.delta,
            **_before(run),
        ),
        **assurance(run, settings.describe()),
    )
