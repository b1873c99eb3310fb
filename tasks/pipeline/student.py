"""student: train the student on public queries and released answers only. No private path is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_backbone, read_queries
from tasks.artefacts.released import load_sums_student, read_answers, sums_over_records
from tasks.config.values import digest
from tasks.pipeline.reference_images import write_reference
from tasks.runtime.progress import progress_reporter
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, link, read_array, read_json, write_array, write_json, write_tensors
from terrine.deployment.manifest import MANIFEST, seal
from terrine.deployment.model import MOMENTS, OF_VOLUMES
from terrine.deployment.rows import ENCODING
from terrine.device import resolve_device
from terrine.files import file_digest
from terrine.geometry import in_json
from terrine.models.backbone_files import save_backbone
from terrine.queries import Queries
from terrine.students.student import Cache, StudentData, TrainedStudent


@step("student")
def train_student(run: Run) -> None:
    """Train the student on released answers, and write it with everything needed to use it.

    An interrupted training resumes from checkpoints in the run's release folder.
    """
    settings = run.params.student
    trained, released = _trained(run)
    with atomic_folder(run.folders.student) as folder:
        write_tensors(folder / "head.safetensors", trained.head.to_arrays())
        if trained.backbone is None:
            link(run.folders.backbone / "backbone.safetensors", folder / "backbone.safetensors")
        else:
            save_backbone(trained.backbone, folder / "backbone.safetensors")
        reading: dict[str, Any] = {"reference": write_reference(run, folder)} if run.params.data.of_images else {}
        if trained.backbone is None and (run.folders.answers / MOMENTS).is_file():
            link(run.folders.answers / MOMENTS, folder / MOMENTS)
        if not run.params.data.of_images:
            write_json(folder / ENCODING, _encoding(run))
        description = {
            "kind": settings.kind,
            "release": released["release_id"],
            "statistics": settings.statistics,
            "class_names": released["class_names"],
            "size": in_json(run.params.data.size),
            "channels": run.params.data.channels,
            **reading,
            **describe_reading(run.params.data),
            **({} if run.params.data.scale is None else {"scale": run.params.data.scale.describe()}),
            "training": trained.record,
        }
        write_json(folder / MANIFEST, seal(folder, description))
    if not sums_over_records(run):
        shutil.rmtree(training_folder(run), ignore_errors=True)


def _trained(run: Run) -> tuple[TrainedStudent, dict[str, Any]]:
    """Return the trained student and the manifest of its release."""
    if sums_over_records(run):
        return load_sums_student(run)
    rows, answers, released = read_answers(run)
    settings = run.params.student
    pool = student_pool(run)
    cache = feature_cache(run, len(pool.images))
    material = StudentData(pool, rows, answers, read_backbone(run.folders), settings.statistics, cache)
    trained = settings.train(
        material,
        seed=run.params.seed,
        device=resolve_device(run.params.device),
        work=training_folder(run),
        progress=progress_reporter(run.name, "student"),
    )
    return trained, released


def describe_reading(data: Any) -> dict[str, Any]:
    """Return the student's field about converting files to images, if it is not the default."""
    reading: dict[str, Any] = {"fit": data.fit} if getattr(data, "fit", "stretch") != "stretch" else {}
    if (limits := getattr(data, "limits", None)) is not None:
        reading["window"] = list(limits)
    if data.name in ("dicom", "nifti"):
        reading["files"] = data.name
    if data.name == "nifti":
        reading["volumes"] = data.model_dump(mode="json", include=set(OF_VOLUMES))
    return {"reading": reading} if reading else {}


def _encoding(run: Run) -> dict[str, Any]:
    """Return the encoding of the table's columns and the columns that are not features."""
    data = run.params.data
    columns = read_json(run.folders.images / "manifest.json")["columns"]
    return {"target": data.target, "id": data.id, "roles": list(data.roles), "columns": columns}


def student_pool(run: Run) -> Queries:
    """Return the images that the student may use: the queries in their fixed batches.

    A student that learns from images without answers also gets the images of a public pool that were not queries, and
    at most `student.pool` pretraining images, in single-source batches of the same size as the queries' batches.
    """
    queries = read_queries(run.folders)
    if not run.params.student.uses_unlabelled:
        return queries
    images, batches, sources = [queries.images], list(queries.batches), list(queries.sources)
    size = max(len(batch) for batch in batches)
    first, left = len(queries.images), run.params.student.pool
    shards = read_json(run.folders.images / "manifest.json")["shards"]
    unasked, drawn = shards.get("unlabelled", []), shards.get("pretraining", [])
    for shard in [*unasked, *drawn]:
        own = read_array(run.folders.images / shard["file"], memory_map=True)
        if shard in drawn:
            own = own[:left]
            left = None if left is None else left - len(own)
        if len(own) < 2:
            continue
        images.append(own)
        batches.extend(np.array_split(np.arange(first, first + len(own)), -(-len(own) // size)))
        sources.extend([shard["kind"]] * (len(batches) - len(sources)))
        first += len(own)
    return Queries(np.concatenate(images) if len(images) > 1 else images[0], batches, sources)


def feature_cache(run: Run, images: int) -> Cache:
    """Return a cache of the frozen backbone's features for a pool of that many images: public, so runs share it.

    If the pool contains only the queries, their features are the cached ones that teachers of features voted on.
    """
    queries = sum(batch["count"] for batch in read_json(run.folders.images / "manifest.json")["batches"])
    everything = {
        "statistics": run.params.student.statistics,
        "backbone": file_digest(run.folders.backbone / "backbone.safetensors"),
        "images": file_digest(run.folders.images / "manifest.json"),
    }

    def keep(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if name == "plain" and images == queries:
            return query_features(run, run.params.student.statistics)
        identity = digest({**everything, "name": name, "pool": images})
        path = run.folders.shared("views", identity).with_suffix(".npy")
        if not path.is_file():
            write_array(path, compute())
        return read_array(path)

    return keep


def training_folder(run: Run) -> Path:
    """Return the folder of this training's state, which is kept until the training is finished."""
    folders = run.folders
    identity = digest(
        {
            "answers": file_digest(folders.answers / "answers.parquet"),
            "backbone": file_digest(folders.backbone / "backbone.safetensors"),
            "images": file_digest(folders.images / "manifest.json"),
            "student": run.params.student.model_dump(mode="json", exclude={"batch"}),
            "seed": run.params.seed,
            "device": resolve_device(run.params.device).type,
        }
    )
    return folders.release / f"student-work-{identity}"
