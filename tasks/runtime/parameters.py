"""The parameters of a run, written for its stages and for DVC: every `auto` a number by then.

What `auto` stands for is chosen once, from what anybody may know, before anything is trained.

How many units there are is private. Either the operator declares about how many (`privacy.units`), or they are counted
with noise: a release of its own, through the ledger, exactly once for an account, an edition and a budget, and part of
what the run's statement says was spent. Whether any choice is of use is asked of the true count, and told to the
operator alone, before the ledger is touched: a run that is refused releases nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.config.automatic import take_out
from tasks.config.params import Params, public_parameters, validate
from tasks.config.presets import values_of
from tasks.config.values import as_yaml, digest
from tasks.runtime.accounts import budget_explained, noise_source, open_account, registered_account, release_at_price
from tasks.runtime.identity import identity_of
from tasks.runtime.run import SPLIT_SEED, Run
from tasks.runtime.store import Folders, read_json, write_json, write_text
from terrine.aggregation.histogram import GaussianHistogram
from terrine.data.survey import Survey
from terrine.errors import SettingError
from terrine.planning import Plan, advised_epsilon, advised_units, noise_of_count, plan
from terrine.privacy.accounting.events import Event, GaussianEvent, compose
from terrine.privacy.clipped_mean import ClippedMean

FILE = "settled.json"
"""In the run's private folder: what was chosen, and from which parameters. Chosen again only where these change."""

_DECIDE = ("data", "privacy", "partition", "queries", "aggregation", "ledger")
"""The sections that decide what is chosen, and whose budget counting draws on."""

MOST_ROWS = 10_000
"""As many public rows of a table are asked about, where nobody says how many."""


def write_parameters(root: Path, name: str) -> Run:
    """Resolve a run's parameters, write them where its stages and DVC read them, and return the run.

    What anybody may read of them is written beside what else is public. Raises as `settled` does.
    """
    run = Run(root, name, settled(root, name))
    write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
    write_text(run.folders.public_parameters, as_yaml(public_parameters(run.params)))
    return run


def settled(root: Path, name: str) -> Params:
    """Return a run's parameters with a number in the place of every `auto`.

    Raises SettingError where no choice would be of use, unless `privacy.anyway` is set, and BudgetError where the
    account does not cover the run: then nothing was charged.
    """
    known = settled_before(root, name)
    if known is not None:
        return known
    values = values_of(root, name)
    taken, automatic = take_out(values)
    run = Run(root, name, validate(taken))
    chosen = _choose(run, automatic)
    write_json(run.folders.private / FILE, {"made_of": _made_of(values), "chosen": chosen})
    return _with(taken, chosen)


def settled_before(root: Path, name: str) -> Params | None:
    """Return what `settled` does where nothing is `auto`, or it was chosen before; else None, and nothing is done."""
    values = values_of(root, name)
    taken, automatic = take_out(values)
    if not automatic:
        return validate(taken)
    file = Folders(root, name).private / FILE
    known = read_json(file) if file.is_file() else {}
    return _with(taken, known["chosen"]) if known.get("made_of") == _made_of(values) else None


def _made_of(values: dict[str, Any]) -> str:
    return digest({section: values.get(section) for section in _DECIDE}, 64)


def _with(values: dict[str, Any], chosen: dict[str, dict[str, Any]]) -> Params:
    return validate(values | {section: {**values.get(section, {}), **given} for section, given in chosen.items()})


