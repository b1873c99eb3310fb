"""The parameters of a run, with numbers chosen for settings that are `auto`.

Choices are made once, before training, from public facts. The number of units is private. The operator declares it
approximately (`privacy.units`), or it is counted with noise: a release made once per account, edition and budget, whose
cost is part of the statement. The signal is checked with the declared or the true number, and the result is reported
only to the operator. A run with too weak a signal releases nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.automatic import replace_auto
from tasks.config.params import Params, public_parameters, validate
from tasks.config.presets import load_values
from tasks.config.values import as_document, as_yaml, digest
from tasks.runtime.accounts import ledger_account, ledger_before, open_account, people_in, release_at_price, site_key
from tasks.runtime.approval import Proposal, require_approval
from tasks.runtime.release_identity import PLACES
from tasks.runtime.releases import Release, check_releases, identity_in_ledger, make_noise, noise_on_count
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.stage_graph import AUTOMATIC, CHOSEN
from tasks.runtime.store import Folders, read_json, write_json, write_text
from tasks.runtime.task import open_source, task_from
from terrine.data.partition import refuse_no_groups
from terrine.data.source import Survey
from terrine.errors import SettingError
from terrine.planning import (
    ADVISED,
    ENOUGH,
    ENOUGH_OF_SUMS,
    UNITS_EACH,
    Plan,
    advised_epsilon,
    advised_units,
    epsilon_for_signal,
    plan,
    signal,
    signal_of_sums,
)
from terrine.privacy.accounting.events import GaussianEvent, count_of_units
from terrine.privacy.accounting.gaussian import mu_of
from terrine.privacy.ledger.site_key import keyed_digest
from terrine.privacy.ledger.task import Task

FILE = "resolve_auto.json"
"""File in the run's private folder with the choices and a digest of the parameters they were made from."""

_DECIDE = ("data", "privacy", "partition", "queries", "aggregation", "ledger")
"""Sections that affect the choices and the account that pays for counting."""

MOST_ROWS = 10_000
"""Largest number of public rows used as queries with queries.count=auto."""

WIDE = 10
"""Smallest ε that advice calls a weak guarantee: odds may change by a factor of e^10."""


def write_parameters(root: Path, name: str) -> Run:
    """Resolve a run's parameters, write them in full and without site-local settings, and return the run.

    Raises:
        SettingError: See `resolve_auto`; or if `privacy.units` and `privacy.counted` contradict the ledger.
        BudgetError: See `resolve_auto`.
    """
    run = Run(root, name, resolve_auto(root, name))
    privacy = run.params.privacy
    if privacy.counted and earlier_count(run) != privacy.units:
        raise SettingError(
            "privacy.counted is set, but the account has no such noisy count of units. Remove privacy.counted; declare "
            "privacy.units alone, or leave it out. Nothing was charged."
        )
    if privacy.units and not privacy.counted and (sigma := _sigma_of_count(run, privacy.units)):
        raise SettingError(
            f"privacy.units={privacy.units} is the account's noisy count of units. Declared, its cost would be missing "
            f"from the statement. Leave privacy.units out, or also set privacy.counted={sigma!r}. Nothing was charged."
        )
    write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
    write_text(run.folders.public_parameters, as_yaml(public_parameters(run.params)))
    chosen: dict[str, dict[str, Any]] = {section: {} for section in AUTOMATIC.values()}
    for section, key in replace_auto(load_values(root, name))[1]:
        chosen[section][key] = getattr(getattr(run.params, section), key)
    if privacy.counted:
        chosen["privacy"] = {"units": privacy.units, "counted": privacy.counted}
    write_text(run.folders.private / Path(CHOSEN).name, as_document(chosen))
    return run


def resolve_auto(root: Path, name: str, survey: Survey | None = None) -> Params:
    """Return a run's parameters with a number for every `auto`.

    Args:
        root: The project.
        name: The name of the run.
        survey: Survey of the run's data, if it exists.

    Raises:
        SettingError: If no choice gives enough signal and `privacy.anyway` is not set. Nothing was charged.
        BudgetError: If the account does not cover the run. Nothing was charged.
    """
    if (known := resolve_without_data(root, name)) is not None:
        return known
    values = load_values(root, name)
    taken, automatic = replace_auto(values)
    run = Run(root, name, validate(taken))
    chosen = _choose(run, automatic, survey or survey_data(run))
    write_json(run.folders.private / FILE, {"made_of": _made_of(values), "chosen": chosen})
    return _merge(taken, chosen)


