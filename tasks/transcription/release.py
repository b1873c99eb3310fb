"""Release of a transcription: cost, identity in the ledger, sources of noise, and privacy statement.

A run has a single release: the randomised labels, or all annotations, which are reserved before the first is drawn and
committed after the last. Noise is never drawn twice for one identity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.artefacts.records import read_dataset
from tasks.runtime.accounts import ledger_account, open_registered, site_key, stored_people
from tasks.runtime.approval import Proposal
from tasks.runtime.release_identity import Kind, compute_identity, describe_release
from tasks.runtime.releases import Release, record_facts
from tasks.runtime.run import Run
from tasks.runtime.task import load_task
from tasks.transcription.clients import GENERATOR, STUDENT, number_of_clients, read_manifest, section
from terrine.determinism.randomness import derive_seed
from terrine.errors import LedgerError, SettingError
from terrine.files import file_digest
from terrine.privacy.accounting.events import Event, NonPrivateEvent
from terrine.privacy.facts import Facts
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.ledger.site_key import keyed_digest
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseKind, NoiseSource, ReplayNoise, SecureNoise, delta_slack
from terrine.privacy.randomised_response import ReplayResponse, ResponseSource, SecureResponse
from terrine.privacy.statement import PrivacyStatement, PublicInput, Unit
from terrine.transcription.accounting import check_budget, claimed, event_of
from terrine.transcription.annotation import DataAnnotation
from terrine.transcription.settings import Transcription


def check_run(run: Run, classes: int | None = None) -> None:
    """Check the budget and, if the number of classes is known, annotation.top_k.

    Raises:
        BudgetError: The run exceeds its budget; the message names a setting that would keep it within the budget.
        SettingError: `top_k` exceeds the number of classes, or there are too many clients.
    """
    settings = section(run.params)
    if classes is not None and settings.annotation.top_k > classes:
        raise SettingError(
            f"transcription.annotation.top_k={settings.annotation.top_k}, but the data have {classes} classes. Set it "
            f"to {classes} or less."
        )
    if settings.protect == "data":
        DataAnnotation(settings.annotation).check_clients(number_of_clients(run))
    check_budget(settings, classes or 2)


def account_of_run(run: Run) -> str:
    """Return the account of the run.

    An account with a budget has one unit (`Ledger.register`), so it cannot have releases about both labels and records.
    Without a budget, labels have a separate account.
    """
    account = ledger_account(run)
    if section(run.params).protect == "labels" and run.params.ledger.epsilon is None:
        return keyed_digest(site_key(run), "terrine ledger account of labels", account.encode())
    return account


def unit_of(run: Run) -> Unit:
    """Return the unit of privacy of the run's release."""
    return "label" if section(run.params).protect == "labels" else run.params.privacy.unit


def is_of_public(run: Run) -> bool:
    """Return True if the records and the teacher's training data are public."""
    settings = run.params.transcription
    return run.params.data.public_benchmark and (settings is None or settings.teacher.anyone_may_know)


def open_account(run: Run) -> Ledger:
    """Return the ledger with the run's account registered, as `open_registered` does."""
    delta, public = section(run.params).delta, is_of_public(run)
    return open_registered(run, account_of_run(run), delta=delta, unit=unit_of(run), public=public)


def release_terms(run: Run, classes: int, task: Task | None = None) -> dict[str, Any]:
    """Return the arguments of `Ledger.release` for the run's annotations or randomised labels, without `draw`.

    task: Task of the run, needed if its records have not been read yet.
    """
    task = task or load_task(run)
    settings, account = section(run.params), account_of_run(run)
    kind: Kind = "labels" if settings.protect == "labels" else "annotations"
    noise = {"kind": settings.noise} | ({"seed": run.params.seed} if settings.noise == "replay" else {})
    return {
        "dataset": account,
        "release_id": compute_identity(run, account, noise, kind, task=task),
        "run": run.name,
        "worst_case": event_of(settings, classes),
        "delta": settings.delta,
        "noise_kind": noise_kind(settings),
        "data": stored_people(run),
        "task": task,
    }


def noise_of(run: Run, iteration: int) -> NoiseSource | None:
    """Return the noise source of an iteration: secure, replayed from the iteration's seed, or None."""
    settings = section(run.params)
    if settings.protect != "data" or settings.noise == "none":
        return None
    if settings.noise == "secure":
        return SecureNoise()
    return ReplayNoise(derive_seed(run.params.seed, "replayed noise of annotations", iteration))


