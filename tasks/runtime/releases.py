"""The releases of a run: their kinds, release IDs and worst-case costs.

Before its first release, a run checks that the account covers all releases that are not charged yet, so nothing is
charged if the total cannot be paid. `terrine check` and `terrine sweep` price the same list. The ledger checks the
single release of a transcription.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config.params import Params
from tasks.runtime.accounts import budget_explained, ledger_account, noise_source, open_account
from tasks.runtime.release_identity import OF_TASK, Kind, compute_identity
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from tasks.runtime.task import load_task
from terrine.errors import ArtefactError
from terrine.planning import Plan, ample, noise_of_count, signal
from terrine.privacy.accounting.events import Event, NonPrivateEvent, compose, count_of_units
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.facts import Record
from terrine.privacy.ledger.account import Account, check_together
from terrine.privacy.ledger.ledger import Ledger
from terrine.privacy.ledger.task import Task
from terrine.privacy.noise import NoiseKind, NoiseSource
from terrine.privacy.noised_accuracy import NoisedAccuracy
from terrine.privacy.noised_sum import ClippedMean
from terrine.teachers.averaging.private import PrivateAveraging, calibrated

CENTRE = -1
"""Index of the average before the first round: the centre of all parties' features."""

_NAMES: dict[Kind, str] = {
    "units": "a count of units",
    "averages": "averages of teachers",
    "moments": "moments",
    "answers": "answers",
    "accuracy": "an accuracy",
    "annotations": "annotations",
    "labels": "labels",
    "imported": "a model that another library trained",
}
_PURPOSES: dict[Kind, str] = {"averages": " of averages", "moments": " of moments", "accuracy": " of an accuracy"}


_RECORDS: dict[str, Record] = {"table": "row", "dicom": "dicom", "nifti": "volume"}
"""Kind of record by name of the data's source. Records of all other sources are images."""


@dataclass(frozen=True)
class Release:
    """One release of a run: its kind, release ID (for averages, that of the first average) and worst-case cost."""

    kind: Kind
    identity: str
    worst_case: Event


def make_noise(run: Run, kind: Kind, *index: int) -> NoiseSource:
    """Return the noise source of a release. Replayed noise differs between kinds and indices."""
    return noise_source(run, f"replayed noise{_PURPOSES.get(kind, '')}", *index)


def identity_in_ledger(run: Run, kind: Kind, *index: int, task: Task | None = None) -> str:
    """Return the release ID of a release of the run; for a count of units it is the same before and after counting.

    Args:
        run: The run.
        kind: Kind of the release.
        *index: Number of the release if there are several of this kind.
        task: The task. Default: the task of the run's records, which must have been read.
    """
    noise: dict[str, Any] = make_noise(run, kind, *index).describe()
    if kind == "units":
        noise = {**noise, "sigma": noise_on_count(run.params)}
        privacy = run.params.privacy.model_copy(update={"units": None, "counted": 0.0})
        run = Run(run.root, run.name, run.params.model_copy(update={"privacy": privacy}))
    task = (task or load_task(run)) if kind in OF_TASK else None
    return compute_identity(run, ledger_account(run), noise, kind, *index, task=task)


def worst_cases(params: Params, queries: int | None = None) -> dict[Kind, Event]:
    """Return the kinds of a run's releases in order, with worst-case costs, from parameters only.

    Args:
        params: The parameters.
        queries: Number of questions. Default: `queries.count` times the findings.
    """
    budget, count = params.aggregation, queries or params.queries.count * params.aggregation.findings
    if params.teachers.unprotected:
        found: dict[Kind, Event] = {"answers": NonPrivateEvent()}
    else:
        averages = averaging_mechanism(params)
        spent: dict[Kind, Event] = {
            "units": counting_cost(params),
            "averages": compose() if averages is None else averages.whole_event(),
            "moments": moments_cost(params),
        }
        found = {kind: event for kind, event in spent.items() if event != compose()}
        before = compose(*found.values())
        found["answers"] = budget.worst_case(count, budget.epsilon, budget.delta, before)
    accuracy = accuracy_mechanism(params)
    return found | ({"accuracy": accuracy.event} if accuracy is not None else {})


