"""What can be known of a run before any work: its data, its settings, its price, and what speaks against it.

Counts of private records are for the operator's terminal. Nothing is decoded, drawn, charged or written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from tasks.config.automatic import take_out
from tasks.config.presets import resolve, values_of
from tasks.pipeline.data_remarks import remarks_on
from tasks.runtime.accounts import ledger_account, ledger_before
from tasks.runtime.parameters import as_planned, hopeless, hopeless_sums, planned, settled_before
from tasks.runtime.releases import (
    Release,
    check_fit,
    releases_of,
    spent_on_counting,
    spent_on_moments,
    unpaid,
    worst_cases,
)
from tasks.runtime.run import SPLIT_SEED, Run
from terrine.advice import RICH
from terrine.aggregation.histogram import GaussianHistogram
from terrine.data.survey import Survey
from terrine.errors import LedgerError, TerrineError
from terrine.planning import ENOUGH, Plan, signal, signal_of_sums
from terrine.privacy.accounting.events import compose
from terrine.privacy.accounting.gaussian import mu_of, mu_squared
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.account import Account, Budget

START, RECORDS, QUERIES = 60.0, 2.2, 5.0
"""Seconds of a run that hang on no image, and how often it goes through its records and its queries."""
PER_PIXEL, LARGE = 6e-7, 3.0
"""Seconds of the scattering transform for a pixel, on two cores, and how many times that above 32 pixels a side."""


@dataclass
class Finding:
    """What was found out about a run.

    Attributes:
        run: The run.
        survey: What its data hold: private.
        plan: What its votes and noise will be; None for mechanisms and teachers that `terrine.planning` knows not.
        strength: The signal of sums over its records; None where teachers vote, or the features are not known yet.
        automatic: The settings that are `auto`, as `section.key`.
        cost: ε that may be charged for the run, by itself: 0 where all was released before; None where it is unknown.
        total: ε of the account with this run.
        spent: ε of the account without it.
        refusals: What must be mended, as sentences.
        doubts: What stops a run as well, unless `privacy.anyway` is set.
        notes: What is worth knowing.
    """

    run: Run
    survey: Survey
    plan: Plan | None = None
    strength: float | None = None
    automatic: list[str] = field(default_factory=list)
    cost: float | None = None
    total: float | None = None
    spent: float = 0.0
    refusals: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def minutes(self) -> float | None:
        """About how long the run will take on two cores; None for backbones of which that was not measured."""
        params = self.run.params
        if params.data.name == "table":
            return START / 60
        if params.backbone.kind != "scattering" or params.teachers.inputs != "features":
            return None
        if self.plan is None and self.strength is None:
            return None
        queries = self.plan.queries if self.plan is not None else params.queries.count
        images = RECORDS * self.survey.train.sum() + self.survey.test.sum() + QUERIES * queries
        pixels = images * params.data.channels * params.data.size**2
        return (START + PER_PIXEL * pixels * (LARGE if params.data.size > 32 else 1.0)) / 60

    @property
    def stops(self) -> list[str]:
        """What a run is refused for."""
        return self.refusals + ([] if self.run.params.privacy.anyway else self.doubts)


def look_at(root: Path, name: str) -> Finding:
    """Look at a run's data, settings and account.

    Raises InputError for data that cannot be used, SettingError for impossible settings, LedgerError for a ledger that
    cannot be read.
    """
    _, automatic = take_out(values_of(root, name))
    run = Run(root, name, settled_before(root, name) or resolve(root, name))
    survey = run.params.data.survey(root, seed=SPLIT_SEED)
    found = Finding(run, survey, automatic=[".".join(key) for key in automatic])
    unknown = automatic if settled_before(root, name) is None else []
    if run.params.transcription is None:
        if run.params.aggregation.reveals == "sums":
            _look_at_sums(found)
        elif not run.params.teachers.averages:
            _look_at_votes(found, unknown)
        if not run.params.teachers.unprotected:
            _look_at_account(found, unknown)
    remarks = remarks_on(survey, run.params, found.plan.teachers if found.plan else run.params.partition.teachers)
    found.refusals += remarks.refusals
    found.doubts += remarks.doubts
    found.notes += remarks.notes
    return found


def _look_at_votes(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Plan what is `auto`, and compare the votes with their noise."""
    run, params, mechanism = found.run, found.run.params, found.run.params.aggregation
    if automatic:
        found.plan = planned(run, automatic, found.survey)
        if not found.plan.useful:
            found.doubts.append(hopeless(run, found.plan, found.survey))
    elif isinstance(mechanism, GaussianHistogram):
        before = compose(spent_on_counting(params), spent_on_moments(params))
        asked = mechanism.certain(params.queries.count, mechanism.epsilon, mechanism.delta, before)
        mu = math.sqrt(mu_squared(mechanism.cost(asked, asked))) if asked else 0.0
        strength = signal(params.partition.teachers, mu, len(found.survey.class_names))
        found.plan = Plan(params.partition.teachers, mechanism.sigma, asked, strength, 0)
        if asked < params.queries.count:
            found.notes.append(
                f"The budget pays for {asked:,} of {params.queries.count:,} answers at sigma = {mechanism.sigma:g}. "
                "aggregation.sigma=auto takes the noise at which it pays for all."
            )
        if not params.data.public_benchmark and not found.plan.useful:
            found.doubts.append(
                f"{params.partition.teachers} teachers vote under noise of {mechanism.sigma:g} votes, {asked:,} times: "
                f"a signal of {strength:.0f}, where {ENOUGH:.0f} are needed, and a student would learn little but "
                "noise. Set partition.teachers, aggregation.sigma and queries.count to auto, or raise "
                "aggregation.epsilon. To go on all the same: --anyway."
            )
    units = found.survey.units(params.privacy.unit)
    teachers = found.plan.teachers if found.plan else params.partition.teachers
    if params.partition.kind == "iid" and teachers > units:
        found.refusals.append(
            f"{teachers} teachers cannot share {units} {params.privacy.unit}s to learn from. Set partition.teachers to "
            "auto, or to less."
        )


