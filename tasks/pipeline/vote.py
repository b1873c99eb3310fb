"""vote: all teachers label all queries in the same fixed batches.

Blocks of teachers vote in turn, and an interrupted stage resumes with the next block. Untrained teachers vote by a rule
that reads no record (`terrine.teachers.ensemble`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from tasks.artefacts.features import query_features
from tasks.artefacts.images import read_queries
from tasks.artefacts.records import in_groups
from tasks.artefacts.released import sums_over_records
from tasks.artefacts.teachers import make_findings, read_states, read_teachers_manifest, teacher_kind, votes_made_from
from tasks.runtime.run import Run
from tasks.runtime.step import step
from tasks.runtime.store import atomic_folder, read_array, write_array, write_json
from terrine.aggregation.votes import answer_names
from terrine.device import resolve_device
from terrine.files import file_digest
from terrine.queries import Queries
from terrine.teachers.base import TeacherKind
from terrine.teachers.ensemble import cast_votes


def blocks(run: Run) -> list[range]:
    """Return the blocks of teachers that vote together; none for sums over records."""
    if sums_over_records(run):
        return []
    return in_groups(read_teachers_manifest(run.folders)["teachers"], teacher_kind(run).block)


@step("vote", retries=2)
def cast_block(run: Run, block: range) -> None:
    """Write the votes of a block of teachers, unless they are on disk."""
    path = voting_folder(run) / f"votes-{block.start:06d}.npy"
    if not path.is_file():
        queries, device = teachers_queries(run, run.params.teachers.inputs), resolve_device(run.params.device)
        write_array(path, block_votes(run, teacher_kind(run), block, queries, device))


@step("votes")
def collect_votes(run: Run) -> None:
    """Write the votes, unsigned integers [queries, teachers] (no queries for sums). Missing blocks vote here."""
    cast = []
    for block in blocks(run):
        cast_block.fn(run, block)
        cast.append(read_array(voting_folder(run) / f"votes-{block.start:06d}.npy"))
    _write_votes(run, np.concatenate(cast or [np.empty((0, run.params.partition.teachers), np.uint8)], axis=1))
    if cast:
        shutil.rmtree(voting_folder(run), ignore_errors=True)


def block_votes(run: Run, kind: TeacherKind, block: range, queries: Queries, device: torch.device) -> np.ndarray:
    """Return the votes of a block of teachers, unsigned integers [queries, teachers]."""
    return cast_votes(
        kind,
        block,
        set(read_teachers_manifest(run.folders).get("untrained", [])),
        lambda teachers: read_states(run.folders, teachers),
        queries,
        classes=len(run.folders.dataset_manifest()["class_names"]),
        seed=run.params.seed,
        device=device,
        findings=make_findings(run),
    )


def teachers_queries(run: Run, inputs: str) -> Queries:
    """Return the `features` or `images` of the queries in their fixed batches."""
    queries = read_queries(run.folders)
    if inputs == "images":
        return Queries(queries.images, queries.batches)
    return Queries(query_features(run, run.params.teachers.statistics), queries.batches)


def voting_folder(run: Run) -> Path:
    """Return the folder of intermediate results for exactly these inputs."""
    return run.folders.work / f"vote-{votes_made_from(run)}"


def _write_votes(run: Run, votes: np.ndarray) -> None:
    class_names = run.folders.dataset_manifest()["class_names"]
    with atomic_folder(run.folders.votes) as folder:
        write_array(folder / "votes.npy", votes)
        write_json(
            folder / "manifest.json",
            {
                "queries": votes.shape[0],
                "teachers": votes.shape[1],
                "classes": len(answer_names(class_names, bool(run.params.data.several))),
                "class_names": class_names,
                "batches": file_digest(run.folders.images / "manifest.json"),
                "made_from": None if sums_over_records(run) else votes_made_from(run),
            },
        )
