"""What the stage `average` leaves behind, and what its averages cost: for the stages that come after it.

A run whose teachers learn from nobody else has the artefact too; it says that nothing was averaged. Nothing here needs
torch, which takes seconds to load.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, read_json, write_array, write_json, write_tensors
from terrine.files import file_digest
from terrine.privacy.accounting.events import Event, compose, from_json

AVERAGE, OWN = "average.safetensors", "own.npy"


def rounds(run: Run) -> int:
    """Return how many averages the run makes: one fewer than rounds of training, none where none are wanted."""
    return run.params.teachers.rounds - 1 if run.params.teachers.averages else 0


@step("nothing to average")
def nothing_averaged(run: Run) -> None:
    """Write the artefact of a run whose teachers learn from nobody else."""
    with atomic_folder(run.folders.average) as folder:
        write_json(folder / "manifest.json", manifest())


def write_averages(run: Run, average: dict[str, np.ndarray], own: np.ndarray, **about: Any) -> None:
    """Write what the last round starts from: `value` and `control` [P], a `centre` where there is one, and the control
    variates [teachers, P]; about: what the manifest says besides."""
    with atomic_folder(run.folders.average) as folder:
        write_tensors(folder / AVERAGE, average)
        write_array(folder / OWN, own)
        files = {name: file_digest(folder / name) for name in (AVERAGE, OWN)}
        write_json(folder / "manifest.json", manifest(**about, files=files))


def manifest(**content: Any) -> dict[str, Any]:
    """Return the manifest of the artefact; what is not given is that of nothing."""
    nothing: dict[str, Any] = {
        "notice": "PRIVATE: control variates and figures of updates. Do not publish.",
        "averages": 0,
        **dict.fromkeys(("mode", "clip", "noise_multiplier", "centred")),
        "vectors": 0,
        "coordinates": 0,
        "noise": None,
        "event": None,
        "history": [],
        "files": {},
    }
    return nothing | content


def read_average_manifest(folders: Folders) -> dict[str, Any]:
    """Return what the artefact's manifest says."""
    return read_json(folders.average / "manifest.json")


def averages_cost(run: Run) -> Event:
    """Return what the run's averages cost, as the ledger charged it; nothing where nothing is averaged."""
    if not run.params.teachers.averages:
        return compose()
    return from_json(read_average_manifest(run.folders)["event"])


def describe_averages(run: Run) -> dict[str, Any]:
    """Return how a statement describes the averages: public parameters, and nothing where nothing is averaged."""
    if not run.params.teachers.averages:
        return {}
    manifest = read_average_manifest(run.folders)
    names = ("mode", "averages", "vectors", "clip", "noise_multiplier", "centred")
    return {"averaging": {name: manifest[name] for name in names if manifest[name] is not None}}


def coordinates_released(run: Run) -> int:
    """Return how many numbers with noise the averages were."""
    return int(read_average_manifest(run.folders)["coordinates"]) if run.params.teachers.averages else 0
