"""Check the data, settings and cost of a run before any work.

Counts of private records are for the operator's terminal. Nothing is drawn, charged or written.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.artefacts.records import load_dataset
from tasks.config.automatic import replace_auto
from tasks.config.presets import load_values, resolve, runs
from tasks.pipeline.data_warnings import RARE, Remarks, remarks_on
from tasks.pipeline.dataset import files_changed
from tasks.pipeline.figures.released_accuracy import check_use
from tasks.runtime.accounts import changed_settings, check_people, ledger_account, ledger_before, people_in
from tasks.runtime.approval import describe_state
from tasks.runtime.parameters import (
    counts_units,
    earlier_count,
    explain_weak_signal,
    explain_weak_sums,
    make_plan,
    resolve_without_data,
    signal_of_run,
    survey_data,
    task_from_survey,
    with_plan,
)
from tasks.runtime.release_identity import Kind, command_for_new_edition
from tasks.runtime.releases import (
    Release,
    accuracy_mechanism,
    check_fit,
    contradicted_about,
    inputs_cost,
    list_releases,
    missing_about,
    noise_on_count,
    plan_votes,
    unpaid,
    worst_cases,
)
from tasks.runtime.run import Run, open_run
from tasks.tools.duration import estimate_minutes
from tasks.transcription.clients import section
from tasks.transcription.release import account_of_run, check_run, is_of_public, noise_kind, release_terms, unit_of
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.data.images import on_disk
from terrine.data.source import Survey
from terrine.errors import LedgerError, SettingError, TerrineError, some
from terrine.planning import (
    ENOUGH,
    ENOUGH_OF_SUMS,
    Plan,
    epsilon_for_signal,
    format_signal,
    teachers_with_class,
)
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import Account, Budget
from terrine.privacy.ledger.people import People
from terrine.privacy.noise import NoiseKind
from terrine.privacy.statement import Unit
from terrine.transcription.accounting import claimed, event_of

WEAK_BUT_PUBLIC = (
    "The signal is too weak, so the student will learn mostly noise. The data are a public benchmark: the run is not "
    "refused."
)


@dataclass(kw_only=True)
class Finding(Remarks):
    """Facts about a run, with refusals, doubts and notes. Doubts stop the run unless `privacy.anyway` is set.

    Attributes:
        run: The run.
        survey: Counts of the run's data. Private.
        plan: Teachers and noise; None for mechanisms and teachers that `terrine.planning` does not cover.
        strength: Signal of sums; None if teachers vote, or the number of features is unknown.
        automatic: Settings that are `auto`, as `section.key`.
        teachers: Likely smallest and largest number of teachers of the run, if it will count its units with noise.
        cost: ε that may be charged for the run: 0 if everything was released before; None if unknown.
        total: ε of the account with this run.
        spent: ε of the account without this run.
        exact: ε of a transcription on its own; None without a guarantee.
        claimed: ε that the paper of a transcription claims.
    """

    run: Run
    survey: Survey
    plan: Plan | None = None
    strength: float | None = None
    automatic: list[str] = field(default_factory=list)
    teachers: tuple[int, int] | None = None
    cost: float | None = None
    total: float | None = None
    spent: float = 0.0
    exact: float | None = None
    claimed: float | None = None

    @property
    def minutes(self) -> float | None:
        """Approximate duration of the run on two cores, or None if unknown (`tasks.tools.duration`)."""
        params, known = self.run.params, self.plan is not None or self.strength is not None
        queries = params.queries.count if self.plan is None else self.plan.queries
        return estimate_minutes(params, self.survey, queries if known else None)

    @property
    def stops(self) -> list[str]:
        """Reasons why a run would fail."""
        return self.refusals + ([] if self.run.params.privacy.anyway else self.doubts)


def inspect_settings(root: Path, name: str, survey: Survey | None = None) -> Finding:
    """Check a run's settings against a survey of its data, without its account; see `inspect_run`."""
    _, automatic = replace_auto(load_values(root, name))
    run = Run(root, name, resolve_without_data(root, name) or resolve(root, name))
    found = Finding(run=run, survey=survey or survey_data(run), automatic=[".".join(key) for key in automatic])
    if run.params.transcription is None:
        if run.params.aggregation.reveals == "sums":
            _check_sums(found)
        elif not run.params.teachers.averages:
            _check_votes(found, automatic if resolve_without_data(root, name) is None else [])
        _check_accuracy(found)
    return found