def resolve_without_data(root: Path, name: str) -> Params | None:
    """Return the result of `resolve_auto` if nothing is `auto` or the choice is stored, else None."""
    values = load_values(root, name)
    taken, automatic = replace_auto(values)
    if not automatic:
        return validate(taken)
    file = Folders(root, name).private / FILE
    known = read_json(file) if file.is_file() else {}
    return _merge(taken, known["chosen"]) if known.get("made_of") == _made_of(values) else None


def _made_of(values: dict[str, Any]) -> str:
    decide = {section: values.get(section) for section in _DECIDE}
    # Paths are left out: the data of an edition are the same wherever they are stored.
    data = {key: value for key, value in (decide["data"] or {}).items() if key not in PLACES}
    return digest(decide | {"data": data}, 64)


def _merge(values: dict[str, Any], chosen: dict[str, dict[str, Any]]) -> Params:
    return validate(values | {section: {**values.get(section, {}), **given} for section, given in chosen.items()})


def survey_data(run: Run) -> Survey:
    """Survey a run's data. Raises SettingError if groups are the unit of privacy and the data have none."""
    with open_source(run) as source:
        survey = source.survey(run.root, seed=SPLIT_SEED)
    refuse_no_groups(run.params.privacy.unit, survey.groups)
    return survey


def task_from_survey(run: Run, survey: Survey) -> Task:
    """Return the task of a run whose records have not been read yet."""
    return task_from(run.params.data, survey.class_names, declared=survey.declared)


def preview_auto(root: Path, name: str, survey: Survey) -> Params:
    """Preview the result of `resolve_auto` without noise or charge; the result is private, see `with_plan`.

    Raises:
        SettingError: If no choice would give a useful student.
    """
    taken, automatic = replace_auto(load_values(root, name))
    run = Run(root, name, validate(taken))
    _useful_plan(run, automatic, survey)
    return with_plan(run, automatic, survey).params


def _useful_plan(run: Run, automatic: list[tuple[str, str]], survey: Survey) -> Plan:
    """Return the plan for the data. Raises SettingError if the signal of the chosen plan is too weak."""
    plan = make_plan(run, automatic, survey)
    if not plan.useful and not run.params.privacy.anyway:
        raise SettingError(explain_weak_signal(run, plan, survey))
    return plan


def _choose(run: Run, automatic: list[tuple[str, str]], survey: Survey) -> dict[str, dict[str, Any]]:
    plan = _useful_plan(run, automatic, survey)
    if not counts_units(run):
        return _chosen(automatic, plan)
    if earlier_count(run) is None:
        check_releases(with_plan(run, automatic, survey), task=task_from_survey(run, survey))
        require_approval(run, _propose_count(run, survey.units(run.params.privacy.unit)))
    units, sigma = _count(run, survey.units(run.params.privacy.unit)), noise_on_count(run.params)
    return _chosen(automatic, make_plan(run, automatic, survey, units=units), units=units, counted=sigma)


def _chosen(automatic: list[tuple[str, str]], plan: Plan, **privacy: Any) -> dict[str, dict[str, Any]]:
    """Return, by section, the plan's values for settings that are `auto`, and the given fields of `privacy`."""
    numbers = {
        ("partition", "teachers"): plan.teachers,
        ("aggregation", "sigma"): plan.sigma,
        ("queries", "count"): plan.queries,
    }
    found = {"privacy": privacy} if privacy else {}
    for section, key in automatic:
        found.setdefault(section, {})[key] = numbers[section, key]
    return found


def with_plan(run: Run, automatic: list[tuple[str, str]], survey: Survey) -> Run:
    """Return a run with numbers for `auto` settings, computed from the true number of units if no count exists.

    Private: for the operator only.
    """
    privacy: dict[str, Any] = {}
    if counts_units(run):
        units = earlier_count(run) or survey.units(run.params.privacy.unit)
        privacy = {"units": units, "counted": noise_on_count(run.params)}
    chosen = _chosen(automatic, make_plan(run, automatic, survey, units=privacy.get("units")), **privacy)
    sections = {name: getattr(run.params, name).model_copy(update=numbers) for name, numbers in chosen.items()}
    return Run(run.root, run.name, run.params.model_copy(update=sections))


