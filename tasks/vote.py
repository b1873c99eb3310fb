"""vote: every teacher labels every query; all teachers see the same fixed batches."""

from __future__ import annotations

import numpy as np

from tasks.features import query_features
from tasks.run import Run
from tasks.step import step
from tasks.store import Folders, atomic_folder, file_digest, read_array, read_json, write_array, write_json
from tasks.teach import read_heads
from terrine.teachers.linear import vote


@step("vote")
def collect_votes(run: Run) -> None:
    """Write votes, unsigned integers [queries, teachers], in query order."""
    heads = read_heads(run.folders)
    votes = vote(heads, query_features(run, run.params.teachers.statistics))
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