def inspect_run(root: Path, name: str) -> Finding:
    """Check a run's data, settings and account.

    Raises:
        InputError: the data cannot be used.
        SettingError: the settings are invalid.
        LedgerError: the ledger cannot be read.
    """
    found = inspect_settings(root, name)
    run, survey = found.run, found.survey
    if run.params.transcription is not None:
        _check_transcription(found)
    elif not run.params.teachers.unprotected:
        _, automatic = replace_auto(load_values(root, name))
        _check_releases(found, automatic if resolve_without_data(root, name) is None else [])
    _check_files(found)
    if missing := missing_about(run.params):
        found.notes.append(
            f"The statement lacks {', '.join(missing)}, which signing requires. Set them at any time, without cost: "
            "--set about.purpose='...'."
        )
    groups = None if survey.groups is None else survey.groups[0]
    if contradiction := contradicted_about(run.params, survey.records[0], groups):
        found.doubts.append(contradiction)
    if run.params.release.approval == "required":
        found.notes.append(describe_state(run))
    weak = weak_classes(found)
    _on_weak_classes(found, weak)
    remarks = remarks_on(survey, run.params, weak)
    found.refusals += remarks.refusals
    found.doubts += remarks.doubts
    found.notes += remarks.notes
    return found


def _check_files(found: Finding) -> None:
    """Note that data files changed since this run or an earlier one with the same data and account read them."""
    run = found.run
    others = (open_run(run.root, name) for name in runs(run.root))
    same = [other for other in others if other.params.ledger.account == run.params.ledger.account]
    for other in (run, *(each for each in same if each.params.data == run.params.data)):
        if (how := files_changed(other)) is not None:
            found.notes.append(
                f"The data files have changed since run {other.name} read them: {how}. Its releases are about the "
                f"earlier data, and a run of the same edition returns them. `terrine run {other.name}` compares the "
                f"records. To release the current data at its own cost:\n{command_for_new_edition(other)}"
            )
            return


def _check_accuracy(found: Finding) -> None:
    """Refuse to release an accuracy with so much noise that it would be useless."""
    params, survey = found.run.params, found.survey
    if (mechanism := accuracy_mechanism(params)) is None:
        return
    held_out = survey.groups[1] if params.privacy.unit == "group" and survey.groups else survey.records[1]
    try:
        check_use(found.run, mechanism, held_out)
    except SettingError as error:
        found.refusals.append(str(error))


