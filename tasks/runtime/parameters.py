"""The parameters of a run, written for its stages and for DVC: every `auto` a number by then, chosen once, from what
anybody may know, before anything is trained.

How many units there are is private: the operator declares about how many (`privacy.units`), or they are counted with
noise, a release of its own, exactly once for an account, an edition and a budget, and part of what the statement says
was spent. Whether any choice is of use is asked of the declared number, or else of the true count, and told to the
operator alone, before the ledger is touched: a run that is refused releases nothing.
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
from tasks.runtime.accounts import ledger_account, ledger_before, people_in, release_at_price
from tasks.runtime.release_identity import PLACES
from tasks.runtime.releases import check_releases, identity_in_ledger, make_noise, noise_on_count
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.stage_graph import AUTOMATIC, CHOSEN
from tasks.runtime.store import Folders, read_json, write_json, write_text
from tasks.runtime.task import open_source, task_from
from terrine.data.partition import refuse_no_groups
from terrine.data.source import Survey
from terrine.errors import SettingError
from terrine.planning import (
    ADVISED,
    ADVISED_OF_SUMS,
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
from terrine.privacy.ledger.task import Task

FILE = "resolve_auto.json"
"""In the run's private folder: what was chosen, and from which parameters. Chosen again only where these change."""

_DECIDE = ("data", "privacy", "partition", "queries", "aggregation", "ledger")
"""The sections that decide what is chosen, and whose budget counting draws on."""

MOST_ROWS = 10_000
"""As many public rows of a table are asked about, where nobody says how many."""

WIDE = 10
"""An ε from which on advice says that it is a weak promise: odds may change by a factor of e^10."""


def write_parameters(root: Path, name: str) -> Run:
    """Resolve a run's parameters, write them where its stages and DVC read them, and return the run.

    What anybody may read of them is written beside what else is public. Raises as `resolve_auto` does.
    """
    run = Run(root, name, resolve_auto(root, name))
    said = run.params.privacy
    if said.counted and earlier_count(run) != said.units:
        raise SettingError(
            "privacy.counted says that the run counted its units with noise, and the account has no such count. It is "
            "not for you to set: leave it out, and privacy.units, too, or declare privacy.units alone. Nothing was "
            "charged."
        )
    if said.units and not said.counted and (sigma := _counted_as(run, said.units)):
        raise SettingError(
            f"privacy.units={said.units} is what this account counted with noise. As a declared number, its cost would "
            f"be missing in the statement. Leave privacy.units out, or set privacy.counted={sigma!r} as well. Nothing "
            "was charged."
        )
    write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
    write_text(run.folders.public_parameters, as_yaml(public_parameters(run.params)))
    chosen: dict[str, dict[str, Any]] = {section: {} for section in AUTOMATIC.values()}
    for section, key in replace_auto(load_values(root, name))[1]:
        chosen[section][key] = getattr(getattr(run.params, section), key)
    if said.counted:
        chosen["privacy"] = {"units": said.units, "counted": said.counted}
    write_text(run.folders.private / Path(CHOSEN).name, as_document(chosen))
    return run


def resolve_auto(root: Path, name: str, survey: Survey | None = None) -> Params:
    """Return a run's parameters with a number in the place of every `auto`.

    survey: of its data, where that was made before. Raises SettingError where no choice would be of use, unless
    `privacy.anyway` is set, and BudgetError where the account does not cover the run: then nothing was charged.
    """
    known = resolve_without_data(root, name)
    if known is not None:
        return known
    values = load_values(root, name)
    taken, automatic = replace_auto(values)
    run = Run(root, name, validate(taken))
    chosen = _choose(run, automatic, survey or survey_data(run))
    write_json(run.folders.private / FILE, {"made_of": _made_of(values), "chosen": chosen})
    return _with(taken, chosen)


def resolve_without_data(root: Path, name: str) -> Params | None:
    """Return the result of `resolve_auto` if nothing is `auto` or the choice is stored, else None."""
    values = load_values(root, name)
    taken, automatic = replace_auto(values)
    if not automatic:
        return validate(taken)
    file = Folders(root, name).private / FILE
    known = read_json(file) if file.is_file() else {}
    return _with(taken, known["chosen"]) if known.get("made_of") == _made_of(values) else None


def _made_of(values: dict[str, Any]) -> str:
    decide = {section: values.get(section) for section in _DECIDE}
    # Where the data lie decides nothing: under the same edition they are the same, or what was released is not theirs.
    data = {key: value for key, value in (decide["data"] or {}).items() if key not in PLACES}
    return digest(decide | {"data": data}, 64)


