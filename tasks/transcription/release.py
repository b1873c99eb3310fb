"""What a transcription charges the ledger, under which identity, and what it says about itself.

A run releases once: either all its annotations, reserved before the first is drawn and settled after the last, or,
where private labels are randomised before anybody learns from them, these labels. Whatever happens in between, the same
identity never draws twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.config.transcription import Transcription
from tasks.pipeline.dataset import read_dataset
from tasks.runtime.accounts import ledger_account, open_registered
from tasks.runtime.identity import Inputs, Kind, identity_of, made_by, partition_commitment, remembered
from tasks.runtime.keys import site_key
from tasks.runtime.provenance import code_version
from tasks.runtime.run import Run
from tasks.runtime.store import file_digest, read_json
from tasks.transcription.clients import number_of_clients
from tasks.transcription.start import GENERATOR, STUDENT, section
from terrine.data.dataset import Dataset
from terrine.data.digest import keyed_digest as digest_of_arrays
from terrine.determinism.randomness import derive_seed
from terrine.errors import LedgerError, SettingError
from terrine.privacy.accounting.events import Event, NonPrivateEvent
from terrine.privacy.ledger.identity import keyed_digest
from terrine.privacy.ledger.ledger import Ledger, StoredRelease
from terrine.privacy.noise import NoiseSource, ReplayNoise, SecureNoise, delta_slack
from terrine.privacy.randomised_response import ReplayResponse, ResponseSource, SecureResponse
from terrine.privacy.statement import PrivacyStatement, PublicInput
from terrine.transcription.accounting import (
    AnswerCost,
    Cost,
    DataCost,
    LabelCost,
    NoCost,
    check_budget,
    claimed_for_data,
)
from terrine.transcription.annotation import DataAnnotation


def cost_of(settings: Transcription, classes: int) -> Cost:
    """Return what a run with these settings releases."""
    annotation = settings.annotation
    if settings.unprotected:
        return NoCost()
    if settings.protect == "data":
        assert annotation.sigma is not None
        return DataCost(annotation.sigma, settings.samples, settings.samples * annotation.top_k)
    assert annotation.epsilon is not None
    if settings.protect == "answers":
        return AnswerCost(annotation.epsilon, annotation.top_k, settings.samples)
    return LabelCost(annotation.epsilon, classes)


def data_annotation(settings: Transcription) -> DataAnnotation:
    """Return the mechanism of protect=data; for labels that are protected already, the same without noise."""
    annotation = settings.annotation
    return DataAnnotation(
        beta=annotation.beta,
        sigma=annotation.sigma or 0.0,
        top_k=annotation.top_k,
        step=annotation.step,
        limit=annotation.limit,
        stability=annotation.stability,
        distillation=annotation.distillation,
        balance=annotation.balance,
        gradient_of=annotation.gradient_of,
    )


def check_run(run: Run, classes: int | None = None) -> None:
    """Refuse a run that cannot meet its budget, or asks for more classes than there are, before any work is done.

    classes: where they are known by now. Raises BudgetError that says what would meet the budget, SettingError.
    """
    settings = section(run.params)
    if classes is not None and settings.annotation.top_k > classes:
        raise SettingError(
            f"transcription.annotation.top_k={settings.annotation.top_k}, but the data have {classes} classes. Set it "
            f"to {classes} or less."
        )
    if settings.protect == "data":
        data_annotation(settings).check_clients(number_of_clients(run))
    check_budget(cost_of(settings, classes or 2), settings.epsilon, settings.delta)


def account_of(run: Run) -> str:
    """Return whose budget the run draws on.

    An account with a budget is for one unit (`Ledger.register`), so labels and whole records exclude one another there.
    Where nothing is ever refused, labels have an account of their own.
    """
    account = ledger_account(run)
    if section(run.params).protect == "labels" and run.params.ledger.epsilon is None:
        return keyed_digest(site_key(run), "terrine ledger account of labels", account.encode())
    return account


def unit_of(run: Run) -> str:
    """Return what the run's release protects."""
    return "label" if section(run.params).protect == "labels" else run.params.privacy.unit


def open_account(run: Run) -> tuple[Ledger, str]:
    """Return the ledger and the account the run draws on, as `tasks.runtime.accounts.open_registered` does."""
    account, settings = account_of(run), section(run.params)
    public = run.params.data.public_benchmark and settings.teacher.anyone_may_know
    return open_registered(run, account, delta=settings.delta, unit=unit_of(run), public=public), account


def noise_of(run: Run, iteration: int) -> NoiseSource | None:
    """Return the noise of one iteration: of the operating system, replayed from a seed of its own, or none."""
    settings = section(run.params)
    if settings.protect != "data" or settings.noise == "none":
        return None
    if settings.noise == "secure":
        return SecureNoise()
    return ReplayNoise(derive_seed(run.params.seed, "replayed noise of annotations", iteration))


