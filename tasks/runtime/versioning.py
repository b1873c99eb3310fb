"""DVC from inside: is a stage up to date, and commit what it made.

The Prefect flow asks these two questions stage by stage, so that both doors, `dvc repro` and the flow, leave the same
entries behind. The run that params.yaml names is made in dvc.yaml, and dvc.lock holds its entries. Every other run has
a dvc.lock of its own among its private files; selected/ is DVC's door to the one that was selected last: a dvc.yaml,
and a link to its dvc.lock.

DVC rewrites a dvc.lock in place, where a kill leaves half of it. So what is committed here is written by us, whole or
not at all, and a dvc.lock that DVC itself was killed over is begun anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.config.presets import SELECTED, named_run
from tasks.runtime import leftovers
from tasks.runtime.code import write_code
from tasks.runtime.graph import Pipeline, has_vault
from tasks.runtime.locks import FOLDER, locked, making, of_project
from tasks.runtime.parameters import write_parameters
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, write_text
from terrine.errors import ArtefactError, SettingError
from terrine.files import sync_file, sync_folder

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import PipelineStage

_cleared: set[tuple[Path, str]] = set()
"""Projects and runs in which this process has removed what DVC left in killed ones."""

HEAD = """\
# Written by `terrine run`: the pipeline of the run that was selected last, instead of the one that params.yaml names.
vars:
  - run: {run}
    instead_of: {named}"""


def select(root: Path, run: str, pipeline: Pipeline) -> None:
    """Make this run the one that later commands mean, and selected/ DVC's door to it.

    No file of the project is changed. The run that params.yaml names needs no such door.
    """
    door = root / SELECTED / "dvc.yaml"
    with locked(of_project(root, "selected")):
        if _in_dvc_yaml(root, run, pipeline):
            for path in (door, door.with_suffix(".lock")):
                path.unlink(missing_ok=True)
            return
        door.parent.mkdir(exist_ok=True)
        _point(door.with_suffix(".lock"), Path("..", _lock_of(root, run, pipeline).relative_to(root)))
        text = _pipeline_file(root, run, pipeline)
        if not door.is_file() or door.read_text(encoding="utf-8") != text:
            write_text(door, text)


def _point(link: Path, target: Path) -> None:
    if not link.is_symlink() or link.readlink() != target:
        temporary = link.with_name(f".{link.name}.{secrets.token_hex(6)}.tmp")
        temporary.symlink_to(target)
        temporary.replace(link)


def _in_dvc_yaml(root: Path, run: str, pipeline: Pipeline) -> bool:
    return pipeline.is_default and run == named_run(root)


def _pipeline_file(root: Path, run: str, pipeline: Pipeline) -> str:
    return pipeline.dvc_yaml(HEAD.format(run=run, named=named_run(root)), wdir="..", vault=has_vault(root))


def _lock_of(root: Path, run: str, pipeline: Pipeline) -> Path:
    """Return where a run's entries are kept."""
    return (root if _in_dvc_yaml(root, run, pipeline) else Folders(root, run).private) / "dvc.lock"


def _bring_entries(root: Path, run: str, target: Path) -> None:
    """Move a run's entries to where they are kept by now: params.yaml names it, or no longer."""
    (source,) = {root / "dvc.lock", Folders(root, run).private / "dvc.lock"} - {target}
    if not source.is_file() or f"@{run}:" not in source.read_text(encoding="utf-8"):
        return
    theirs, ours = _read_lock(source), _read_lock(target)
    moved = _entries(theirs, run)
    _write_lock(target, moved | ours)
    _write_lock(source, {name: entry for name, entry in theirs.items() if name not in moved})


def _read_lock(path: Path) -> dict[str, Any]:
    """Return the entries of a dvc.lock by their names; none of one that was cut short, which is begun anew."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.serialize import ParseError, load_yaml
    from voluptuous import Invalid

    if not path.is_file():
        return {}
    try:
        return COMPILED_LOCKFILE_SCHEMA(load_yaml(path)).get("stages", {})
    except (ParseError, Invalid):
        logging.getLogger(__name__).warning(
            "%s was cut short: DVC was stopped while it wrote it. What it said is found out again: stages run once "
            "more, and a release that is stored is returned.",
            path,
        )
        path.unlink()
        return {}


def _write_lock(path: Path, entries: dict[str, Any]) -> None:
    from dvc.utils.serialize import dumps_yaml

    write_text(path, dumps_yaml({"schema": "2.0", "stages": entries}))


def _entries(lock: dict[str, Any], run: str) -> dict[str, Any]:
    return {name: entry for name, entry in lock.items() if name.endswith(f"@{run}")}


@contextlib.contextmanager
def _stages(root: Path, run: str, pipeline: Pipeline, names: Sequence[str]) -> Iterator[list[PipelineStage]]:
    """Yield stages of a run as DVC knows them, one process of a project at a time: it is a matter of moments."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.dvcfile import ProjectFile
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo
    from dvc.utils.serialize import parse_yaml

    try:
        # DVC resolves outputs against the working directory, so it must be the project's.
        with (
            locked(of_project(root, "dvc")),
            contextlib.chdir(root),
            Repo(str(root)) as repository,
            lock_repo(repository),
        ):
            # DVC notes here, in place, what it reads and writes. Whoever was killed over it would be in the way of
            # everybody; ours are alone here.
            repository.tmp_dir = str(root / FOLDER)
            (root / FOLDER / "rwlock").unlink(missing_ok=True)
            if (root, run) not in _cleared:
                _cleared.add((root, run))
                leftovers.remove(leftovers.of_dvc(root, Folders(root, run)))
            lock = _lock_of(root, run, pipeline)
            _bring_entries(root, run, lock)
            if _in_dvc_yaml(root, run, pipeline):
                path, text = root / "dvc.yaml", (root / "dvc.yaml").read_text(encoding="utf-8")
            else:
                path, text = root / SELECTED / "dvc.yaml", _pipeline_file(root, run, pipeline)
            # Read by us: DVC takes seconds over it, and would read the run that is selected.
            file = ProjectFile(repository, str(path))
            file.contents = parse_yaml(text, path)
            file.lockfile_contents = {"stages": _read_lock(lock)}
            stages = file.stages
            yield [stages[f"{name}@{run}"] for name in names]
            _forget_links(repository)
    except (DvcException, OSError) as error:
        raise ArtefactError(f"DVC could not do its part: {error}") from error


