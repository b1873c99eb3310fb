"""A run: its name, parameters and folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.config.params import Params, read_parameters, validate
from tasks.config.presets import (
    explain_missing_run,
    parameter_file,
    project_root,
    project_settings,
    resolve,
    selected_run,
)
from tasks.config.values import read_yaml
from tasks.runtime.store import Folders
from terrine.errors import ArtefactError, SettingError

SPLIT_SEED = 0
"""Seed of data splits. Not the run's seed: costs of runs with different training data would not compose."""


@dataclass(frozen=True)
class Run:
    """The argument of every stage: small, so that it can be sent to any worker; artefacts are passed by path."""

    root: Path
    name: str
    params: Params

    @property
    def folders(self) -> Folders:
        return Folders(self.root, self.name)

    @property
    def site(self) -> Path:
        """Folder that records through which ledger data were released. TERRINE_SITE sets one for several projects."""
        return Path(os.environ.get("TERRINE_SITE") or self.root / "data" / "private" / "site")

    def path(self, path: Path) -> Path:
        """Return a path from params.yaml; relative paths start at the project."""
        return path if path.is_absolute() else self.root / path

    def database(self, url: str) -> str:
        """Return a database URL; relative SQLite paths start at the project."""
        prefix = "sqlite:///"
        if url.startswith(prefix) and not url.startswith(prefix + "/"):
            return f"{prefix}{self.root / url.removeprefix(prefix)}"
        return url


def open_run(root: Path, name: str) -> Run:
    """Return a run with the parameters that its stage `parameters` wrote.

    Raises:
        ArtefactError: If the stage `parameters` has not run; the message names the existing runs.
    """
    path = Folders(root, name).parameters
    if not path.is_file():
        raise ArtefactError(explain_missing_run(root, name))
    return Run(root, name, read_parameters(path))


def chosen_run(name: str | None = None) -> Run:
    """Return a run of the project by name; default: the run selected last. See `open_run` for errors."""
    root = project_root()
    return open_run(root, name or selected_run(root))


def unstarted_run(name: str | None = None) -> Run:
    """Return a run of the project by its name, whether or not it was started; default: the one selected last.

    An import has no preset, so its own parameters are used, with the project's current section `release`.
    """
    root = project_root()
    chosen = name or selected_run(root)
    own = Folders(root, chosen).parameters
    if own.is_file() and not parameter_file(root, chosen).is_file():
        return Run(root, chosen, validate(read_yaml(own) | {"release": project_settings(root).get("release", {})}))
    return Run(root, chosen, resolve(root, chosen))


def check_not_transcription(name: str, params: Params) -> None:
    """Raise SettingError for a transcription, whose stages differ."""
    if params.transcription is not None:
        raise SettingError(f"Run {name} is a transcription: make it with terrine run {name}.")
