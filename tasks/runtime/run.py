"""One run: its name, its parameters, its folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tasks.config.params import Params, read_parameters
from tasks.config.presets import explain_missing_run, project_root, selected_run
from tasks.runtime.store import Folders
from terrine.errors import ArtefactError, SettingError

SPLIT_SEED = 0
"""Not the run's seed: who is in the training data must not change from run to run, or budgets would not add up."""


@dataclass(frozen=True)
class Run:
    """What every stage is handed. Small, so that it travels to any worker; artefacts travel by path."""

    root: Path
    name: str
    params: Params

    @property
    def folders(self) -> Folders:
        return Folders(self.root, self.name)

    @property
    def site(self) -> Path:
        """Where the site remembers which ledger data were released through: in the project, unless TERRINE_SITE names
        a folder for all projects of a machine."""
        return Path(os.environ.get("TERRINE_SITE") or self.root / "data" / "private" / "site")

    def path(self, path: Path) -> Path:
        """Return a path from params.yaml, relative ones taken from the project's folder."""
        return path if path.is_absolute() else self.root / path

    def database(self, url: str) -> str:
        """Return a database URL, a relative SQLite path taken from the project's folder."""
        prefix = "sqlite:///"
        if url.startswith(prefix) and not url.startswith(prefix + "/"):
            return f"{prefix}{self.root / url.removeprefix(prefix)}"
        return url


def open_run(root: Path, name: str) -> Run:
    """Return a run with the parameters its `parameters` stage wrote.

    Raises ArtefactError, with the runs that there are, if that stage has not run.
    """
    path = Folders(root, name).parameters
    if not path.is_file():
        raise ArtefactError(explain_missing_run(root, name))
    return Run(root, name, read_parameters(path))


def chosen_run(name: str | None = None) -> Run:
    """Return a run of the project by its name, by default the one selected last; errors as of `open_run`."""
    root = project_root()
    return open_run(root, name or selected_run(root))


def check_not_transcription(name: str, params: Params) -> None:
    """Raise SettingError for a run that the caller does not make: its release would be another one."""
    if params.transcription is not None:
        raise SettingError(f"The run {name} is a transcription: make it with terrine run --preset {name}.")