def _with(values: dict[str, Any], chosen: dict[str, dict[str, Any]]) -> Params:
    return validate(values | {section: {**values.get(section, {}), **given} for section, given in chosen.items()})


def survey_data(run: Run) -> Survey:
    """Return what a run's data are. Raises SettingError where groups are to be protected and the data have none."""
    with open_source(run) as source:
        survey = source.survey(run.root, seed=SPLIT_SEED)
    refuse_no_groups(run.params.privacy.unit, survey.groups)
    return survey


def task_from_survey(run: Run, survey: Survey) -> Task:
    """Return the task of a run before its records are read."""
    return task_from(run.params.data, survey.class_names, declared=survey.declared)


def preview_auto(root: Path, name: str, survey: Survey) -> Params:
    """Preview the result of `resolve_auto` without drawing noise or charging the account. Private, see `with_plan`.

    Raises:
        SettingError: If no choice would give a useful student.
    """
    taken, automatic = replace_auto(load_values(root, name))
    run = Run(root, name, validate(taken))
    _useful_plan(run, automatic, survey)
    return with_plan(run, automatic, survey).params


def _useful_plan(run: Run, automatic: list[tuple[str, str]], survey: Survey) -> Plan:
    """Return a plan that is of use for the data. Raises SettingError where none is."""
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
    units, sigma = _count(run, survey.units(run.params.privacy.unit)), noise_on_count(run.params)
    return _chosen(automatic, make_plan(run, automatic, survey, units=units), units=units, counted=sigma)


def _chosen(automatic: list[tuple[str, str]], plan: Plan, **privacy: Any) -> dict[str, dict[str, Any]]:
    """Return, by section, the numbers that a plan has for what is `auto`, and how many units were counted."""
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
    """Return a run with numbers in the place of what is `auto`: as it will be where its units were counted before or
    need not be, else as it would be if they were counted without noise. For the operator's eyes alone."""
    privacy: dict[str, Any] = {}
    if counts_units(run):
        units = earlier_count(run) or survey.units(run.params.privacy.unit)
        privacy = {"units": units, "counted": noise_on_count(run.params)}
    chosen = _chosen(automatic, make_plan(run, automatic, survey, units=privacy.get("units")), **privacy)
    sections = {name: getattr(run.params, name).model_copy(update=numbers) for name, numbers in chosen.items()}
    return Run(run.root, run.name, run.params.model_copy(update=sections))


def counts_units(run: Run) -> bool:
    """Tell whether the units have to be counted with noise: nobody may know them, and nobody said about how many."""
    return run.params.privacy.units is None and not run.params.data.public_benchmark


def make_plan(run: Run, automatic: list[tuple[str, str]], survey: Survey, *, units: int | None = None) -> Plan:
    """Return the plan of a run: what is given stays, what is `auto` is chosen.

    units: as they were counted; else those that were declared, or for the operator's eyes alone as they are.
    """
    params = run.params
    _refuse_what_has_no_plan(run)
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


def _refuse_what_has_no_plan(run: Run) -> None:
    params = run.params
    if params.transcription is not None or params.teachers.averages:
        raise SettingError(
            "auto is known for teachers that learn alone and vote once. Give numbers for partition.teachers, "
            "aggregation.sigma and queries.count."
        )
    if params.aggregation.where == "parties" and counts_units(run):
        raise SettingError(
            "Where parties hold the votes, no one counts their records: set privacy.units to about how many there are "
            "in all, or give partition.teachers and aggregation.sigma."
        )


def explain_weak_signal(run: Run, chosen: Plan, survey: Survey) -> str:
    """Say why no student would come of it, and what would help: for the operator alone."""
    params, classes = run.params, len(survey.class_names)
    sharing = params.aggregation.moved if params.data.several else classes
    unit, epsilon, delta = params.privacy.unit, params.aggregation.epsilon, params.aggregation.delta
    units = params.privacy.units or survey.units(unit)
    about: dict[str, Any] = {"classes": sharing, "delta": delta, "unit": unit}
    noise = f"under noise of {chosen.sigma:.0f} votes on every count"
    shared = survey.records[0] - survey.names
    free = make_plan(run, [("partition", "teachers")], survey)
    if free.useful and free.teachers > chosen.teachers:  # somebody said how many
        larger = epsilon_for_signal(ENOUGH, chosen.signal, mu_of(epsilon, delta), delta)
        other = f"partition.teachers=auto, which takes {free.teachers:,}"
        few = f"{chosen.teachers:,} teachers"
        return _hopeless(run, few, classes, f"they would vote {noise}", larger, other, shared)
    larger = advised_epsilon(units, counts=counts_units(run), moments=params.privacy.moments, **about)
    most = signal(units / UNITS_EACH[unit], mu_of(epsilon, delta), sharing)
    why, more = f"{chosen.teachers:,} teachers would vote {noise}", advised_units(units, ADVISED, most)
    return _hopeless(run, f"{units:,} {unit}s", classes, why, larger, f"about {more:,} {unit}s to learn from", shared)


