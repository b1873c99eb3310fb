"""vote: every teacher labels every query; all teachers see the same fixed batches.

Votes are cast by blocks of teachers; a finished block is on disk, and an interrupted stage does not cast it again.
Teachers that were not trained vote by a rule that reads no record (`terrine.teachers.untrained`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from tasks.config.values import digest
from tasks.pipeline.features import query_features
from tasks.pipeline.sums import sums_over_records
from tasks.pipeline.synthesize import read_queries
from tasks.pipeline.teach import read_states, read_teachers_manifest, teacher_kind
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import Folders, atomic_folder, file_digest, read_array, read_json, write_array, write_json
from terrine.device import resolve_device
from terrine.queries import Queries
from terrine.teachers.fitted import cast_votes
from terrine.teachers.kind import TeacherKind


@step("vote")
def collect_votes(run: Run) -> None:
    """Write votes, unsigned integers [queries, teachers], in query order; of sums over records, about no query."""
    if sums_over_records(run):
        _write_votes(run, np.empty((0, run.params.partition.teachers), np.uint8))
        return
    teachers = read_teachers_manifest(run.folders)["teachers"]
    kind = teacher_kind(run)
    queries = teachers_queries(run, run.params.teachers.inputs)
    work = work_folder(run)
    device = resolve_device(run.params.device)
    blocks = [range(first, min(first + kind.block, teachers)) for first in range(0, teachers, kind.block)]
    columns = []
    for block in blocks:
        path = work / f"votes-{block.start:06d}.npy"
        if not path.is_file():
            votes = block_votes(run, kind, block, queries, np.arange(len(queries.inputs)), device)
            if len(blocks) == 1:
                columns.append(votes)
                break
            write_array(path, votes)
        columns.append(read_array(path))
    _write_votes(run, np.concatenate(columns, axis=1))
    shutil.rmtree(work, ignore_errors=True)


def block_votes(
    run: Run, kind: TeacherKind, block: range, queries: Queries, numbers: np.ndarray, device: torch.device
) -> np.ndarray:
    """Return the votes of a block of teachers, trained or not: unsigned integers [queries, teachers].

    numbers: of the queries among all that the run asks, int64 [queries].
    """
    return cast_votes(
        kind,
        block,
        set(read_teachers_manifest(run.folders).get("untrained", [])),
        lambda teachers: read_states(run.folders, teachers),
        queries,
        numbers,
        classes=len(read_json(run.folders.dataset / "manifest.json")["class_names"]),
        seed=run.params.seed,
        device=device,
    )


def teachers_queries(run: Run, inputs: str) -> Queries:
    """Return what teachers of a kind are asked: `features` or `images` of the queries, in their fixed batches."""
    queries = read_queries(run.folders)
    if inputs == "images":
        return Queries(queries.images, queries.batches)
    return Queries(query_features(run, run.params.teachers.statistics), queries.batches)


def work_folder(run: Run) -> Path:
    """Return where the votes of these very teachers on these queries are kept until all are cast."""
    folders = run.folders
    identity = digest(
        {
            "teachers": read_teachers_manifest(folders)["digest"],
            "backbone": file_digest(folders.backbone / "backbone.safetensors"),
            "queries": file_digest(folders.images / "manifest.json"),
            "statistics": run.params.teachers.statistics,
        }
    )
    return folders.work / f"vote-{identity}"


def _write_votes(run: Run, votes: np.ndarray) -> None:
    class_names = read_json(run.folders.dataset / "manifest.json")["class_names"]
    with atomic_folder(run.folders.votes) as folder:
        write_array(folder / "votes.npy", votes)
        write_json(
            folder / "manifest.json",
            {
                "queries": votes.shape[0],
                "teachers": votes.shape[1],
                "classes": len(class_names),
                "class_names": class_names,
                "batches": file_digest(run.folders.images / "manifest.json"),
            },
        )


def read_votes(folders: Folders) -> np.ndarray:
    """Return the votes, unsigned integers [queries, teachers]."""
    return read_array(folders.votes / "votes.npy")
