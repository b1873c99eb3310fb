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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.config.presets import select_run, select_transcription
from terrine.errors import ArtefactError

STAGES = (
    "parameters",
    "dataset",
    "partition",
    "synthesize",
    "pretrain",
    "average",
    "teach",
    "vote",
    "aggregate",
    "student",
    "evaluate",
    "distance",
    "report",
)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file: its folder in the project, its stages in order, and how a run is selected in it."""

    folder: str
    stages: tuple[str, ...]
    select: Callable[[Path, str], None]

    def target(self, stage: str, run: str) -> str:
        """Return what DVC calls a stage of a run."""
        name = f"{stage}@{run}"
        return f"{self.folder}/dvc.yaml:{name}" if self.folder else name


MAIN = Pipeline("", STAGES, select_run)
TRANSCRIPTION = Pipeline(
    "transcribe",
    ("parameters", "dataset", "partition", "labels", "start", "teach", "transcribe", "evaluate", "report"),
    select_transcription,
)
"""A pipeline of its own, so that `dvc repro` makes no transcription and a transcription none of the other stages."""


@contextlib.contextmanager
def _workspace(root: Path, run: str, pipeline: Pipeline = MAIN) -> Iterator[Any]:
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
        pipeline.select(root, run)
        # DVC resolves outputs against the working directory, so it must be the project's.
        with contextlib.chdir(root), Repo(str(root)) as repository:
            yield repository
    except DvcException as error:
        raise ArtefactError(f"DVC could not do its part: {error}") from error
    finally:
        lock.close()


def changed_stages(root: Path, run: str, pipeline: Pipeline = MAIN) -> list[str]:
    """Return the stages of a run that DVC would run again, in pipeline order."""
    with _workspace(root, run, pipeline) as repository:
        status = repository.status(targets=[pipeline.target(stage, run) for stage in pipeline.stages])
    names = {name.rsplit(":", 1)[-1].rsplit("@", 1)[0] for name in status}
    return [stage for stage in pipeline.stages if stage in names]


def is_changed(root: Path, run: str, stage: str, pipeline: Pipeline = MAIN) -> bool:
    """Tell whether DVC would run this stage again."""
    with _workspace(root, run, pipeline) as repository:
        return bool(repository.status(targets=[pipeline.target(stage, run)]))


def commit(root: Path, run: str, stage: str, pipeline: Pipeline = MAIN) -> None:
    """Record in dvc.lock and the cache what a stage read and made."""
    with _workspace(root, run, pipeline) as repository:
        repository.commit(target=pipeline.target(stage, run), force=True)


def stages_apart_from_private(root: Path, pipeline: Pipeline = MAIN) -> set[str]:
    """Return the stages that, as the pipeline file declares them, neither read nor write a private artefact."""
    text = (root / pipeline.folder / "dvc.yaml").read_text(encoding="utf-8")
    stages = {name: stage["do"] for name, stage in yaml.safe_load(text)["stages"].items()}
    return {name for name, stage in stages.items() if not any(map(_is_private, _artefacts(stage)))}


def _artefacts(stage: dict[str, Any]) -> list[str]:
    """Return the paths that a stage of a pipeline file depends on or makes."""
    entries = [*stage.get("deps", []), *stage.get("outs", [])]
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def _is_private(path: str) -> bool:
    return path.startswith("data/private/")


def lock_digest(root: Path, run: str, pipeline: Pipeline = MAIN) -> str:
    """Return the digest of this run's entries in dvc.lock: what data and code paths its figures came from.

    The report's own entry is left out, for the digest is part of the report. Private: the entries hold digests of
    private artefacts, so that equal digests would say that these are equal.
    """
    path = root / pipeline.folder / "dvc.lock"
    if not path.is_file():
        return "none"
    stages = yaml.safe_load(path.read_text(encoding="utf-8")).get("stages", {})
    entries = {name: entry for name, entry in stages.items() if name.endswith(f"@{run}")}
    entries.pop(f"report@{run}", None)
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