def _check_votes(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Plan settings that are `auto`, and compare the votes with their noise."""
    run, params, mechanism = found.run, found.run.params, found.run.params.aggregation
    if automatic:
        counted = None
        with contextlib.suppress(LedgerError):  # reported by `_check_releases`
            counted = earlier_count(run) if counts_units(run) else None
        found.plan = make_plan(run, automatic, found.survey, units=counted)
        if counts_units(run) and counted is None:
            true, spread = found.survey.units(params.privacy.unit), round(2 * noise_on_count(params))
            ends = [make_plan(run, automatic, found.survey, units=true + shift) for shift in (-spread, spread)]
            found.teachers = ends[0].teachers, ends[1].teachers
    elif isinstance(mechanism, GaussianHistogram):
        found.plan = plan_votes(params, len(found.survey.class_names))
        answers = params.queries.count * mechanism.findings
        queried = mechanism.certain(answers, mechanism.epsilon, mechanism.delta, inputs_cost(params))
        if queried < answers:
            found.notes.append(
                f"The budget covers {queried:,} of {answers:,} answers at sigma = {mechanism.sigma:g}. With "
                "aggregation.sigma=auto it covers all."
            )
    if found.plan and not found.plan.useful:
        if automatic or not params.data.public_benchmark:
            found.doubts.append(explain_weak_signal(run, found.plan, found.survey))
        else:
            found.notes.append(WEAK_BUT_PUBLIC)
    units = found.survey.units(params.privacy.unit)
    teachers = found.plan.teachers if found.plan else params.partition.teachers
    if params.partition.kind == "iid" and teachers > units:
        found.refusals.append(
            f"{teachers} teachers cannot share {units} {params.privacy.unit}s. Set partition.teachers to auto or to a "
            "smaller number."
        )


def _check_sums(found: Finding) -> None:
    """Compare sums with their noise, if the number of features is a setting or that of a table."""
    params, table = found.run.params, found.survey.dataset if found.survey.columns else None
    features = getattr(params.backbone, "projection", None) if table is None else table.train_images.shape[1]
    if features is None:
        return
    units = found.survey.units(params.privacy.unit)
    about = len(found.survey.class_names), features + 1
    found.strength = signal_of_run(params, units, *about)
    if sentence := explain_weak_sums(found.run, units, *about, found.survey.records[0]):
        found.doubts.append(sentence)
    elif found.strength < ENOUGH_OF_SUMS:
        found.notes.append(WEAK_BUT_PUBLIC)


def weak_classes(found: Finding) -> dict[str, float]:
    """Return the signal of each class that is too weak to be learned, by name, weakest first. Private.

    A class of average size has the signal of the run, so both get the same verdict. The signal of other classes is
    proportional to the number of teachers with records of the class or, for sums, to its number of records. The result
    is empty if no class can be learned.
    """
    counts = found.survey.train
    if found.plan is not None and found.plan.useful:
        enough, known = ENOUGH, [teachers_with_class(found.plan.teachers, count) for count in counts.tolist()]
        signals = found.plan.signal * np.array(known) / teachers_with_class(found.plan.teachers, float(counts.mean()))
    elif found.strength is not None and found.strength >= ENOUGH_OF_SUMS:
        enough, signals = ENOUGH_OF_SUMS, found.strength * counts / counts.mean()
    else:
        return {}
    weak = {name: value for name, value in zip(found.survey.class_names, signals.tolist(), strict=True) if value}
    return {name: value for name, value in sorted(weak.items(), key=lambda item: item[1]) if value < enough}


def _on_weak_classes(found: Finding, weak: dict[str, float]) -> None:
    """Add one note about all weak classes, with a remedy that suffices for each of them."""
    if not weak:
        return
    budget, survey = found.run.params.aggregation, found.survey
    enough = ENOUGH if found.plan is not None else ENOUGH_OF_SUMS
    counts = dict(zip(survey.class_names, survey.train.tolist(), strict=True))
    # More records help only until the class is no longer rare; a rare class is answered too seldom at any ε.
    rare = RARE * float(survey.train.mean())
    records = max(max(counts[name] * enough / value, rare) for name, value in weak.items())
    larger = epsilon_for_signal(enough, min(weak.values()), mu_of(budget.epsilon, budget.delta), budget.delta)
    listed_ = some([f"'{name}' ({counts[name]:,} records, {format_signal(value)})" for name, value in weak.items()], 8)
    remedy = f"ε = {larger:g}, " if min(counts[name] for name in weak) >= rare else ""
    other = "the adjacent class" if found.run.params.data.scale is not None else "another class"
    found.notes.append(
        f"The noise at ε = {budget.epsilon:g} hides {len(weak)} class{'es' * (len(weak) > 1)}, whose signal is below "
        f"{enough:g}: {listed_}. The student will rarely predict them. Remedy: {remedy}about {math.ceil(records):,} "
        f"records of each, or merge each with {other}."
    )


def _check_releases(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Compute the cost of the remaining releases of votes or sums, and compare it with the account."""
    try:
        run = with_plan(found.run, automatic, found.survey) if automatic else found.run
    except LedgerError as error:
        found.refusals.append(str(error))
        return
    params = run.params
    _check_account(
        found,
        run,
        account=lambda: ledger_account(run),
        unit=params.privacy.unit,
        costs=worst_cases(params),
        releases=lambda: list_releases(run, task=task_from_survey(run, found.survey)),
    )


def _check_transcription(found: Finding) -> None:
    """Compute the cost of a transcription, and compare it with its budget and its account."""
    run, settings, classes = found.run, section(found.run.params), max(2, len(found.survey.class_names))
    try:
        check_run(run, classes)
    except TerrineError as error:
        found.refusals.append(str(error))
    found.claimed = claimed(settings, classes)
    if settings.unprotected:
        return
    kind: Kind = "labels" if settings.protect == "labels" else "annotations"
    cost = event_of(settings, classes)
    found.exact = price(cost, settings.delta)
    _check_account(
        found,
        run,
        account=lambda: account_of_run(run),
        unit=unit_of(run),
        costs={kind: cost},
        releases=lambda: [
            Release(kind, release_terms(run, classes, task_from_survey(run, found.survey))["release_id"], cost)
        ],
        noise=noise_kind(settings),
    )


def _check_account(
    found: Finding,
    run: Run,
    *,
    account: Callable[[], str],
    unit: Unit,
    costs: dict[Kind, Event],
    releases: Callable[[], list[Release]],
    noise: NoiseKind | None = None,
) -> None:
    """Compute the cost of the remaining releases, and compare it with the account. No ledger is created.

    Args:
        found: Finding to which costs, notes and refusals are added.
        run: The run.
        account: Returns the account's name in the ledger; called only if there is a ledger.
        unit: Unit of privacy.
        costs: Worst case of each kind of release.
        releases: Returns the releases, to find those made before; called only if there is a ledger.
        noise: Kind of noise; None: that of votes.
    """
    params, ledger = run.params, ledger_before(run)
    name, delta = "" if ledger is None else account(), (params.transcription or params.aggregation).delta
    budget = Budget(name, params.ledger.epsilon, delta, "replay" if is_of_public(run) else "release")
    accounts = [] if ledger is None else ledger.together(name)
    if ledger is None or not accounts:
        accounts = [Account(budget, {}, {})]
        ahead = [Release(kind, "", cost) for kind, cost in costs.items()]
    else:
        ahead = unpaid(ledger, releases())
    events = [release.worst_case for release in ahead]
    found.spent, found.total = accounts[0].total(), accounts[0].total(*events)
    found.cost = price(compose(*events), delta) if events else 0.0
    if ledger is not None:
        for setting, value in changed_settings(run, ledger).items():
            found.notes.append(
                f"{setting} was {value} in an earlier run of account {params.ledger.account}, so different records are "
                "public now."
            )
    task = task_from_survey(run, found.survey)
    if not events and not params.data.public_benchmark and task.target is None:
        found.notes.append(
            f"Edition {task.edition} holds this release for the {task}. If these data are about another question with "
            "the same names, set data.edition=<name> (charged separately)."
        )
    try:
        accounts[0].check_same(budget, unit)
        check_people(run, _people(run, found.survey))
        check_fit(run, accounts, ahead, noise)
    except TerrineError as error:
        found.refusals.append(str(error))


def _people(run: Run, survey: Survey) -> People | None:
    """Return the digests of a run's records; images are decoded only if a ledger or the site contains records.

    Return None if there is nothing to compare, or if some files cannot be decoded.
    """
    if run.params.data.public_benchmark:
        return None
    dataset = survey.dataset
    if dataset is None:
        if survey.refusals or (ledger_before(run) is None and not run.site.is_dir()):
            return None
        with on_disk(run.folders.work):
            return people_in(run, load_dataset(run))
    return people_in(run, dataset)
