"""Membership inference against the student: shadow runs, attacked by `terrine.privacy.auditing.membership`.

A shadow run (`tasks.auditing.shadow_runs`) repeats the run, stage by stage, on a random half of the units (records or
groups). A fair coin decides independently for each unit, and units keep the teachers that they have in the run. Each
shadow run yields one score per unit. All results are functions of private records and stay in the private zone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.records import read_dataset
from tasks.auditing.shadow_runs import NOTICE, Progress, members, shadow_run, units_of
from tasks.config.values import digest
from tasks.pipeline.evaluate import probabilities
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, write_array, write_json
from terrine.data.dataset import Dataset
from terrine.determinism.randomness import numpy_generator
from terrine.errors import ArtefactError, SettingError
from terrine.files import file_digest
from terrine.privacy.auditing.membership import attack, logit_scores
from terrine.transcription.settings import Transcription

FEWEST = 8
"""Minimum number of shadow runs: with fewer, records are often in, or out of, fewer than three of them."""


def audit_student(
    run: Run, make: Callable[[Run], None], shadows: int = 16, confidence: float = 0.95, progress: Progress | None = None
) -> dict[str, Any]:
    """Attack the student of a complete run; write the results, and return them as JSON values.

    `make` runs the stages of a shadow run from the partition to the student; its records, images and backbone exist.
    Finished shadow runs are kept: an interrupted audit resumes where it stopped, and a longer one reuses them.

    Raises SettingError for fewer than `FEWEST` shadow runs, and ArtefactError for a run that is not complete.
    """
    if shadows < FEWEST:
        raise SettingError(f"An attack needs at least {FEWEST} shadow runs, not {shadows}.")
    run.params.aggregation.refuse_findings("terrine audit --membership")
    if not run.folders.statement.is_file():
        raise ArtefactError(f"The run {run.name} has released nothing yet: make it first (terrine run).")
    _check_attackable(run.params.transcription)
    dataset = read_dataset(run.folders)
    units = units_of(dataset, run.params)
    rows, coins = [], []
    for number in range(shadows):
        if progress is not None:
            progress(number / shadows, f"shadow run {number + 1} of {shadows}")
        inside = coins_of(run, number, int(units.max()) + 1)
        rows.append(_shadow_scores(run, make, dataset, units, number, inside))
        coins.append(inside)
    statement = read_json(run.folders.statement)
    charged = statement["epsilon_guaranteed"] or statement["epsilon"]
    found = attack(np.stack(rows), np.stack(coins), delta=statement["delta"], confidence=confidence)
    result = {
        "notice": NOTICE,
        "shadows": shadows,
        "units": int(units.max()) + 1,
        "unit": run.params.privacy.unit,
        "auc": found.auc._asdict(),
        "members_found": {f"{fpr:g}": rate._asdict() for fpr, rate in found.members.items()},
        "others_found": {f"{fpr:g}": rate._asdict() for fpr, rate in found.others.items()},
        "epsilon_at_least": found.epsilon,
        "confidence": found.confidence,
        "delta": found.delta,
        "epsilon_charged": charged,
        "caught": charged is not None and found.epsilon > charged,
    }
    write_json(run.folders.private / "membership.json", result)
    return result


def _check_attackable(transcription: Transcription | None) -> None:
    """Raise SettingError if leaving out records would not be an attack on what the run protects."""
    if transcription is None:
        return
    if transcription.protect == "labels":
        raise SettingError(
            "transcription.protect=labels protects labels, not membership: whether a record was there is not hidden, "
            "and finding out refutes nothing."
        )
    if transcription.teacher.file is not None:
        raise SettingError(
            "transcription.teacher.file was trained elsewhere: no shadow run could train it without a record, so the "
            "attack would find nothing whatever there is."
        )


def public_inputs(run: Run) -> list[Path]:
    """Return the public files that, together with the records, determine the outputs of a run."""
    if run.params.transcription is not None:
        return sorted(run.folders.start.glob("*.safetensors"))
    return [run.folders.images / "manifest.json", run.folders.backbone / "backbone.safetensors"]


def coins_of(run: Run, shadow: int, units: int) -> np.ndarray:
    """Return which units are in a shadow run's data, bool [units], by fair and independent coins."""
    return numpy_generator(run.params.seed, "shadow run", shadow).random(units) < 0.5


def _shadow_scores(
    run: Run, make: Callable[[Run], None], dataset: Dataset, units: np.ndarray, number: int, inside: np.ndarray
) -> np.ndarray:
    """Return the student's score of every unit in one shadow run, float64 [units], or the stored result."""
    folder = run.folders.work / f"shadows-{_identity(run)}"
    path = folder / f"{number:04d}.npy"
    if path.is_file():
        return read_array(path)
    root = folder / f"{number:04d}"
    shutil.rmtree(root, ignore_errors=True)
    shadow = shadow_run(run, members(dataset, inside[units]), root)
    make(shadow)
    scores = logit_scores(probabilities(shadow, dataset.train_images), dataset.train_labels)
    own = np.bincount(units, scores) / np.bincount(units)
    write_array(path, own)
    shutil.rmtree(root)
    return own


def _identity(run: Run) -> str:
    """Return a digest of everything except coins that the shadow runs of this run depend on."""
    return digest(
        {
            "dataset": run.folders.dataset_manifest()["fingerprint"],
            "public": [file_digest(path) for path in public_inputs(run)],
            "params": run.params.model_dump(mode="json", exclude={"ledger", "tracking", "runner"}),
        }
    )
