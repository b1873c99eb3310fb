"""The artefact of the stage `average`, and the cost of its averages.

A run without averages also has the artefact. This module does not import torch, which takes seconds to load.
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
    """Return the number of averages: one less than the number of training rounds, or 0."""
    return run.params.teachers.rounds - 1 if run.params.teachers.averages else 0


@step("nothing to average")
def nothing_averaged(run: Run) -> None:
    """Write the artefact of a run without averages."""
    with atomic_folder(run.folders.average) as folder:
        write_json(folder / "manifest.json", manifest())


def write_averages(run: Run, average: dict[str, np.ndarray], own: np.ndarray, **about: Any) -> None:
    """Write the start of the last round.

    Args:
        run: The run.
        average: `value` and `control` [P], and a `centre` if there is one.
        own: Control variates [teachers, P].
        **about: Further fields of the manifest.
    """
    with atomic_folder(run.folders.average) as folder:
        write_tensors(folder / AVERAGE, average)
        write_array(folder / OWN, own)
        files = {name: file_digest(folder / name) for name in (AVERAGE, OWN)}
        write_json(folder / "manifest.json", manifest(**about, files=files))


def manifest(**content: Any) -> dict[str, Any]:
    """Return the artefact's manifest with these fields; other fields have their values for a run without averages."""
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
    """Return the artefact's manifest."""
    return read_json(folders.average / "manifest.json")


def averages_cost(run: Run) -> Event:
    """Return the cost of the run's averages as the ledger charged it."""
    if not run.params.teachers.averages:
        return compose()
    return from_json(read_average_manifest(run.folders)["event"])


def describe_averages(run: Run) -> dict[str, Any]:
    """Return the statement's field about averages: public parameters."""
    if not run.params.teachers.averages:
        return {}
    manifest = read_average_manifest(run.folders)
    names = ("mode", "averages", "vectors", "clip", "noise_multiplier", "centred")
    return {"averaging": {name: manifest[name] for name in names if manifest[name] is not None}}


def coordinates_released(run: Run) -> int:
    """Return the number of noisy values in the averages."""
    return int(read_average_manifest(run.folders)["coordinates"]) if run.params.teachers.averages else 0
