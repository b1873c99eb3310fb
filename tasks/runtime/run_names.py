"""Runs that people name: `terrine run --preset your-own-images --name clinic-a --set data.path=...`.

A name stands for what is released under it. Until then its settings may change; from then on only those may that decide
nothing about the release, such as the student's, for anything else would be another release under the same name.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from tasks.config.params import Params
from tasks.config.presets import (
    DERIVED_NAME,
    FOLDERS,
    NAME,
    PRESETS,
    Preset,
    changes,
    explain_missing_run,
    parameter_file,
    read_preset,
    resolve,
    runs,
    save_overrides,
    with_assignments,
)
from tasks.config.values import flat
from tasks.runtime.locks import lock_path, locked
from tasks.runtime.release_identity import release_digest
from tasks.runtime.store import Folders, write_text
from terrine.errors import SettingError, typed

IGNORED = """\
# Written by `terrine run --name`: runs of this site, whose files may say where its data are and whose.
.gitignore
"""


def name_run(root: Path, name: str, preset: str | None, assignments: list[str]) -> str:
    """Begin a run of this name from a preset or another run, or go on with it, with `--set` assignments laid over what
    it has; return the name. Where a preset is named, the run is what preset and assignments say by now, and no more.

    Raises SettingError for a name that no run can have, and for settings that its release was not made with.
    """
    _check_form(name)
    if not parameter_file(root, name).is_file():
        return _begin(root, name, preset, assignments)
    run = read_preset(root, name)
    if run.made_from is None:
        raise SettingError(f"{name} is a preset. Choose another --name for a run of your own.")
    start = read_preset(root, preset or name)
    if (origin := _origin(start)) != run.made_from:
        raise SettingError(
            f"There is a run {name} already, made from {run.made_from} and not from {origin}. Choose another --name, "
            f"or go on with that one: terrine run --name {name}."
        )
    overrides, params = with_assignments(root, start, assignments)
    if overrides != run.overrides:
        _check_release(root, run, start, overrides, params)
        save_overrides(root, name, run.made_from, overrides)
    return name


def states(root: Path) -> list[tuple[str, str]]:
    """Return every run that was named, derived or begun, with how far it came."""
    return [(name, _state(Folders(root, name))) for name in runs(root)]


def _state(folders: Folders) -> str:
    if folders.report.is_file() and folders.finished:
        return "complete"
    if folders.statement.is_file():
        return "has released, not complete"
    return "begun" if folders.parameters.is_file() else "not begun"


def _check_form(name: str) -> None:
    if not NAME.fullmatch(name) or name in FOLDERS:
        raise SettingError(
            f"--name {name}: a run's name has small letters, digits and hyphens, at most 60, does not begin with a "
            f"hyphen, and is none of {', '.join(FOLDERS)}. It is public: everybody who gets the student reads it."
        )
    if DERIVED_NAME.match(name):
        raise SettingError(f"--name {name}: it ends like the name of a derived run, in eight digits. Choose another.")


def _begin(root: Path, name: str, preset: str | None, assignments: list[str]) -> str:
    if preset is None:
        begin = typed(["terrine", "run", "--preset", "your-own-images", "--name", name])
        raise SettingError(f"{explain_missing_run(root, name)} To begin it, name a preset:\n{begin}")
    start = read_preset(root, preset)
    overrides, _ = with_assignments(root, start, assignments)
    ignored = root / PRESETS / ".gitignore"
    with locked(lock_path(root, "named")):
        text = ignored.read_text(encoding="utf-8") if ignored.is_file() else IGNORED
        if f"\n{name}.yaml\n" not in text:
            write_text(ignored, f"{text}{name}.yaml\n")
    save_overrides(root, name, _origin(start), overrides)
    return name


def _origin(preset: Preset) -> str:
    return preset.made_from or preset.name


def _check_release(root: Path, run: Preset, start: Preset, overrides: dict[str, Any], params: Params) -> None:
    """Refuse settings, those of `start` with assignments, that would make another release, where the run has
    released."""
    if not Folders(root, run.name).release.is_dir():
        return
    if _decides(resolve(root, run.name)) == _decides(params):
        return
    left_out = flat(run.overrides, whole="sources").keys() - flat(overrides, whole="sources").keys()
    changed = changes(root, run.name, overrides) + [f"no {key}" for key in sorted(left_out)]
    other = next(name for number in count(2) if not parameter_file(root, name := f"{run.name}-{number}").is_file())
    words = ["terrine", "run", "--preset", start.name, "--name", other]
    settings = changes(root, start.name, overrides)
    command = typed([*words, *(word for change in settings for word in ("--set", change))])
    raise SettingError(
        f"Run {run.name} has released, and its name stands for that release. With {', '.join(changed)} it would be "
        f"another one, with a price of its own. To go on with what it has: terrine run --name {run.name}. Or give the "
        f"other a name of its own:\n{command}"
    )


def _decides(params: Params) -> object:
    """Return what decides a run's releases: their identities, but for the key."""
    return params.ledger.account, release_digest(params, "answers"), release_digest(params, "annotations")
