"""What can be known of a run before any work: its data, its settings, its price, and what speaks against it.

Counts of private records are for the operator's terminal. Nothing is decoded, drawn, charged or written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from tasks.config.automatic import take_out
from tasks.config.presets import resolve, values_of
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
RARE = 1 / 5
"""A class is named that has less than this share of an average class's records."""


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
    _look_at_classes(found)
    _look_at_files(found)
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


def _look_at_classes(found: Finding) -> None:
    """Name classes that hardly any teacher will see."""
    teachers = found.plan.teachers if found.plan else found.run.params.partition.teachers
    counts = dict(zip(found.survey.class_names, found.survey.train.tolist(), strict=True))
    missing = [name for name, count in counts.items() if count == 0]
    single = [name for name, count in counts.items() if count == 1]
    if missing:
        found.refusals.append(
            f"No training record is of {_listed(missing)}, and no teacher can learn it: add records, give the split "
            "yourself, or remove the class."
        )
    if single:
        found.doubts.append(
            f"{_listed(single)}: one training record each, so that one teacher of {teachers} has ever seen it. Add "
            "records, or remove the class. To go on all the same: --anyway."
        )
    records = int(found.survey.train.sum())
    if found.run.params.privacy.unit == "record" and found.survey.names < records:
        found.notes.append(
            f"The {records:,} training records have {found.survey.names:,} names: files of one name in several class "
            "folders count as one unit, and stay together. Give each its own name if they are different images."
        )
    rare = [name for name, count in counts.items() if 1 < count < RARE * found.survey.train.mean()]
    if rare:
        found.notes.append(f"Few teachers will have a record of {_listed(rare)}: a student will hardly ever answer so.")
    untested = [name for name, count in zip(counts, found.survey.test.tolist(), strict=True) if count == 0]
    if untested:
        found.notes.append(f"No test record is of {_listed(untested)}: the accuracy says nothing about it.")


def _look_at_files(found: Finding) -> None:
    """Say what is done with images of several kinds."""
    modes = {mode for _, _, mode in found.survey.geometry}
    deep = sorted(mode for mode in modes if mode.startswith(("I", "F")))
    if deep:
        found.refusals.append(
            f"There are images of more than 8 bits per pixel (mode {', '.join(deep)}): choose the range of values to "
            "show and save them as 8 bits."
        )
    if len(modes) > 1:
        found.notes.append(
            f"Images are of several modes ({', '.join(sorted(modes))}); all become "
            f"{'grey' if found.run.params.data.channels == 1 else 'colour'}."
        )
    if modes & {"RGBA", "LA", "PA"}:
        found.notes.append("Transparency is dropped: what lies beneath is seen. Flatten images where that matters.")
    if "CMYK" in modes:
        found.notes.append("CMYK images are converted without a colour profile: save them as RGB where colour matters.")
    if "1" in modes:
        found.notes.append("Images of 1 bit per pixel are black and white drawings: check that they are no masks.")
    size = getattr(found.run.params.data, "size", None)
    largest = max((max(width, height) for width, height, _ in found.survey.geometry), default=None)
    if size and largest and largest < size:
        found.notes.append(
            f"No image is larger than {largest} pixels: data.size={largest} would say as much as {size}, in less time."
        )
    if modes == {"L"} and found.run.params.data.channels == 3:
        found.notes.append("All images are grey: data.channels=1 would say as much as 3, in less time.")


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