def counts_units(run: Run) -> bool:
    """Return whether units must be counted with noise: their number is private and was not declared."""
    return run.params.privacy.units is None and not run.params.data.public_benchmark


def make_plan(run: Run, automatic: list[tuple[str, str]], survey: Survey, *, units: int | None = None) -> Plan:
    """Choose numbers for the settings of a run that are `auto`.

    Args:
        run: The run; settings that are not `auto` are unchanged.
        automatic: Sections and keys of settings that are `auto`.
        survey: Survey of the run's data.
        units: Number of units. Default: the declared number, or else the true one, which is private.

    Raises:
        SettingError: If the run's kind of teachers requires explicit numbers.
    """
    params = run.params
    if params.transcription is not None or params.teachers.averages:
        raise SettingError(
            "auto is available only for teachers that train independently and vote once. Give numbers for "
            "partition.teachers, aggregation.sigma and queries.count."
        )
    if params.aggregation.where == "parties" and counts_units(run):
        raise SettingError(
            "With parties, units cannot be counted: set privacy.units to the approximate total, or give "
            "partition.teachers and aggregation.sigma."
        )
    budget, given = params.aggregation, dict.fromkeys(automatic)
    known = params.privacy.units or survey.units(params.privacy.unit)
    return plan(
        known if units is None else units,
        classes=len(survey.class_names),
        epsilon=budget.epsilon,
        delta=budget.delta,
        unit=params.privacy.unit,
        queries=given.get(("queries", "count"), params.queries.count) or (min(survey.public, MOST_ROWS) or None),
        teachers=given.get(("partition", "teachers"), params.partition.teachers),
        counted=noise_on_count(params) if counts_units(run) else 0.0,
        moments=params.privacy.moments,
        moved=budget.moved if params.data.several else None,
    )


def explain_weak_signal(run: Run, chosen: Plan, survey: Survey) -> str:
    """Explain why noise swamps a plan's votes, and name remedies. Private: for the operator only."""
    params, classes = run.params, len(survey.class_names)
    sharing = params.aggregation.moved if params.data.several else classes
    unit, epsilon, delta = params.privacy.unit, params.aggregation.epsilon, params.aggregation.delta
    units = params.privacy.units or survey.units(unit)
    about: dict[str, Any] = {"classes": sharing, "delta": delta, "unit": unit}
    noise = f"with noise of {chosen.sigma:.0f} votes on every count"
    shared = survey.records[0] - survey.names
    free = make_plan(run, [("partition", "teachers")], survey)
    if free.useful and free.teachers > chosen.teachers:  # the operator chose fewer
        larger = epsilon_for_signal(ENOUGH, chosen.signal, mu_of(epsilon, delta), delta)
        other = f"partition.teachers=auto, which gives {free.teachers:,}"
        few = f"{chosen.teachers:,} teachers"
        return _explain(run, few, classes, f"they would vote {noise}", larger, other, shared)
    larger = advised_epsilon(units, counts=counts_units(run), moments=params.privacy.moments, **about)
    most = signal(units / UNITS_EACH[unit], mu_of(epsilon, delta), sharing)
    why, more = f"{chosen.teachers:,} teachers would vote {noise}", advised_units(units, ADVISED, most)
    return _explain(run, f"{units:,} {unit}s", classes, why, larger, f"about {more:,} {unit}s", shared)


def signal_of_run(params: Params, units: int, classes: int, features: int) -> float:
    """Return the signal of a run's sums over `units`, or over the declared number; vectors have length `features`."""
    # A label of K findings is a vector of length 1 with K coordinates, shared by all records.
    sharing = math.sqrt(classes) if params.data.several else classes
    mu = mu_of(params.aggregation.epsilon, params.aggregation.delta)
    return signal_of_sums(params.privacy.units or units, mu, classes=sharing, features=features)


