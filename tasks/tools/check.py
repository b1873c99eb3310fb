"""What can be known of a run before any work: its data, its settings, its price, and what speaks against it.

Counts of private records are for the operator's terminal. Nothing is drawn, charged or written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tasks.artefacts.records import load_dataset
from tasks.config.automatic import replace_auto
from tasks.config.presets import load_values, resolve
from tasks.pipeline.data_warnings import RARE, Remarks, listed, remarks_on
from tasks.pipeline.dataset import files_changed
from tasks.pipeline.figures.released_accuracy import check_use
from tasks.runtime.accounts import changed_settings, check_people, ledger_account, ledger_before, people_in
from tasks.runtime.parameters import (
    explain_weak_signal,
    explain_weak_sums,
    make_plan,
    resolve_without_data,
    survey_data,
    task_from_survey,
    with_plan,
)
from tasks.runtime.release_identity import Kind
from tasks.runtime.releases import (
    Release,
    accuracy_mechanism,
    check_fit,
    inputs_cost,
    list_releases,
    unpaid,
    worst_cases,
)
from tasks.runtime.run import Run
from tasks.tools.duration import minutes_of
from tasks.transcription.clients import section
from tasks.transcription.release import account_of_run, check_run, is_of_public, noise_kind, release_terms, unit_of
from terrine.aggregation.gnmax import GaussianHistogram
from terrine.data.images import on_disk
from terrine.data.source import Survey
from terrine.errors import LedgerError, SettingError, TerrineError
from terrine.planning import (
    ENOUGH,
    ENOUGH_OF_SUMS,
    Plan,
    ample,
    epsilon_for_signal,
    format_signal,
    signal,
    signal_of_sums,
    teachers_with_class,
)
from terrine.privacy.accounting.events import Event, compose
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import Account, Budget
from terrine.privacy.ledger.people import People
from terrine.privacy.noise import NoiseKind
from terrine.privacy.statement import Unit
from terrine.transcription.accounting import claimed, event_of

MOST_CLASSES = 8
"""Of which it is said one by one that they vanish."""


@dataclass(kw_only=True)
class Finding(Remarks):
    """What was found out about a run, and what there is to say of it; doubts stop it, unless `privacy.anyway` is set.

    Attributes:
        run: The run.
        survey: What its data hold: private.
        plan: What its votes and noise will be; None for mechanisms and teachers that `terrine.planning` knows not.
        strength: The signal of sums over its records; None where teachers vote, or the features are not known yet.
        automatic: The settings that are `auto`, as `section.key`.
        cost: ε that may be charged for the run, by itself: 0 where all was released before; None where it is unknown.
        total: ε of the account with this run.
        spent: ε of the account without it.
        exact: ε of a transcription by itself, whatever was released before; None where nothing is guaranteed.
        claimed: ε as the paper of a transcription claims it.
    """

    run: Run
    survey: Survey
    plan: Plan | None = None
    strength: float | None = None
    automatic: list[str] = field(default_factory=list)
    cost: float | None = None
    total: float | None = None
    spent: float = 0.0
    exact: float | None = None
    claimed: float | None = None

    @property
    def minutes(self) -> float | None:
        """About how long the run will take on two cores; None where that is not known (`tasks.tools.duration`)."""
        params, known = self.run.params, self.plan is not None or self.strength is not None
        queries = params.queries.count if self.plan is None else self.plan.queries
        return minutes_of(params, self.survey, queries if known else None)

    @property
    def stops(self) -> list[str]:
        """What a run is refused for."""
        return self.refusals + ([] if self.run.params.privacy.anyway else self.doubts)


def look_at(root: Path, name: str) -> Finding:
    """Look at a run's data, settings and account.

    Raises InputError for data that cannot be used, SettingError for impossible settings, LedgerError for a ledger that
    cannot be read.
    """
    values = load_values(root, name)
    _, automatic = replace_auto(values)
    run = Run(root, name, resolve_without_data(root, name) or resolve(root, name))
    survey = survey_data(run)
    found = Finding(run=run, survey=survey, automatic=[".".join(key) for key in automatic])
    unknown = automatic if resolve_without_data(root, name) is None else []
    if run.params.transcription is None:
        if run.params.aggregation.reveals == "sums":
            _look_at_sums(found)
        elif not run.params.teachers.averages:
            _look_at_votes(found, unknown)
        if not run.params.teachers.unprotected:
            _look_at_account(found, unknown)
        _look_at_accuracy(found)
    else:
        _look_at_transcription(found)
    if (how := files_changed(run)) is not None:
        found.notes.append(
            f"The files behind the data are not those that run {name} read: {how}. Its releases are about the data "
            "as they were. `terrine run` compares the records; to release about other ones, set a new data.edition."
        )
    vanishing = vanishing_classes(found)
    found.notes += list(vanishing.values())[:MOST_CLASSES]
    if more := list(vanishing)[MOST_CLASSES:]:
        found.notes.append(f"So it is with {len(more)} other class{'es' * (len(more) > 1)}: {listed(more)}.")
    remarks = remarks_on(survey, run.params, vanishing)
    found.refusals += remarks.refusals
    found.doubts += remarks.doubts
    found.notes += remarks.notes
    return found


def _look_at_accuracy(found: Finding) -> None:
    """Refuse an accuracy that is to be released and would be useless."""
    params, survey = found.run.params, found.survey
    if (mechanism := accuracy_mechanism(params)) is None:
        return
    held_out = survey.groups[1] if params.privacy.unit == "group" and survey.groups else survey.records[1]
    try:
        check_use(found.run, mechanism, held_out)
    except SettingError as error:
        found.refusals.append(str(error))


def _look_at_votes(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Plan what is `auto`, and compare the votes with their noise."""
    run, params, mechanism = found.run, found.run.params, found.run.params.aggregation
    if automatic:
        found.plan = make_plan(run, automatic, found.survey)
    elif isinstance(mechanism, GaussianHistogram):
        before = inputs_cost(params)
        answers = params.queries.count * mechanism.findings
        asked = mechanism.certain(answers, mechanism.epsilon, mechanism.delta, before)
        mu = math.sqrt(mu_squared(mechanism.cost(asked, asked))) if asked else 0.0
        sharing = mechanism.moved if params.data.several else len(found.survey.class_names)
        most = ample(sharing, several=params.data.several)
        strength = signal(params.partition.teachers, mu, sharing)
        found.plan = Plan(params.partition.teachers, mechanism.sigma, asked // mechanism.findings, strength, most, 0)
        if asked < answers:
            found.notes.append(
                f"The budget pays for {asked:,} of {answers:,} answers at sigma = {mechanism.sigma:g}. "
                "aggregation.sigma=auto takes the noise at which it pays for all."
            )
    if found.plan and not found.plan.useful and (automatic or not params.data.public_benchmark):
        found.doubts.append(explain_weak_signal(run, found.plan, found.survey))
    units = found.survey.units(params.privacy.unit)
    teachers = found.plan.teachers if found.plan else params.partition.teachers
    if params.partition.kind == "iid" and teachers > units:
        found.refusals.append(
            f"{teachers} teachers cannot share {units} {params.privacy.unit}s to learn from. Set partition.teachers to "
            "auto, or to less."
        )


def _look_at_sums(found: Finding) -> None:
    """Compare the sums over records with their noise, if the number of features is a setting."""
    params, projection = found.run.params, getattr(found.run.params.backbone, "projection", None)
    if projection is None:
        return
    units = found.survey.units(params.privacy.unit)
    about = {"classes": len(found.survey.class_names), "features": projection + 1}
    found.strength = signal_of_sums(units, mu_of(params.aggregation.epsilon, params.aggregation.delta), **about)
    if sentence := explain_weak_sums(found.run, units, records=found.survey.records[0], **about):
        found.doubts.append(sentence)


def vanishing_classes(found: Finding) -> dict[str, str]:
    """Say by name of each class that so few teachers, or sums, know of that noise drowns it, and what would do.

    The signal of a class is that of the teachers who have a record of it, or of sums over its records alone, by
    `terrine.planning`: no class can say more, however good teachers are. Nothing is said where nothing is learnt at
    all. For the operator alone: it hangs on counts.
    """
    params, survey, said = found.run.params, found.survey, {}
    delta = params.aggregation.delta
    mu = mu_of(params.aggregation.epsilon, delta)
    for name, count in zip(survey.class_names, survey.train.tolist(), strict=True):
        if found.plan is not None and found.plan.useful:
            enough, knowing_it = ENOUGH, teachers_with_class(found.plan.teachers, count)
            strength = found.plan.signal * knowing_it / found.plan.teachers
            why = (
                f"its votes drown: about {knowing_it:,.0f} of {found.plan.teachers:,} teachers will have one, under "
                f"noise of {found.plan.sigma:,.0f} votes on every count"
            )
        elif found.strength is not None and found.strength >= ENOUGH_OF_SUMS:
            share = count / survey.train.sum()
            enough, strength = ENOUGH_OF_SUMS, found.strength * len(survey.class_names) * share
            why = "its sums drown"
        else:
            continue
        if not 0 < strength < enough:
            continue
        # What is rare beside the others is rarely answered without any noise, too.
        fair = RARE * float(survey.train.mean())
        records, larger = max(count * enough / strength, fair), epsilon_for_signal(enough, strength, mu, delta)
        said[name] = (
            f"Class '{name}' ({count:,} records): at ε = {params.aggregation.epsilon:g} {why}, a signal of "
            f"{format_signal(strength)} where {enough:g} is needed, and the student will hardly ever answer so. What "
            f"would do: {f'ε = {larger:g}; or ' if count >= fair else ''}about {math.ceil(records):,} records of it; "
            f"or to merge it with {'the one beside it' if params.data.scale is not None else 'another class'}."
        )
    return said


def _look_at_account(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Price what a run of votes or sums has yet to release, and compare it with its account."""
    try:
        run = with_plan(found.run, automatic, found.survey) if automatic else found.run
    except LedgerError as error:
        found.refusals.append(str(error))
        return
    params = run.params
    _hold_against_account(
        found,
        run,
        account=lambda: ledger_account(run),
        unit=params.privacy.unit,
        costs=worst_cases(params),
        releases=lambda: list_releases(run, task=task_from_survey(run, found.survey)),
    )


def _look_at_transcription(found: Finding) -> None:
    """Price a transcription, and compare it with its own budget and its account."""
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
    _hold_against_account(
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


def _hold_against_account(
    found: Finding,
    run: Run,
    *,
    account: Callable[[], str],
    unit: Unit,
    costs: dict[Kind, Event],
    releases: Callable[[], list[Release]],
    noise: NoiseKind | None = None,
) -> None:
    """Price what the run has yet to release, and compare it with what its account has left: no ledger is begun.

    account: what the ledger calls it, asked only where there is a ledger; so are `releases`, by which what was paid for
    before is known. costs: the most that each release may cost. noise: their kind, where it is not that of votes.
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
                f"{setting} was {value} in an earlier run of account {params.ledger.account}, so other records are "
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
    """Return the digests of a run's records; images are decoded only if a ledger or the site knows any records."""
    if run.params.data.public_benchmark:
        return None
    dataset = survey.dataset
    if dataset is None:
        if ledger_before(run) is None and not run.site.is_dir():
            return None
        with on_disk(run.folders.work):
            return people_in(run, load_dataset(run))
    return people_in(run, dataset)
