"""Task of a run: classes, findings, grades or bins. It is part of the ID of each release that depends on labels.

Settings, class folders, the file itself or a benchmark declare the class names. Without a declaration, classes are
those of the first release of the account and edition. Only for that first release are they the labels that occur,
which its statement mentions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.runtime.accounts import ledger_account, ledger_before
from tasks.runtime.run import Run
from terrine.data.labels import UnknownLabelError
from terrine.data.source import Source
from terrine.errors import ArtefactError, InputError
from terrine.privacy.ledger.ledger import StoredRelease
from terrine.privacy.ledger.task import Task, TaskKind


def task_from(data: Source, class_names: Sequence[str], *, declared: bool) -> Task:
    """Return the task of a source with these class names, which are declared or are the labels that occur."""
    scale = data.scale
    kind: TaskKind = "classes"
    if data.several:
        kind = "findings"
    elif scale is not None:
        kind = "bins" if scale.edges else "grades"
    return Task(
        data.edition,
        kind,
        tuple(class_names),
        () if scale is None else scale.edges,
        getattr(data, "target", None),
        found=kind == "classes" and not declared,
    )


def load_task(run: Run) -> Task:
    """Return the task of a run from its dataset's manifest."""
    manifest = run.folders.dataset_manifest()
    return task_from(run.params.data, manifest["class_names"], declared=manifest["declared"])


def recorded_task(run: Run) -> Task | None:
    """Return the task of the account's first release in this edition, or None."""
    data = run.params.data
    ledger = None if data.public_benchmark else ledger_before(run)
    if ledger is None:
        return None
    return ledger.task(ledger_account(run), data.edition, getattr(data, "target", None))


@contextmanager
def open_source(run: Run) -> Iterator[Source]:
    """Yield the source of a run's records. If the run declares no classes, those of its account and edition apply.

    Raises:
        InputError: If labels are not among these classes; this includes labels read within the block.
    """
    source = run.params.data
    first = recorded_task(run) if source.finds_classes(run.root) else None
    if first is None:
        yield source
        return
    held = f"Account {run.params.ledger.account}, edition {source.edition}, holds releases for the {first}."
    other = "another task, set data.edition=<name> (charged separately) or declare data.classes=[...]."
    if first.kind != "classes":
        raise InputError(f"{held} These data declare no {first.kind}. Declare them; or, if this is {other}")
    try:
        yield source.model_copy(update={"classes": first.names})
    except UnknownLabelError as error:
        raise InputError(f"{error.place}. {held} Correct the label; or, if this is {other}") from error


def check_task(release: StoredRelease, class_names: Sequence[str]) -> None:
    """Check that a release was made for these class names.

    Raises:
        ArtefactError: If the release was made for other class names.
    """
    if release.task is None or list(release.task.names) != list(class_names):
        raise ArtefactError(
            f"The release {release.release_id[:16]} is for {release.task or 'no classes'}, not for "
            f"{', '.join(class_names)}. Nothing was published. Run all stages again: terrine run."
        )
