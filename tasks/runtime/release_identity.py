"""Compute the release ID of each release of a run.

The ID depends on public facts only: the account, the edition of the data named by the operator, the task (kind, names
and order of classes, edges of bins, label column) and the upstream settings that differ from their defaults. Runs that
differ only in the student therefore share a release. A run with another teacher setting makes and pays for its own,
even if its votes are equal. Repeating a release therefore reveals nothing about the data (docs/ledger.md).
The count of units and the moments of images do not depend on labels, so tasks about the same people share them.

Digests of the inputs are sealed with the release and private (`Inputs`). If the data change under one edition, the
stored release is returned and the operator is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tasks.config.params import FAMILIES, Params
from tasks.config.presets import other_run_command
from tasks.config.values import digest
from tasks.runtime.accounts import approval_of, site_key
from tasks.runtime.code_digest import code_version
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_text
from terrine.aggregation.release import changed_inputs, partition_commitment, partition_inputs
from terrine.errors import ArtefactError
from terrine.privacy.ledger.site_key import release_identity
from terrine.privacy.ledger.task import Task

if TYPE_CHECKING:
    from terrine.privacy.ledger.ledger import StoredRelease

Kind = Literal["answers", "averages", "annotations", "labels", "units", "accuracy", "moments", "imported"]
Inputs = dict[str, str]

FORM = 1
"""Version, to be increased if the same settings would give another release, or if an upstream default changes."""

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
    "imported": (),
}
"""Sections that affect a release. `seed` affects all but labels, which are not assigned to teachers."""

PLACES = {"root", "path", "labels", "download"}
"""Data settings that are locations."""

OF_TASK: frozenset[Kind] = frozenset({"answers", "averages", "annotations", "labels", "accuracy"})
"""Kinds of releases that depend on labels and therefore on the task."""

_TASK = {"findings", "grades", "bins", "classes", "target"}
"""Data settings that declare the task, which is a separate part of the release ID."""

_ELSEWHERE: dict[str, set[str]] = {
    # Locations do not affect the content; the edition is a separate part of the release ID.
    "data": PLACES | {"public_benchmark", "edition"},
    "teachers": {"per_task"},
    "privacy": {"anyway"},
    "evaluation": {"specificity", "subgroups"},
    "collaboration": {"deadline", "patience", "guardian", "student"},
    "transcription": {"per_task", "epsilon", "delta"},
}
"""Settings of these sections that do not affect a release."""

_OF_SUMS = {"epsilon", "delta", "noise"}
"""Aggregation settings that affect averages and moments."""


def upstream(params: Params, kind: Kind) -> dict[str, Any]:
    """Return the settings that affect a release of this kind and differ from their defaults, as JSON values."""
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
            values |= {family.key: chosen_kind}  # the default of the kind's own class
        if kind in ("averages", "moments") and name == "aggregation":
            values = {key: value for key, value in values.items() if key in _OF_SUMS}
        if kind == "units" and name == "privacy":
            values = {key: value for key, value in values.items() if key != "moments"}
        if name == "transcription":
            if kind == "labels":
                values = {"epsilon": values["annotation"]["epsilon"]}  # later steps do not affect labels
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
    """Return a digest of all settings that affect a release. Runs with equal digests, account and data share it."""
    task = params.data.model_dump(mode="json", include=_TASK, exclude_defaults=True)
    return digest({"edition": params.data.edition, "form": FORM, "task": task, **upstream(params, kind)}, 64)


def compute_identity(
    run: Run, account: str, noise: Mapping[str, Any], kind: Kind, *index: int, task: Task | None = None
) -> str:
    """Compute the release ID of a release of the run.

    Args:
        run: The run.
        account: Identifier of the account.
        noise: Description of the noise.
        kind: Kind of the release.
        *index: Number of the release if there are several of this kind, such as the round of an average.
        task: The task; required for kinds in `OF_TASK`.
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
    """Return digests to seal with a new release: the given ones, that of the partition, and a salt.

    Args:
        run: The run.
        **digests: Keyed digests of private inputs and plain ones of public inputs.
    """
    partition = str(read_json(run.folders.partition / "manifest.json")["hash"])
    return {**digests, **partition_inputs(partition)}


def describe_release(run: Run, account: str, release: StoredRelease) -> dict[str, Any]:
    """Return the fields of every statement: the release, its account, its partition and the code version."""
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
        "approval": approval_of(run, release),
    }


def record_data_change(run: Run, kind: Kind, release: StoredRelease, inputs: Inputs) -> None:
    """Make a note in the private zone if a stored release was made from other data.

    Args:
        run: The run.
        kind: Kind of the release.
        release: The release.
        inputs: The result of `input_digests` for the current data.
    """
    changed = ", ".join(changed_inputs(release, inputs))
    _record_change(
        run,
        kind,
        f"The data changed since the {kind} were released ({changed}), but the edition did not: the stored release was "
        "returned free of charge."
        if changed
        else None,
    )


def record_file_change(run: Run, how: str | None) -> None:
    """Write a note in the private zone about how a run's files changed; None removes the note."""
    _record_change(
        run,
        "files",
        None
        if how is None
        else f"The data changed since this run read them: {how}. This run's releases describe the earlier data.",
    )


def _record_change(run: Run, subject: str, what: str | None) -> None:
    path = run.folders.private / f"{_CHANGED}{subject}.txt"
    path.unlink(missing_ok=True)
    if what is not None:
        write_text(path, f"{what} To release the current data at its own cost:\n{command_for_new_edition(run)}\n")


def data_changes(run: Run) -> list[str]:
    """Return the notes of `record_data_change` and `record_file_change`. Private."""
    return [path.read_text(encoding="utf-8").strip() for path in sorted(run.folders.private.glob(f"{_CHANGED}*.txt"))]


def command_for_new_edition(run: Run) -> str:
    """Return the command that makes a run like this one about other data: the next edition."""
    edition = f"data.edition={_next(run.params.data.edition)}"
    return other_run_command(run.root, run.name, run.name, [edition])


def _next(edition: str) -> str:
    return str(int(edition) + 1) if edition.isdecimal() else f"{edition}-2"


def check_queries(run: Run, release: StoredRelease, inputs: Inputs) -> None:
    """Check that the query images are those of a stored release.

    Raises:
        ArtefactError: If the digest of the query images in `inputs` differs from that of the release.
    """
    if release.inputs.get("queries", inputs["queries"]) != inputs["queries"]:
        raise ArtefactError(
            f"The stored release {release.release_id[:16]} was made with other query images than {run.folders.images}: "
            "another version of Terrine or its libraries drew them. Restore the old images, or make a new release at "
            f"its own cost: --set data.edition={_next(run.params.data.edition)}."
        )