def _forget_links(repository: Repo) -> None:
    """Have DVC forget which files it laid out: a checkout (`dvc checkout`, `pull`, `exp run`) removes those that the
    dvc.yaml of the day no longer names, and they are the artefacts of all other runs."""
    links = getattr(repository.state, "links", None)
    if links is not None:
        with links as known:
            known.clear()


def refresh(root: Path, name: str, pipeline: Pipeline) -> None:
    """Write a run's parameters and the digests of its code as they are by now, if it was begun, for DVC to compare."""
    with contextlib.suppress(SettingError):  # of a run that can no longer be made, what it had stays
        if Run(root, name, None).folders.parameters.is_file():
            write_code(write_parameters(root, name), pipeline)


def changed_stages(root: Path, run: str, pipeline: Pipeline) -> list[str]:
    """Return the stages of a run that DVC would run again, in their order, once no other process is making them."""
    with making(root, run):
        refresh(root, run, pipeline)
        with _stages(root, run, pipeline, pipeline.names) as stages:
            return [name for name, stage in zip(pipeline.names, stages, strict=True) if stage.status()]


def is_changed(root: Path, run: str, stage: str, pipeline: Pipeline) -> bool:
    """Tell whether DVC would run this stage again."""
    with _stages(root, run, pipeline, [stage]) as (known,):
        return bool(known.status())


def made_of_the_same(root: Path, run: str, stage: str, pipeline: Pipeline) -> list[str]:
    """Return the other runs whose entry of a stage names the settings, code and artefacts that this run's would."""
    with _stages(root, run, pipeline, [stage]) as (known,):
        from dvc.stage.serialize import to_single_stage_lockfile
        from dvc.utils.serialize import ParseError, parse_yaml  # to which 1e-05 is a number

        known.save_deps()
        entry = to_single_stage_lockfile(known)
    digests, found = [each["md5"] for each in entry.get("deps", ())], []
    for path in [root / "dvc.lock", *sorted((root / "data" / "private").glob("*/dvc.lock"))]:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if not all(digest in text for digest in digests):
            continue  # at once, for YAML takes its time
        with contextlib.suppress(ParseError):
            for name, other in parse_yaml(text, path).get("stages", {}).items():
                made, _, its = name.partition("@")
                if made == stage and its != run and _of(other, its) == _of(entry, run):
                    found.append(its)
    return found


def _of(entry: dict[str, Any], run: str) -> str:
    """What a stage was made of, in whichever run."""
    return json.dumps([entry.get("deps"), entry.get("params")], sort_keys=True).replace(f"/{run}/", "/*/")


def commit(root: Path, run: str, stage: str, pipeline: Pipeline) -> None:
    """Record in the run's dvc.lock and in the cache what a stage read and made."""
    with _stages(root, run, pipeline, [stage]) as (made,):
        from dvc.stage.serialize import to_lockfile

        made.save(run_cache=False)
        _drop_damaged(made)
        made.commit()
        _sync(made)
        lock = _lock_of(root, run, pipeline)
        _write_lock(lock, _read_lock(lock) | to_lockfile(made))


def _kept(made: PipelineStage) -> Iterator[tuple[Path, Path | None, int]]:
    """Yield what a stage made as DVC's cache has it: where there, where in the project (None for the list of a folder's
    files), and its size."""
    for out in made.outs:
        if not out.use_cache:
            continue
        if not out.hash_info.isdir:
            file = Path(out.fs_path)
            yield Path(out.cache.oid_to_path(out.hash_info.value)), file, file.stat().st_size
            continue
        yield Path(out.cache.oid_to_path(out.hash_info.value)), None, len(out.obj.as_bytes())
        for key, _, found in out.obj:
            file = Path(out.fs_path, *key)
            yield Path(out.cache.oid_to_path(found.value)), file, file.stat().st_size


def _drop_damaged(made: PipelineStage) -> None:
    """Remove from DVC's cache what a power cut emptied: DVC takes what is there for whole, and would put it into the
    place of what a stage has just made."""
    for kept, _, size in _kept(made):
        if kept.is_file() and kept.stat().st_size != size:
            kept.unlink()


def _sync(made: PipelineStage) -> None:
    """Have on the disk what a stage made before its entry says so: what DVC puts into its place is in memory alone."""
    for kept, file, _ in _kept(made):
        for path in {kept, file or kept}:
            if path.is_file():
                sync_file(path)
        sync_folder(kept.parent)


def lock_digest(root: Path, run: str) -> str:
    """Return the digest of this run's entries in dvc.lock, but the report's own: what data and code its figures came
    from.

    Private: the entries hold digests of private artefacts, so that equal digests would say that these are equal.
    """
    entries = _entries(_read_lock(root / "dvc.lock") | _read_lock(Folders(root, run).private / "dvc.lock"), run)
    entries.pop(f"report@{run}", None)
    if not entries:
        return "none"
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