def list_releases(run: Run, queries: int | None = None, task: Task | None = None) -> list[Release]:
    """Return a run's releases in order. For `queries` see `worst_cases`; for `task` see `identity_in_ledger`."""
    averages = averaging_mechanism(run.params)
    first = {"averages": (CENTRE if averages is not None and averages.centred else 0,)}
    costs = worst_cases(run.params, queries)
    return [
        Release(kind, identity_in_ledger(run, kind, *first.get(kind, ()), task=task), cost)
        for kind, cost in costs.items()
    ]


def unpaid(ledger: Ledger, releases: Sequence[Release]) -> list[Release]:
    """Return the releases that are not charged yet, each once, because repeating a release is free."""
    each = {one.identity: one for one in releases}
    reserved = ledger.reserved(each)
    return [one for identity, one in each.items() if identity not in reserved]


def name_of(params: Params, kind: Kind) -> str:
    """Return what a release of this kind contains, such as "gradients of records"."""
    sums = kind == "answers" and params.aggregation.reveals == "sums"
    return f"{params.aggregation.mechanism} of records" if sums else _NAMES[kind]


def describe_releases(releases: Sequence[Release]) -> str:
    """Return a phrase for an error message, such as "The releases of moments and answers"."""
    *others, last = dict.fromkeys(_NAMES[release.kind] for release in releases)
    return f"The release{'s' * (len(releases) > 1)} of {', '.join(others)}{' and ' * bool(others)}{last}"


def check_fit(
    run: Run, accounts: Sequence[Account], releases: Sequence[Release], noise: NoiseKind | None = None
) -> None:
    """Check that linked accounts can pay for releases in sequence.

    Args:
        run: The run.
        accounts: The account and those linked with it.
        releases: The releases.
        noise: Kind of noise of the releases. Default: that of the votes.

    Raises:
        BudgetError: If the accounts cannot pay; the message names the releases.
    """
    if releases:
        costs = [release.worst_case for release in releases]
        with budget_explained(run):
            check_together(accounts, costs, noise or noise_source(run).kind, describe_releases(releases))


def check_releases(run: Run, queries: int | None = None, task: Task | None = None) -> None:
    """Check before a run's first release that its account covers all outstanding ones; see `list_releases`.

    Raises:
        BudgetError: If the account does not cover them.
    """
    releases = list_releases(run, queries, task)
    if len(releases) > 1:  # the ledger checks a single release when it reserves it
        ledger, name = open_account(run)
        check_fit(run, ledger.together(name), unpaid(ledger, releases))


def noise_on_count(params: Params) -> float:
    """Return the standard deviation of the noise on the existing or future count of units."""
    return params.privacy.counted or noise_of_count(params.aggregation.epsilon, params.aggregation.delta)


def averaging_mechanism(params: Params) -> PrivateAveraging | None:
    """Return the mechanism that releases averages of teachers, calibrated to their share of the budget, or None."""
    teachers, aggregation = params.teachers, params.aggregation
    if not teachers.releases_averages:
        return None
    return calibrated(teachers, epsilon=aggregation.epsilon, delta=aggregation.delta)


def moments_mechanism(params: Params) -> ClippedMean | None:
    """Return the mechanism that releases moments of images, or None."""
    budget, share = params.aggregation, params.privacy.moments
    return ClippedMean.for_share(share, budget.epsilon, budget.delta) if share else None


def accuracy_mechanism(params: Params) -> NoisedAccuracy | None:
    """Return the mechanism that releases an accuracy, or None."""
    epsilon, columns = params.evaluation.epsilon, params.evaluation.released_subgroups
    if epsilon is None:
        return None
    return NoisedAccuracy.for_budget(epsilon, params.aggregation.delta, [len(values) for values in columns.values()])


def plan_votes(params: Params, classes: int) -> Plan:
    """Return teachers, noise, answered queries and signal of a run with noisy histograms, from public quantities."""
    mechanism: Any = params.aggregation
    answers = params.queries.count * mechanism.findings
    asked = mechanism.certain(answers, mechanism.epsilon, mechanism.delta, inputs_cost(params))
    mu = math.sqrt(mu_squared(mechanism.cost(asked, asked))) if asked else 0.0
    sharing = mechanism.moved if params.data.several else classes
    most, teachers = ample(sharing, several=params.data.several), params.partition.teachers
    queries = asked // mechanism.findings
    return Plan(teachers, mechanism.sigma, queries, signal(teachers, mu, sharing), most, 0)