def responses_of(run: Run, iteration: int, client: int) -> ResponseSource:
    """Return where the answers of one iteration, from this client on, come from; labels are iteration 0, client 0."""
    if section(run.params).noise == "secure":
        return SecureResponse()
    return ReplayResponse(derive_seed(run.params.seed, "replayed answers", iteration, client))


def noise_kind(run: Run) -> str:
    """Return the kind of the run's noise, as the ledger knows it: without any noise nothing is drawn twice, either."""
    return "replay" if section(run.params).noise == "replay" else "secure"


def release_event(run: Run, classes: int) -> Event:
    """Return what the run's release costs."""
    return cost_of(section(run.params), classes).event


def identity_of_transcription(run: Run) -> str:
    """Return the identity under which the ledger knows the run's annotations, or its randomised labels."""
    return identity_of(run, account_of(run), _noise_description(run), kind_of(run))


def kind_of(run: Run) -> Kind:
    """Return what the run releases."""
    return "labels" if section(run.params).protect == "labels" else "annotations"


def _noise_description(run: Run) -> dict[str, Any]:
    noise = section(run.params).noise
    return {"kind": noise} | ({"seed": run.params.seed} if noise == "replay" else {})


def inputs_of_labels(run: Run, dataset: Dataset) -> Inputs:
    """Return what is remembered about what labels were randomised."""
    labels = digest_of_arrays("terrine labels 1", {"labels": (dataset.train_labels, "<i8")}, site_key(run))
    return remembered(run, labels=labels)


def statement_of(
    run: Run, release: StoredRelease, classes: int, answered_per_class: tuple[int, ...]
) -> PrivacyStatement:
    """Say what the run guarantees, from its settings and the ledger alone."""
    settings, annotation = section(run.params), section(run.params).annotation
    partition = read_json(run.folders.partition / "manifest.json")
    samples = settings.samples
    event = NonPrivateEvent() if settings.unprotected else release.event
    coordinates = samples * annotation.top_k if settings.protect == "data" and not settings.unprotected else 0
    return PrivacyStatement(
        run=run.name,
        release_id=release.release_id,
        dataset=account_of(run),
        unit="label" if settings.protect == "labels" else run.params.privacy.unit,
        trust_model="central",
        event=event,
        delta=settings.delta,
        delta_slack=delta_slack(coordinates, settings.epsilon),
        epsilon_budget=settings.epsilon,
        epsilon_dataset=release.epsilon_total,
        epsilon_account=run.params.ledger.epsilon,
        noise="replay" if settings.noise == "replay" else "secure",
        mechanism=_mechanism(settings),
        teachers=number_of_clients(run),
        queries=samples,
        asked=samples,
        answered=samples,
        answered_per_class=answered_per_class,
        partition_digest=partition_commitment(run, release),
        partition_disjoint=partition["every_record_in_exactly_one_part"],
        public_inputs=_public_inputs(run),
        epsilon_claimed=_claimed(settings, classes),
        code_version=" ".join(f"{name} {value}" for name, value in code_version(run.root).items()),
    )


def _mechanism(settings: Transcription) -> dict[str, Any]:
    annotation = settings.annotation
    common: dict[str, Any] = {"samples": settings.samples, "top_k": annotation.top_k}
    if settings.generator.discriminator == "teacher":
        common["discriminator"] = "teacher"
    if settings.protect == "data":
        return {"mechanism": "annotation", "sigma": annotation.sigma or 0.0, "beta": annotation.beta, **common}
    if settings.protect == "answers":
        return {"mechanism": "answers", "epsilon": annotation.epsilon, **common}
    return {"mechanism": "labels", "epsilon": annotation.epsilon}


def _claimed(settings: Transcription, classes: int) -> float | None:
    """Return what the paper's theorems say; None where they say nothing: without noise, of labels at their source."""
    annotation = settings.annotation
    if settings.protect == "answers":
        return annotation.epsilon
    if not annotation.sigma:
        return None
    return claimed_for_data(annotation.beta, annotation.sigma, classes, settings.samples, settings.delta)


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
    """Return the release of the run's labels, where there is one: from the ledger, at no cost.

    Raises LedgerError when they were not released.
    """
    if section(run.params).protect != "labels":
        return None
    dataset = read_dataset(run.folders)
    ledger, account = open_account(run)

    release_id = identity_of_transcription(run)

    def never() -> tuple[dict[str, np.ndarray], Event]:
        raise LedgerError("The labels of this run were never released. Run the stage 'labels' first.")

    if not any(row.kind in ("commit", "adopt") and row.release_id == release_id for row in ledger.rows()):
        never()  # before anything is reserved for it
    return ledger.release(
        dataset=account,
        release_id=release_id,
        run=run.name,
        worst_case=release_event(run, dataset.classes),
        delta=section(run.params).delta,
        noise_kind=noise_kind(run),
        draw=never,
        made_by=made_by(run, "labels"),
    )
