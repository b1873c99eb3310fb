"""DVC from inside: is a stage up to date, and commit what it made.

The Prefect flow asks these two questions stage by stage, so that both doors, `dvc repro` and the flow, leave the same
dvc.lock behind. The run that params.yaml names is made in dvc.yaml; any other in selected/dvc.yaml, which is written
for the run that is selected, and whose dvc.lock keeps the entries of all runs that were.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tasks.config.presets import SELECTED, named_run
from tasks.runtime.code import write_code
from tasks.runtime.graph import Pipeline
from tasks.runtime.parameters import write_parameters
from tasks.runtime.run import Run
from tasks.runtime.store import write_text
from terrine.errors import ArtefactError, SettingError

HEAD = """\
# Written by `terrine run`: the pipeline of the run that was selected last, instead of the one that params.yaml names.
vars:
  - run: {run}
    instead_of: {named}"""


def select(root: Path, run: str, pipeline: Pipeline) -> Path:
    """Make this run the one that commands mean and DVC makes; return the folder of its pipeline file.

    No file of the project is changed: a run that params.yaml does not name has selected/dvc.yaml.
    """
    chosen = root / SELECTED / "dvc.yaml"
    if pipeline.is_default and run == named_run(root):
        chosen.unlink(missing_ok=True)
        here, there = root, chosen.parent
    else:
        here, there = chosen.parent, root
        text = pipeline.dvc_yaml(HEAD.format(run=run, named=named_run(root)), wdir="..")
        if not chosen.is_file() or chosen.read_text(encoding="utf-8") != text:
            write_text(chosen, text)
    _bring_entries(run, there, here)
    return here


def _bring_entries(run: str, source: Path, target: Path) -> None:
    """Move a run's entries from one dvc.lock to another: params.yaml names it now, or no longer."""
    lock = source / "dvc.lock"
    if not lock.is_file() or f"@{run}:" not in lock.read_text(encoding="utf-8"):
        return
    theirs, ours = _lock(source), _lock(target)
    moved = _entries(theirs, run)
    ours["stages"] = moved | ours["stages"]
    theirs["stages"] = {name: entry for name, entry in theirs["stages"].items() if name not in moved}
    for folder, content in ((target, ours), (source, theirs)):
        write_text(folder / "dvc.lock", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _lock(folder: Path) -> dict[str, Any]:
    path = folder / "dvc.lock"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {"schema": "2.0", "stages": {}}


def _entries(lock: dict[str, Any], run: str) -> dict[str, Any]:
    return {name: entry for name, entry in lock["stages"].items() if name.endswith(f"@{run}")}


@contextlib.contextmanager
def _workspace(root: Path, run: str, pipeline: Pipeline) -> Iterator[tuple[Any, str]]:
    """Select a run and open the DVC repository, one process of a project at a time.

    Yields the repository, and what DVC's name of a stage of the run is, but for the stage's own name.
    """
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from zc.lockfile import LockError, LockFile

    lock_path = root / ".dvc" / "tmp" / "terrine.lock"
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(600):
        try:
            lock = LockFile(str(lock_path))
            break
        except LockError:
            if attempt == 599:
                raise ArtefactError(
                    f"Another process has held {lock_path} for a minute. Wait for it to end, or stop it."
                ) from None
            time.sleep(0.1)
    try:
        folder = select(root, run, pipeline)
        # DVC resolves outputs against the working directory, so it must be the project's.
        with contextlib.chdir(root), Repo(str(root)) as repository:
            yield repository, f"{(folder / 'dvc.yaml').relative_to(root)}:{{}}@{run}"
    except DvcException as error:
        raise ArtefactError(f"DVC could not do its part: {error}") from error
    finally:
        lock.close()


def refresh(root: Path, name: str, pipeline: Pipeline) -> None:
    """Write a run's parameters and the digests of its code as they are by now, if it was begun, for DVC to compare."""
    with contextlib.suppress(SettingError):  # of a run that can no longer be made, what it had stays
        if Run(root, name, None).folders.parameters.is_file():
            write_code(write_parameters(root, name), pipeline)


def changed_stages(root: Path, run: str, pipeline: Pipeline) -> list[str]:
    """Return the stages of a run that DVC would run again, in their order."""
    refresh(root, run, pipeline)
    with _workspace(root, run, pipeline) as (repository, target):
        status = repository.status(targets=[target.format(stage) for stage in pipeline.names])
    names = {name.rsplit(":", 1)[-1].rsplit("@", 1)[0] for name in status}
    return [stage for stage in pipeline.names if stage in names]


def is_changed(root: Path, run: str, stage: str, pipeline: Pipeline) -> bool:
    """Tell whether DVC would run this stage again."""
    with _workspace(root, run, pipeline) as (repository, target):
        return bool(repository.status(targets=[target.format(stage)]))


def commit(root: Path, run: str, stage: str, pipeline: Pipeline) -> None:
    """Record in dvc.lock and the cache what a stage read and made."""
    with _workspace(root, run, pipeline) as (repository, target):
        repository.commit(target=target.format(stage), force=True)


def lock_digest(root: Path, run: str) -> str:
    """Return the digest of this run's entries in dvc.lock: what data and code its figures came from.

    The report's own entry is left out, for the digest is part of the report. Private: the entries hold digests of
    private artefacts, so that equal digests would say that these are equal.
    """
    entries = _entries(_lock(root), run) | _entries(_lock(root / SELECTED), run)
    entries.pop(f"report@{run}", None)
    if not entries:
        return "none"
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