def counting_cost(params: Params) -> Event:
    """Return the cost of the count of units."""
    return count_of_units(params.privacy.counted) if params.privacy.counted else compose()


def moments_cost(params: Params) -> Event:
    """Return the cost of the moments of images."""
    mechanism = moments_mechanism(params)
    return compose() if mechanism is None else mechanism.event


def inputs_cost(params: Params) -> Event:
    """Return the cost of releases before training: the count of units and moments."""
    return compose(counting_cost(params), moments_cost(params))


def describe_order(params: Params) -> dict[str, Any]:
    """Return the statement's field about ordered classes: the edges of bins or the number of grades."""
    scale = params.data.scale
    if scale is None:
        return {}
    return {"bins": list(scale.edges)} if scale.edges else {"grades": len(scale.names)}


def describe_counting(params: Params) -> dict[str, Any]:
    """Return the statement's field about the noisy count of units."""
    if not params.privacy.counted:
        return {}
    return {"counted": {"units": params.privacy.units, "sigma": params.privacy.counted}}


def missing_about(params: Params) -> list[str]:
    """Return the settings of the operator's statement that a signed statement about private data requires but lacks."""
    stated = {} if params.data.public_benchmark else params.about.model_dump()
    return [f"about.{name}" for name, value in stated.items() if value is None or value == ""]


def record_facts(params: Params) -> dict[str, Any]:
    """Return the arguments of `Facts` that follow from settings."""
    own = not params.data.public_benchmark
    return {
        "record": _RECORDS.get(params.data.name, "image"),
        "held_out": True,
        "accuracy_epsilon": params.evaluation.epsilon,
        "about": params.about if own or any(params.about.model_dump().values()) else None,
        "declared_units": params.privacy.units if own and not params.privacy.counted else None,
    }


SEARCH, AUDIT = "search.json", "audit.json"


def record_search(run: Run, epsilon_tuning: float, delta: float) -> None:
    """Store the cost of a search that this run is a candidate of. The largest of several searches counts."""
    known = _read(run, SEARCH).get("epsilon_tuning", 0.0)
    write_json(run.folders.public / SEARCH, {"epsilon_tuning": max(epsilon_tuning, known), "delta": delta})


def is_candidate(run: Run) -> bool:
    """Return whether a run is a candidate of a search."""
    return (run.folders.public / SEARCH).is_file()


def record_audit(run: Run, result: dict[str, Any]) -> None:
    """Store the result of an audit of the run's mechanism (`tasks.auditing.mechanisms.audit`)."""
    write_json(run.folders.public / AUDIT, result)


def assurance(run: Run, mechanism: dict[str, Any]) -> dict[str, Any]:
    """Return those of the statement's fields `epsilon_tuning`, `audit_epsilon` and `audit_confidence` that are known.

    An audit of another mechanism or with other parameters is ignored.
    """
    search, audited = _read(run, SEARCH), _read(run, AUDIT)
    fields = {name: search[name] for name in ("epsilon_tuning",) if name in search}
    if audited and all(audited.get(key) == value for key, value in mechanism.items()):
        fields |= {"audit_epsilon": audited["epsilon"], "audit_confidence": audited["confidence"]}
    return fields


def _read(run: Run, name: str) -> dict[str, Any]:
    path: Path = run.folders.public / name
    try:
        return read_json(path) if path.is_file() else {}
    except ArtefactError as error:
        raise ArtefactError(f"{error} Remove it and repeat the search or audit.") from error


def contradicted_about(params: Params, records: int, groups: int | None) -> str | None:
    """Return a sentence if the operator states one record per person, but the training records have fewer groups.

    If a group is protected, a person may have several records.
    """
    one_record = params.about.one_per_person and params.privacy.unit == "record"
    if not one_record or groups is None or groups >= records:
        return None
    return (
        f"about.one_per_person=true, but the {records:,} training records belong to {groups:,} groups. If a group is a "
        "person, set it to false. Otherwise: --anyway."
    )