def _choose(run: Run, automatic: list[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    survey = run.params.data.survey(run.root, seed=SPLIT_SEED)
    foreseen = planned(run, automatic, survey)
    if not foreseen.useful and not run.params.privacy.anyway:
        raise SettingError(hopeless(run, foreseen, survey))
    privacy: dict[str, Any] = {}
    if counts_units(run):
        noise = noise_of_count(run.params.aggregation.epsilon, run.params.aggregation.delta)
        privacy = {"units": _count(run, survey.units(run.params.privacy.unit), noise, foreseen), "counted": noise}
    chosen = planned(run, automatic, survey, **privacy)
    numbers = {
        ("partition", "teachers"): chosen.teachers,
        ("aggregation", "sigma"): chosen.sigma,
        ("queries", "count"): chosen.queries,
    }
    found: dict[str, dict[str, Any]] = {"privacy": privacy} if privacy else {}
    for section, key in automatic:
        found.setdefault(section, {})[key] = numbers[section, key]
    return found


def counts_units(run: Run) -> bool:
    """Tell whether the units have to be counted with noise: nobody may know them, and nobody said about how many."""
    return run.params.privacy.units is None and not run.params.data.public_benchmark


def planned(
    run: Run,
    automatic: list[tuple[str, str]],
    survey: Survey,
    *,
    units: int | None = None,
    counted: float | None = None,
) -> Plan:
    """Return the plan of a run: what is given stays, what is `auto` is chosen.

    units, counted: the units as they were counted, and their noise; else those that the operator declared, or for the
    operator's eyes alone as they are.
    """
    params = run.params
    _refuse_what_has_no_plan(run)
    budget, given = params.aggregation, dict.fromkeys(automatic)
    if counted is None:
        counted = noise_of_count(budget.epsilon, budget.delta) if counts_units(run) else 0.0
    known = params.privacy.units or survey.units(params.privacy.unit)
    return plan(
        known if units is None else units,
        classes=len(survey.class_names),
        epsilon=budget.epsilon,
        delta=budget.delta,
        unit=params.privacy.unit,
        queries=given.get(("queries", "count"), params.queries.count) or (min(survey.public, MOST_ROWS) or None),
        teachers=given.get(("partition", "teachers"), params.partition.teachers),
        counted=counted,
        moments=params.privacy.moments,
    )


def _refuse_what_has_no_plan(run: Run) -> None:
    params = run.params
    if params.aggregation.reveals == "sums":
        raise SettingError(
            f"auto is known for mechanisms that count votes, and aggregation.mechanism={params.aggregation.mechanism} "
            "adds up records, which takes no choice of teachers or noise. Give numbers for partition.teachers and "
            "queries.count."
        )
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


def hopeless(run: Run, chosen: Plan, survey: Survey) -> str:
    """Say why no student would come of it, and what would help: for the operator alone."""
    params, classes = run.params, len(survey.class_names)
    unit, epsilon, delta = params.privacy.unit, params.aggregation.epsilon, params.aggregation.delta
    units = survey.units(unit)
    about = {"classes": classes, "delta": delta, "unit": unit}
    larger = f"ε = {advised_epsilon(units, **about):g}"
    remedies = [
        f"a budget of {larger} (aggregation.epsilon, and at least as much in ledger.epsilon)",
        f"about {advised_units(epsilon, **about):,} {unit}s to learn from",
    ]
    if unit == "group":
        remedies.append("privacy.unit=record, if what is to be protected is one image, not a person with all of hers")
    return (
        f"{units:,} {unit}s are too few for {classes} classes at ε = {epsilon:g}: {chosen.teachers} teachers would "
        f"vote under noise of {chosen.sigma:.0f} votes on every count, and a student would learn little but noise. "
        f"Nothing was released and nothing was charged. What would do: {'; or '.join(remedies)}. To go on all the "
        "same: --anyway."
    )


def _count(run: Run, units: int, sigma: float, foreseen: Plan) -> int:
    """Return the number of units with noise, released once for the account, the edition and this noise.

    foreseen: what will be asked afterwards: unless the account covers all of it, nothing is begun.
    """
    ledger, name = open_account(run)
    noise, event, budget = noise_source(run), event_of_count(sigma), run.params.aggregation
    release_id = identity_of(run, name, {**noise.describe(), "sigma": sigma}, "units")
    account = registered_account(ledger, name)
    if release_id not in account.reserved:
        moments = spent_on_moments(run.params)
        answers = GaussianHistogram(sigma=foreseen.sigma).worst_case(
            foreseen.queries, budget.epsilon, budget.delta, compose(event, moments)
        )
        with budget_explained(run):
            account.check_all([event, moments, answers], noise.kind)
    release = release_at_price(run, release_id, event, noise, lambda: {"units": units + noise.gaussian(1, sigma)})
    return max(1, round(float(release.arrays["units"][0])))


def event_of_count(sigma: float) -> Event:
    """Return what it costs to count units with noise: one more or less changes the count by one."""
    return GaussianEvent(sensitivity=1.0, sigma=sigma)


def spent_on_counting(params: Params) -> Event:
    """Return what a run spent on counting its units; nothing where it did not."""
    return event_of_count(params.privacy.counted) if params.privacy.counted else compose()


def moments_of(params: Params) -> ClippedMean | None:
    """Return the mechanism by which a run releases moments of its images, None where it releases none."""
    budget, share = params.aggregation, params.privacy.moments
    return ClippedMean.for_share(share, budget.epsilon, budget.delta) if share else None


def spent_on_moments(params: Params) -> Event:
    """Return what a run spends on moments of its images; nothing where it releases none."""
    mechanism = moments_of(params)
    return compose() if mechanism is None else mechanism.event


def about_counting(params: Params) -> dict[str, Any]:
    """Return how a statement says that units were counted with noise; nothing where they were not."""
    if not params.privacy.counted:
        return {}
    return {"counted": {"units": params.privacy.units, "sigma": params.privacy.counted}}
