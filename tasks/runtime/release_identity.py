"""Under which identity the ledger knows a run's releases: one rule for answers, averages, moments, annotations,
labels and a noised accuracy.

A release is identified by the account, the edition of the data that the operator names, its task (kind, names and order
of classes, edges of bins, the column of labels) and the settings upstream of it that differ from their defaults: by
public things alone. A count of units and moments of images depend on no label: tasks about the same people share them.
So a run that changes its student shares the release, one that
changes a teacher's penalty makes a release of its own and pays for it, whether its votes are equal or not, and whether
a release is made again never says anything about the data (docs/ledger.md).

What the data were is sealed beside the release, sealed and private (`Inputs`): should they change under one
edition, the stored release is what comes back, and the operator is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tasks.config.params import FAMILIES, Params
from tasks.config.values import digest
from tasks.runtime.accounts import site_key
from tasks.runtime.code_digest import code_version
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_text
from terrine.aggregation.release import changed_inputs, partition_commitment, partition_inputs
from terrine.errors import ArtefactError
from terrine.privacy.ledger.site_key import release_identity
from terrine.privacy.ledger.task import Task

if TYPE_CHECKING:
    from terrine.privacy.ledger.ledger import StoredRelease

Kind = Literal["answers", "averages", "annotations", "labels", "units", "accuracy", "moments"]
Inputs = dict[str, str]

FORM = 1
"""Raised when the same settings would release something else, or when a default upstream of a release changes."""

_CHANGED = "data_changed_"

_UP_TO_TEACHERS = ("data", "privacy", "partition", "queries", "backbone", "pretraining", "teachers")
_UPSTREAM: dict[Kind, tuple[str, ...]] = {
    "answers": (*_UP_TO_TEACHERS, "aggregation", "collaboration"),
    "averages": (*_UP_TO_TEACHERS, "aggregation"),
    "annotations": ("data", "privacy", "partition", "transcription"),
    "labels": ("data", "privacy", "transcription"),
    "units": ("data", "privacy"),
    "moments": ("data", "privacy", "queries", "backbone", "pretraining", "aggregation"),
    "accuracy": (*_UP_TO_TEACHERS, "aggregation", "collaboration", "student", "evaluation"),
}
"""The sections that decide what is released; beside them `seed` does, but for labels, which are not dealt."""

PLACES = {"root", "path", "labels", "download"}
"""Settings of the data that say where they lie."""

OF_TASK: frozenset[Kind] = frozenset({"answers", "averages", "annotations", "labels", "accuracy"})
"""The kinds of releases that depend on labels, and so on the task."""

_TASK = {"findings", "grades", "bins", "classes", "target"}
"""Settings of the data that declare the task, which has a place of its own in an identity."""

_ELSEWHERE: dict[str, set[str]] = {
    # Where files lie, not what is in them; the edition has a place of its own.
    "data": PLACES | {"public_benchmark", "edition"},
    "teachers": {"per_task"},
    "privacy": {"anyway"},
    "evaluation": {"specificity", "subgroups"},
    "collaboration": {"deadline", "patience", "guardian", "student"},
    "transcription": {"per_task", "epsilon", "delta"},
}
"""Settings of these sections that decide nothing about it."""

_OF_SUMS = {"epsilon", "delta", "noise"}
"""Settings of the aggregation that the noise on averages and moments is made for."""


def upstream(params: Params, kind: Kind) -> dict[str, Any]:
    """Return the settings that decide what a release of this kind is, as JSON values: those that are not defaults."""
    chosen: dict[str, Any] = {"seed": params.seed} if params.seed and kind != "labels" else {}
    nobody_votes = kind == "answers" and params.aggregation.reveals == "sums"
    for name in _UPSTREAM[kind]:
        if nobody_votes and name in ("partition", "teachers"):
            continue
        section = getattr(params, name)
        if section is None or (name == "collaboration" and params.aggregation.where != "parties"):
            continue
        values = section.model_dump(mode="json", exclude=_ELSEWHERE.get(name), exclude_defaults=True)
        family = FAMILIES.get(name)
        if family is not None and (chosen_kind := getattr(section, family.key)) != family.default:
            values |= {family.key: chosen_kind}  # its own class has it as the default
        if kind in ("averages", "moments") and name == "aggregation":
            values = {key: value for key, value in values.items() if key in _OF_SUMS}
        if kind == "units" and name == "privacy":
            values = {key: value for key, value in values.items() if key != "moments"}
        if name == "transcription":
            if kind == "labels":
                values = {"epsilon": values["annotation"]["epsilon"]}  # not what follows the labels
            else:
                student = {key: value for key, value in values.get("student", {}).items() if key != "final_steps"}
                values = {**values, "student": student}
        if name == "data":
            left_out = {*_TASK, *(("size", "channels", "fit") if kind == "labels" else ())}
            values = {key: value for key, value in values.items() if key not in left_out}
        if values:
            chosen[name] = values
    return chosen


def release_digest(params: Params, kind: Kind = "answers") -> str:
    """Return a digest of all settings that decide a release but the account: equal for runs of one account and the
    same data that share it."""
    task = params.data.model_dump(mode="json", include=_TASK, exclude_defaults=True)
    return digest({"edition": params.data.edition, "form": FORM, "task": task, **upstream(params, kind)}, 64)


def compute_identity(
    run: Run, account: str, noise: Mapping[str, Any], kind: Kind, *index: int, task: Task | None = None
) -> str:
    """Return the identity under which the ledger knows a release of the run, from public facts alone.

    account: whose budget the release draws on. noise: the description of its noise. index: which one, where there are
    several: the round of an average. task: what the release is about; kinds in `OF_TASK` need it, others ignore it.
    """
    parameters = {"form": FORM, **upstream(run.params, kind)}
    if kind in OF_TASK:
        assert task is not None, f"{kind} depend on the task"
        parameters["task"] = task.identity()
    return release_identity(
        site_key(run),
        account=account,
        edition=run.params.data.edition,
        release=" ".join([kind, *map(str, index)]),
        parameters=parameters,
        noise=noise,
    )


def input_digests(run: Run, **digests: str) -> Inputs:
    """Return what is sealed with a release that is drawn now: digests of its inputs, the partition's, and a salt.

    digests: of private inputs keyed, of public ones plain.
    """
    partition = str(read_json(run.folders.partition / "manifest.json")["hash"])
    return {**digests, **partition_inputs(partition)}


def describe_release(run: Run, account: str, release: StoredRelease) -> dict[str, Any]:
    """Return what every privacy statement says: whose release it is, of which partition, made by which code."""
    return {
        "run": run.name,
        "release_id": release.release_id,
        "dataset": account,
        "epsilon_dataset": release.epsilon_total,
        "epsilon_account": release.guarantee,
        "task": None if release.task is None else release.task.to_json(),
        "partition_digest": partition_commitment(release),
        "partition_disjoint": read_json(run.folders.partition / "manifest.json")["every_record_in_exactly_one_part"],
        "code_version": " ".join(f"{name} {value}" for name, value in code_version(run.root).items()),
    }


def record_data_change(run: Run, kind: Kind, release: StoredRelease, inputs: Inputs) -> None:
    """Write into the private zone, and only there, that a stored release was made from other data, if it was.

    inputs: the result of `input_digests` for the current data.
    """
    changed = ", ".join(changed_inputs(release, inputs))
    _record_change(
        run,
        kind,
        f"The data changed since the {kind} were released ({changed}), under the same edition: the stored release was "
        "returned, and nothing was charged."
        if changed
        else None,
    )


def record_file_change(run: Run, how: str | None) -> None:
    """Write into the private zone, and only there, how a run's files changed; None removes the note."""
    _record_change(
        run,
        "files",
        None
        if how is None
        else f"The data changed since this run read them: {how}. All its releases are about the data as they were, and "
        "stay as they are.",
    )


