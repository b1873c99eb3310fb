"""Reuse of a stage's artefacts by other runs on the same data and account.

Stages that draw no release noise and read no data source keep their artefacts in data/private/shared under a digest of
all inputs: settings, code and the content of artefacts. Other runs link these artefacts.
"""

from __future__ import annotations

import shutil
from operator import attrgetter
from pathlib import Path

from tasks.config.values import digest
from tasks.runtime.code_digest import code_digest
from tasks.runtime.locks import lock_path, locked
from tasks.runtime.run import Run
from tasks.runtime.stage_graph import Stage
from tasks.runtime.store import atomic_folder, link, read_json, write_json
from terrine.errors import ArtefactError
from terrine.files import file_digest

WHOLE = "digests.json"
"""Name of a file that contains the digests of the artefacts in its folder."""


def reuse_outputs(run: Run, stage: Stage, kept: Path | None) -> bool:
    """Link a stage's artefacts into a run if they were made from the same inputs, and return whether they were.

    Args:
        run: The run.
        stage: The stage.
        kept: The stage's `kept_folder`.
    """
    if kept is None or not kept.is_dir():
        return False
    if read_json(kept / WHOLE) != [_digest_of(kept / name) for name in _names(stage)]:
        shutil.rmtree(kept, ignore_errors=True)  # damaged, or changed through a link in a run's folder
        return False
    for name in _names(stage):
        link(kept / name, run.folders.private / name)
    return True


def share_outputs(run: Run, stage: Stage, kept: Path | None) -> None:
    """Keep a stage's artefacts for runs with the same inputs.

    Args:
        run: The run.
        stage: The stage.
        kept: The stage's `kept_folder`, computed before it ran.
    """
    if kept is not None:
        with locked(lock_path(run.root, "shared")), atomic_folder(kept) as folder:
            for name in _names(stage):
                link(run.folders.private / name, folder / name)
            write_json(folder / WHOLE, [_digest_of(folder / name) for name in _names(stage)])


def _names(stage: Stage) -> list[str]:
    return [artefact.removeprefix("private/") for artefact in stage.makes.split()]


def kept_folder(run: Run, stage: Stage) -> Path | None:
    """Return the folder for a stage's artefacts from the run's current inputs, or None if the stage shares none.

    All inputs are read, so call it once before the stage runs.
    """
    if not stage.shared:
        return None
    params, needs = run.params, [artefact.partition("/") for artefact in stage.needs.split()]
    inputs = [
        *(str(each) for each in (stage.name, params.data, params.privacy.unit, params.ledger)),
        *(f"{key} {attrgetter(key)(params)!r}" for key in stage.settings.split()),
        code_digest(run, stage),
        *(_digest_of(getattr(run.folders, zone) / name) for zone, _, name in needs),
    ]
    return run.root / "data" / "private" / "shared" / f"{stage.name}-{digest(inputs)}"


def _digest_of(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise ArtefactError(f"{folder} is missing. Run the stage that makes it, or the whole pipeline.")
    return digest([f"{path.relative_to(folder)} {file_digest(path)}" for path in files], 64)