def _look_at_sums(found: Finding) -> None:
    """Compare the sums over records with their noise, where the number of features is a setting."""
    run, params = found.run, found.run.params
    projection = getattr(params.backbone, "projection", None)
    if projection is None:
        return
    units, about = found.survey.units(params.privacy.unit), {"classes": len(found.survey.class_names)}
    features = projection + 1
    found.strength = signal_of_sums(
        units, mu_of(params.aggregation.epsilon, params.aggregation.delta), features=features, **about
    )
    if sentence := hopeless_sums(run, units, features=features, **about):
        found.doubts.append(sentence)
    if params.privacy.unit == "group" and found.survey.train.sum() >= RICH * units:
        found.notes.append(
            f"Each of your groups has {found.survey.train.sum() / units:.0f} records or so. Sums hear a group once; "
            "teachers that vote learn from all of its records, and are more accurate where groups are large: "
            "aggregation.mechanism=auto takes them."
        )


def _look_at_account(found: Finding, automatic: list[tuple[str, str]]) -> None:
    """Price what the run has yet to release, and compare it with what its account has left: no ledger is begun."""
    try:
        run = as_planned(found.run, automatic, found.survey) if automatic else found.run
    except LedgerError as error:
        found.refusals.append(str(error))
        return
    params, ledger = run.params, ledger_before(run)
    account = None if ledger is None else ledger.account(ledger_account(run))
    if ledger is None or account is None:
        mode = "replay" if params.data.public_benchmark else "release"
        account = Account(Budget("", params.ledger.epsilon, params.aggregation.delta, mode), {}, {})
        ahead = [Release(kind, "", cost) for kind, cost in worst_cases(params).items()]
    else:
        ahead = unpaid(ledger, releases_of(run))
    costs = [release.worst_case for release in ahead]
    found.spent, found.total = account.total(), account.total(*costs)
    found.cost = price(compose(*costs), params.aggregation.delta) if costs else 0.0
    try:
        check_fit(run, account, ahead)
    except TerrineError as error:
        found.refusals.append(str(error))