def responses_of(run: Run, iteration: int, client: int) -> ResponseSource:
    """Return the randomised-response source for a group of clients in an iteration; for labels, both numbers are 0."""
    if section(run.params).noise == "secure":
        return SecureResponse()
    return ReplayResponse(derive_seed(run.params.seed, "replayed answers", iteration, client))


def noise_kind(settings: Transcription) -> NoiseKind:
    """Return the run's noise kind for the ledger. A release without noise is recorded as `secure`: made only once."""
    return "replay" if settings.noise == "replay" else "secure"


def statement_of(
    run: Run, release: StoredRelease, classes: int, answered_per_class: tuple[int, ...]
) -> PrivacyStatement:
    """Create the privacy statement from the settings and the ledger."""
    settings = section(run.params)
    samples = settings.samples
    return PrivacyStatement(
        **describe_release(run, account_of_run(run), release),
        unit=unit_of(run),
        trust_model="central",
        event=NonPrivateEvent() if settings.unprotected else release.event,
        delta=settings.delta,
        delta_slack=delta_slack(settings.coordinates(classes), settings.epsilon),
        epsilon_budget=settings.epsilon,
        noise=noise_kind(settings),
        mechanism=_mechanism(settings),
        teachers=number_of_clients(run),
        queries=samples,
        queried=samples,
        answered=samples,
        answered_per_class=answered_per_class,
        public_inputs=_public_inputs(run),
        facts=Facts(**record_facts(run.params)),
        epsilon_claimed=claimed(settings, classes),
    )


def _mechanism(settings: Transcription) -> dict[str, Any]:
    annotation = settings.annotation
    common: dict[str, Any] = {"samples": settings.samples, "top_k": annotation.top_k}
    gradients = {"sigma": annotation.sigma or 0.0, "beta": annotation.beta, "norm": annotation.norm}
    if settings.generator.discriminator == "teacher":
        common["discriminator"] = "teacher"
    if settings.protect == "data":
        return {"mechanism": "annotation", **gradients, "iterations": settings.iterations, **common}
    if settings.protect == "answers":
        return {"mechanism": "answers", "epsilon": annotation.epsilon, **common}
    return {"mechanism": "labels", "epsilon": annotation.epsilon}


def _public_inputs(run: Run) -> tuple[PublicInput, ...]:
    start, seed = run.folders.start, run.params.seed
    student = section(run.params).student.architecture
    fixed = (
        "fixed features, fitted to images of the untrained generator" if student == "scattering" else "initial weights"
    )
    return (
        PublicInput("generator", f"initial weights drawn with seed {seed}", file_digest(start / GENERATOR)),
        PublicInput("student", f"{student}: {fixed}, seed {seed}", file_digest(start / STUDENT)),
    )


def stored_labels(run: Run) -> StoredRelease | None:
    """Return the stored release of the run's labels from the ledger, at no cost, or None if labels are not released.

    Raises LedgerError if the labels were never released.
    """
    if section(run.params).protect != "labels":
        return None
    ledger, terms = open_account(run), release_terms(run, read_dataset(run.folders).classes)

    def never() -> tuple[dict[str, np.ndarray], Event]:
        raise LedgerError("The labels of this run were never released. Run the stage 'labels' first.")

    if not ledger.committed(terms["release_id"]):
        never()  # raises an error before anything is reserved
    return ledger.release(**terms, draw=never)


def propose_labels(run: Run) -> Proposal:
    """Propose the release of randomised labels, if labels are protected (`tasks.runtime.approval`)."""
    return _proposal(run, "labels" if section(run.params).protect == "labels" else None)


def propose_annotations(run: Run) -> Proposal:
    """Propose the release of annotations, unless labels are released instead."""
    if section(run.params).protect == "labels":
        return _proposal(run, None)
    return _proposal(run, "annotations", teachers=read_manifest(run)["digest"])


def _proposal(run: Run, kind: Kind | None, **inputs: str) -> Proposal:
    releases = []
    if kind is not None:
        terms = release_terms(run, read_dataset(run.folders).classes)
        releases = [Release(kind, terms["release_id"], terms["worst_case"])]
    inputs |= {"records": run.folders.dataset_manifest()["fingerprint"]}
    delta = section(run.params).delta
    return Proposal(open_account(run), account_of_run(run), releases, inputs, unit_of(run), delta)