def check_signal_of_sums(run: Run, units: int, classes: int, features: int, records: int) -> None:
    """Refuse sums over so few private units that their noise drowns them, unless `privacy.anyway` is set.

    units: as they are; those that were declared decide, where somebody did. features: the length of a record's vector.
    records: how many there are, in units. Raises SettingError, for the operator alone.
    """
    sentence = explain_weak_sums(run, units, classes, features, records)
    if sentence and not run.params.privacy.anyway:
        raise SettingError(sentence)


def explain_weak_sums(run: Run, units: int, classes: int, features: int, records: int) -> str | None:
    """Say why no head would come of a run's sums, and what would help; None where one will, or data are public."""
    # Of K findings each is one of K coordinates of a label of length 1, of all records.
    sharing = math.sqrt(classes) if run.params.data.several else classes
    shared, units = records - units, run.params.privacy.units or units
    params = run.params
    about: dict[str, Any] = {"classes": sharing, "features": features}
    epsilon, delta = params.aggregation.epsilon, params.aggregation.delta
    strength = signal_of_sums(units, mu_of(epsilon, delta), **about)
    if params.data.public_benchmark or strength >= ENOUGH_OF_SUMS:
        return None
    unit, larger = params.privacy.unit, epsilon_for_signal(ADVISED_OF_SUMS, strength, mu_of(epsilon, delta), delta)
    why = f"the sums over them would have a signal of {strength:.2f}, where {ENOUGH_OF_SUMS:g} is needed"
    more = advised_units(units, ADVISED_OF_SUMS, strength)
    return _hopeless(run, f"{units:,} {unit}s", classes, why, larger, f"about {more:,} {unit}s to learn from", shared)


def _hopeless(run: Run, few: str, classes: int, why: str, larger: float, other: str, shared: int) -> str:
    unit, epsilon = run.params.privacy.unit, run.params.aggregation.epsilon
    wide = f", though one of {WIDE} and more promises a single {unit} little" if larger >= WIDE else ""
    remedies = [
        f"a budget of ε = {larger:g} (aggregation.epsilon, and at least as much in ledger.epsilon){wide}",
        other,
    ]
    if unit == "record" and run.params.data.name == "folder" and shared > 0:
        remedies.insert(
            0,
            f"to give each file a name of its own, if all are different images: {shared:,} are called like one in "
            "another class folder, and count as one with it",
        )
    if unit == "group":
        remedies.append("privacy.unit=record, if what is to be protected is one image, not a person with all of hers")
    what = "findings" if run.params.data.several else "classes"
    return (
        f"{few} are too few for {classes} {what} at ε = {epsilon:g}: {why}, and a student would learn "
        f"little but noise. Nothing was released and nothing was charged. What would do: {'; or '.join(remedies)}. To "
        "go on all the same: --anyway."
    )


def _count(run: Run, units: int, *, counted: bool = False) -> int:
    """Return the number of units with noise, released once for the account, the edition and this noise."""
    noise, sigma = make_noise(run, "units"), noise_on_count(run.params)

    def draw() -> dict[str, np.ndarray]:
        return {"units": units + noise.gaussian(1, sigma)}

    # Before the stage `dataset`: whose records these are must be known before they are counted, too.
    data = None
    if not counted:
        with open_source(run) as source:
            data = people_in(run, source.load(run.root, seed=SPLIT_SEED))
    release = release_at_price(run, identity_in_ledger(run, "units"), count_of_units(sigma), noise, draw, data=data)
    return max(1, round(float(release.arrays["units"][0])))


def _counted_as(run: Run, units: int) -> float | None:
    """Return the standard deviation of the noise of an earlier count of the account with this result, if any."""
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
    """Return the number of units as the account counted it before; None where it did not, and nothing is begun."""
    ledger = ledger_before(run)
    known = ledger is not None and ledger.committed(identity_in_ledger(run, "units"))
    return _count(run, 0, counted=True) if known else None  # what is committed is not drawn again