def explain_weak_sums(run: Run, units: int, classes: int, features: int, records: int) -> str | None:
    """Explain why noise swamps a run's sums, and name remedies. Private: for the operator only.

    Args:
        run: The run.
        units: True number of units; a declared number takes precedence.
        classes: Number of classes or findings.
        features: Length of a record's vector.
        records: Number of records.

    Returns:
        None if the signal is strong enough, or if the data are public.
    """
    params, strength = run.params, signal_of_run(run.params, units, classes, features)
    if params.data.public_benchmark or strength >= ENOUGH_OF_SUMS:
        return None
    shared, units = records - units, params.privacy.units or units
    epsilon, delta = params.aggregation.epsilon, params.aggregation.delta
    unit, larger = params.privacy.unit, epsilon_for_signal(ENOUGH_OF_SUMS, strength, mu_of(epsilon, delta), delta)
    why = f"the signal of the sums would be {strength:.2f}; {ENOUGH_OF_SUMS:g} is needed"
    more = advised_units(units, ENOUGH_OF_SUMS, strength)
    return _explain(run, f"{units:,} {unit}s", classes, why, larger, f"about {more:,} {unit}s", shared)


def _explain(run: Run, few: str, classes: int, why: str, larger: float, other: str, shared: int) -> str:
    unit, epsilon = run.params.privacy.unit, run.params.aggregation.epsilon
    wide = f", though an ε of {WIDE} or more protects a single {unit} little" if larger >= WIDE else ""
    remedies = [
        f"a budget of ε = {larger:g} (aggregation.epsilon, and at least as much in ledger.epsilon){wide}",
        other,
    ]
    if unit == "record" and run.params.data.name == "folder" and shared > 0:
        remedies.insert(
            0,
            f"unique file names, if all files are different images: {shared:,} have the name of a file in another "
            "class folder and count as one unit with it",
        )
    ledger = ledger_before(run)
    if unit == "group" and (ledger is None or ledger.account(ledger_account(run)) is None):
        remedies.append("privacy.unit=record, if single images are to be protected instead of persons")
    what = "findings" if run.params.data.several else "classes"
    return (
        f"{few} are too few for {classes} {what} at ε = {epsilon:g}: {why}, and a student would learn little but "
        f"noise. Nothing was released or charged. This would suffice: {'; or '.join(remedies)}. To continue: --anyway."
    )


def _count(run: Run, units: int, *, counted: bool = False) -> int:
    """Return the noisy number of units, which is released once per account, edition and noise level."""
    noise, sigma = make_noise(run, "units"), noise_on_count(run.params)

    def draw() -> dict[str, np.ndarray]:
        return {"units": units + noise.gaussian(1, sigma)}

    # The stage `dataset` runs later, but the ledger must know the records before they are counted.
    data = None
    if not counted:
        with open_source(run) as source:
            data = people_in(run, source.load(run.root, seed=SPLIT_SEED))
    identity, inputs = identity_in_ledger(run, "units"), _digest_of_count(run, units)
    release = release_at_price(run, identity, count_of_units(sigma), noise, draw, inputs, data=data)
    return max(1, round(float(release.arrays["units"][0])))


def _digest_of_count(run: Run, units: int) -> dict[str, str]:
    return {"units": keyed_digest(site_key(run), "terrine count of units", str(units).encode())}


def _propose_count(run: Run, units: int) -> Proposal:
    """Return the count of units as proposed for approval. Later proposals depend on the count."""
    ledger, account = open_account(run)
    release = Release("units", identity_in_ledger(run, "units"), count_of_units(noise_on_count(run.params)))
    unit, inputs = run.params.privacy.unit, _digest_of_count(run, units)
    expected = f"the number of {unit}s ± {2 * noise_on_count(run.params):.0f}, to choose settings that are auto"
    return Proposal(ledger, account, [release], inputs, unit, run.params.aggregation.delta, expected=expected)


def _sigma_of_count(run: Run, units: int) -> float | None:
    """Return the noise σ of an earlier count of the account with this result, if any."""
    ledger, account = ledger_before(run), ledger_account(run)
    if ledger is None or account not in ledger.datasets():
        return None
    for release, cost in ledger.costs(account).items():
        if isinstance(cost, GaussianEvent) and ledger.committed(release):
            found = ledger.stored(release)
            if found.keys() == {"units"} and max(1, round(float(found["units"][0]))) == units:
                return cost.sigma
    return None


def earlier_count(run: Run) -> int | None:
    """Return the account's earlier noisy count of units, or None if there is none."""
    ledger = ledger_before(run)
    known = ledger is not None and ledger.committed(identity_in_ledger(run, "units"))
    return _count(run, 0, counted=True) if known else None  # a committed release is not drawn again