def _record_change(run: Run, subject: str, what: str | None) -> None:
    path = run.folders.private / f"{_CHANGED}{subject}.txt"
    path.unlink(missing_ok=True)
    if what is not None:
        edition = _next(run.params.data.edition)
        write_text(
            path,
            f"{what} To release about the current data, at its own cost, name a new edition: --set "
            f"data.edition={edition}\n",
        )


def data_changes(run: Run) -> list[str]:
    """Return what `record_data_change` wrote about this run. Private."""
    return [path.read_text(encoding="utf-8").strip() for path in sorted(run.folders.private.glob(f"{_CHANGED}*.txt"))]


def _next(edition: str) -> str:
    return str(int(edition) + 1) if edition.isdecimal() else f"{edition}-2"


def check_queries(run: Run, release: StoredRelease, inputs: Inputs) -> None:
    """Raise ArtefactError where the query images, as `inputs` has them, are not those of the stored release."""
    if release.inputs.get("queries", inputs["queries"]) != inputs["queries"]:
        raise ArtefactError(
            f"The release {release.release_id[:16]} was made before, about other query images than those in "
            f"{run.folders.images}: another version of Terrine or of its libraries draws them otherwise. Put the old "
            f"images back; or release anew, at its own cost, with --set data.edition={_next(run.params.data.edition)}."
        )
