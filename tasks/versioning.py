"""DVC from inside: is a stage up to date, and commit what it made.

The Prefect pipeline asks these two questions stage by stage, so that both doors, `dvc repro` and the flow, leave the
same dvc.lock behind.
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

from tasks.presets import select_run
from terrine.errors import ArtefactError

STAGES = (
    "parameters",
    "dataset",
    "partition",
    "synthesize",
    "pretrain",
    "teach",
    "vote",
    "aggregate",
    "student",
    "evaluate",
    "distance",
    "report",
)


@contextlib.contextmanager
def _workspace(root: Path, run: str) -> Iterator[Any]:
    """Open the DVC repository with this run selected; one process of a project at a time."""
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
        select_run(root, run)
        # DVC resolves outputs against the working directory, so it must be the project's.
        with contextlib.chdir(root), Repo(str(root)) as repository:
            yield repository
    except DvcException as error:
        raise ArtefactError(f"DVC could not do its part: {error}") from error
    finally:
        lock.close()


def changed_stages(root: Path, run: str) -> list[str]:
    """Return the stages of a run that DVC would run again, in pipeline order."""
    with _workspace(root, run) as repository:
        status = repository.status(targets=[f"{stage}@{run}" for stage in STAGES])
    names = {name.rsplit(":", 1)[-1].rsplit("@", 1)[0] for name in status}
    return [stage for stage in STAGES if stage in names]


def is_changed(root: Path, run: str, stage: str) -> bool:
    """Tell whether DVC would run this stage again."""
    with _workspace(root, run) as repository:
        return bool(repository.status(targets=[f"{stage}@{run}"]))


def commit(root: Path, run: str, stage: str) -> None:
    """Record in dvc.lock and the cache what a stage read and made."""
    with _workspace(root, run) as repository:
        repository.commit(target=f"{stage}@{run}", force=True)


def lock_digest(root: Path, run: str) -> str:
    """Return the digest of this run's entries in dvc.lock: what data and code paths its figures came from.

    The report's own entry is left out, for the digest is part of the report.
    """
    path = root / "dvc.lock"
    if not path.is_file():
        return "none"
    stages = yaml.safe_load(path.read_text(encoding="utf-8")).get("stages", {})
    entries = {name: entry for name, entry in stages.items() if name.endswith(f"@{run}")}
    entries.pop(f"report@{run}", None)
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
