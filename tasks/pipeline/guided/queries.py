"""Guided queries: made in rounds for the release, and read with the other queries by whoever learns from it.

An adviser that makes queries is handed released answers only; beside them it reads the query images and the backbone,
which are public. Votes on what it makes are another file's matter (`tasks/pipeline/guided/votes.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.values import digest
from tasks.pipeline.advise import student_head
from tasks.pipeline.features import query_features
from tasks.pipeline.pretrain import read_backbone
from tasks.pipeline.synthesize import read_queries
from tasks.runtime.run import Run
from tasks.runtime.store import Folders, read_array, read_json, write_array
from terrine.aggregation.rounds import NEVER, Advice, Rounds
from terrine.classifiers import predict
from terrine.device import resolve_device
from terrine.errors import ArtefactError
from terrine.files import file_digest
from terrine.models.backbone import features_in_batches
from terrine.queries import Queries
from terrine.students.guided import Guided, guide, joined, none_yet

FILE = "guided.npy"
"""uint8 [guided, C, size, size], beside the answers; their numbers follow those of the other queries."""


class Guide:
    """An adviser: the first round asks the queries in their own order, later ones images that the student moved.

    pool: how many queries there were from the start. made: the guided ones so far, numbered after these in the order
    they were made in.
    """

    def __init__(self, run: Run, teachers: int, classes: int) -> None:
        self._run, self._teachers, self._classes = run, teachers, classes
        self._images = read_queries(run.folders)
        self.pool = len(self._images.images)
        self._backbone = read_backbone(run.folders)
        self._features = np.asarray(query_features(run, run.params.teachers.statistics))
        self.made = none_yet(self._images)

    def __call__(self, released: Rounds) -> Advice:
        unasked = np.setdiff1d(np.flatnonzero(released.round[: self.pool] == NEVER), self.made.starts)
        head = student_head(self._run, self._features, released, self._teachers, self._classes)
        if head is None:
            return Advice(unasked)
        params, device = self._run.params, resolve_device(self._run.params.device)
        new = guide(
            self._backbone,
            head,
            self._images,
            unasked,
            released.affordable,
            statistics=params.teachers.statistics,
            most=params.queries.batch,
            device=device,
        )
        first = self.pool + len(self.made.images)
        own = features_in_batches(self._backbone, new.images, new.batches, params.teachers.statistics, device)
        self.made = joined(self.made, new)
        self._features = np.concatenate([self._features, own])
        order = np.concatenate([first + np.arange(len(new.images)), np.setdiff1d(unasked, new.starts)])
        return Advice(order, predict(head, self._features), made=len(new.images))


def write_guided(run: Run, folder: Path, guided: Guided) -> dict[str, Any]:
    """Write guided queries into the folder of the answers, and return what the manifest there says about them."""
    pool = read_queries(run.folders)
    write_array(folder / FILE, guided.images)
    batches = [
        {"kind": kind, "first": len(pool.images) + int(batch[0]), "count": len(batch)}
        for kind, batch in zip(guided.sources(pool), guided.batches, strict=True)
    ]
    return {"file": FILE, "sha256": file_digest(folder / FILE), "batches": batches}


def guided_digest(folders: Folders) -> str | None:
    """Return the digest of the release's guided queries with their batches, None where there are none."""
    guided = read_json(folders.answers / "manifest.json").get("guided")
    return None if guided is None else digest(guided, 64)


def read_all_queries(folders: Folders) -> Queries:
    """Read all queries that a release answers: those there were from the start, then the guided ones.

    Raises ArtefactError if the file of guided queries is missing or is not the one that was released.
    """
    queries = read_queries(folders)
    guided = read_json(folders.answers / "manifest.json").get("guided")
    if guided is None:
        return queries
    path = folders.answers / guided["file"]
    if not path.is_file() or file_digest(path) != guided["sha256"]:
        raise ArtefactError(f"{path} is missing or was changed. Run the stage 'aggregate' again: it costs nothing.")
    images = np.concatenate([queries.images, read_array(path)]) if guided["batches"] else queries.images
    batches = [np.arange(batch["first"], batch["first"] + batch["count"]) for batch in guided["batches"]]
    kinds = [batch["kind"] for batch in guided["batches"]]
    return Queries(images, [*queries.batches, *batches], [*queries.sources, *kinds])
