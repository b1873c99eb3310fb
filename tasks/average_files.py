"""What the stage `average` leaves behind, and what its averages cost: for the stages that come after it.

A run whose teachers learn from nobody else has the artefact too; it says that nothing was averaged.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from tasks.params import Params
from tasks.run import Run
from tasks.store import Folders, file_digest, read_array, read_json, read_tensors
from terrine.errors import ArtefactError
from terrine.privacy.events import Event, NonPrivateEvent, compose, from_json
from terrine.teachers.averaged import Average
from terrine.teachers.averaged_kind import Start
from terrine.teachers.averaged_private import PrivateAveraging, calibrated
from terrine.teachers.registry import TeacherSettings

AVERAGE, OWN = "average.safetensors", "own.npy"
_NOT_SETTINGS_OF_A_KIND = {
    "per_task",
    "feature_batch",
    "estimator",
    "prompt",
    "mode",
    "clip",
    "budget_share",
    "control_release",
}


def teacher_settings(params: Params) -> TeacherSettings:
    """Return what the kinds of teachers look at."""
    settings = params.teachers
    own = settings.model_dump(exclude=_NOT_SETTINGS_OF_A_KIND)
    return TeacherSettings(
        **own,
        estimator=settings.estimator.name,
        options=settings.estimator.options,
        prompt=settings.prompt.model_dump(),
    )


def private_averaging(params: Params) -> PrivateAveraging | None:
    """Return how the averages are made private, with the noise that the share of the budget buys; None without any."""
    teachers = params.teachers
    if not teachers.releases_averages:
        return None
    assert teachers.clip is not None
    assert teachers.budget_share is not None
    return calibrated(
        teacher_settings(params).averaged(),
        clip=teachers.clip,
        control=teachers.control_release,
        centred=teachers.centre == "shared",
        epsilon=params.aggregation.epsilon,
        delta=params.aggregation.delta,
        share=teachers.budget_share,
    )


def planned_event(params: Params) -> Event:
    """Return what the averages of a run will cost, from parameters alone; nothing where nothing is averaged."""
    if params.teachers.unprotected:
        return NonPrivateEvent()
    averaging = private_averaging(params)
    if averaging is None:
        return compose()
    return averaging.whole_event(teacher_settings(params).averaged())


def read_average_manifest(folders: Folders) -> dict[str, Any]:
    """Return what the artefact's manifest says."""
    manifest: dict[str, Any] = read_json(folders.average / "manifest.json")
    return manifest


def read_start(folders: Folders) -> Start:
    """Return what the last round starts from. Raises ArtefactError for files that are missing or were changed."""
    manifest = read_average_manifest(folders)
    for name in (AVERAGE, OWN):
        path = folders.average / name
        if not path.is_file() or file_digest(path) != manifest["files"].get(name):
            raise ArtefactError(f"{path} is missing or was changed. Run the stage 'average' again.")
    arrays = read_tensors(folders.average / AVERAGE)
    own = read_array(folders.average / OWN, memory_map=True)
    return Start(Average(arrays["value"], arrays["control"]), own, arrays.get("centre"))


def spent_on_averages(run: Run) -> Event:
    """Return what the run's averages cost, as the ledger charged it; nothing where nothing is averaged."""
    if not run.params.teachers.averages:
        return compose()
    return from_json(read_average_manifest(run.folders)["event"])


def about_averages(run: Run) -> dict[str, Any]:
    """Return how a statement describes the averages: public parameters, and nothing where nothing is averaged."""
    if not run.params.teachers.averages:
        return {}
    manifest = read_average_manifest(run.folders)
    names = ("mode", "averages", "vectors", "clip", "noise_multiplier", "control", "centred")
    return {"averaging": {name: manifest[name] for name in names if manifest[name] is not None}}


def coordinates_released(run: Run) -> int:
    """Return how many numbers with noise the averages were."""
    return int(read_average_manifest(run.folders)["coordinates"]) if run.params.teachers.averages else 0


def describe(averaging: PrivateAveraging | None) -> dict[str, Any]:
    """Return the parameters of the noise as JSON values, None each where there is none."""
    if averaging is None:
        return dict.fromkeys(("clip", "noise_multiplier", "control", "centred"))
    described = asdict(averaging)
    assert all(math.isfinite(described[name]) for name in ("clip", "noise_multiplier"))
    return described
