"""Named runs: `terrine run clinic-a --preset your-own-images --set data.path=...`.

After a run's first release only settings that do not affect the release may change, such as the student's. Any other
change would be a second release under the same name.
"""

from __future__ import annotations

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
    derive,
    explain_missing_run,
    other_run_command,
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
# Written by `terrine run RUN`: runs of this site. Their files may name data and data owners.
.gitignore
"""


def name_run(root: Path, name: str, preset: str | None, assignments: list[str], *, save: bool = True) -> str:
    """Create a named run from a preset or another run, or update its settings, and return its name.

    Args:
        root: The project.
        name: The name.
        preset: The preset or run to start from; replaces earlier assignments. Default: the run's current settings.
        assignments: `--set` assignments.
        save: Whether to write the settings to a file. If they are not written, only this process can resolve the run.

    Returns:
        The run's name; for assignments to a preset or to a derived run, the name of the new derived run.

    Raises:
        SettingError: If the name is not allowed or the settings would change an existing release.
    """
    if not NAME.fullmatch(name) or name in FOLDERS:
        raise SettingError(
            f"--run {name}: a name has at most 60 lower-case letters, digits and hyphens, does not start with a "
            f"hyphen, and is not one of {', '.join(FOLDERS)}. It is public: it is stored with the student."
        )
    exists = parameter_file(root, name).is_file()
    if preset is None and exists and (DERIVED_NAME.match(name) or read_preset(root, name).made_from is None):
        return derive(root, name, assignments, save=save)
    if DERIVED_NAME.match(name):
        raise SettingError(f"--run {name}: it ends in eight digits like a derived run. Choose another name.")
    if not exists:
        return _begin(root, name, preset, assignments, save)
    run = read_preset(root, name)
    if run.made_from is None:
        raise SettingError(f"{name} is a preset. Choose another name for the run.")
    start = read_preset(root, preset or name)
    if (origin := _origin(start)) != run.made_from:
        raise SettingError(
            f"Run {name} exists and was made from {run.made_from}, not from {origin}. Choose another name, or "
            f"continue it: terrine run {name}."
        )
    overrides, params = with_assignments(root, start, assignments)
    if overrides != run.overrides:
        _check_release(root, run, start, overrides, params)
        save_overrides(root, name, run.made_from, overrides, save=save)
    return name


def states(root: Path) -> list[tuple[str, str]]:
    """Return the name and state of every started run of the project."""

    def state(folders: Folders) -> str:
        if folders.report.is_file() and folders.finished:
            return "complete"
        if folders.imported:
            return "imported"
        return "has released, not complete" if folders.statement.is_file() else "begun"

    return [(name, state(Folders(root, name))) for name in runs(root)]


def _begin(root: Path, name: str, preset: str | None, assignments: list[str], save: bool) -> str:
    if preset is None:
        begin = typed(["terrine", "run", name, "--preset", "your-own-images"])
        raise SettingError(f"{explain_missing_run(root, name)} To create it, name a preset:\n{begin}")
    if Folders(root, name).imported:
        raise SettingError(f"{name} is a model that another library trained. Choose another name for the run.")
    start = read_preset(root, preset)
    overrides, _ = with_assignments(root, start, assignments)
    if save:
        ignored = root / PRESETS / ".gitignore"
        with locked(lock_path(root, "named")):
            text = ignored.read_text(encoding="utf-8") if ignored.is_file() else IGNORED
            if f"\n{name}.yaml\n" not in text:
                write_text(ignored, f"{text}{name}.yaml\n")
    save_overrides(root, name, _origin(start), overrides, save=save)
    return name


def _origin(preset: Preset) -> str:
    return preset.made_from or preset.name


def _check_release(root: Path, run: Preset, start: Preset, overrides: dict[str, Any], params: Params) -> None:
    """Raise SettingError if a run has released and the new settings would make another release."""

    def identity(params: Params) -> object:
        return params.ledger.account, release_digest(params, "answers"), release_digest(params, "annotations")

    if not Folders(root, run.name).release.is_dir() or identity(resolve(root, run.name)) == identity(params):
        return
    left_out = flat(run.overrides, whole="sources").keys() - flat(overrides, whole="sources").keys()
    changed = changes(root, run.name, overrides) + [f"no {key}" for key in sorted(left_out)]
    command = other_run_command(root, run.name, start.name, changes(root, start.name, overrides))
    raise SettingError(
        f"Run {run.name} has released. With {', '.join(changed)} it would be another release at a cost of its own. To "
        f"continue with the existing one: terrine run {run.name}. Or start another run:\n{command}"
    )
