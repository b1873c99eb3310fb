"""Neighbours of a run's own data: exchange a unit or leave it out, let teachers learn and vote again, see who moved.

The guarantee rests on one sentence: what is behind one name decides about one teacher. Here it is tried on the data at
hand, with the stages that made the run: the deal, the features, the training, the votes. Nothing is released, no
ledger is opened, and what is made on the way is gone when the audit ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.pipeline.dataset import read_dataset
from tasks.pipeline.teach import read_states, voters
from tasks.pipeline.vote import read_votes
from tasks.runtime.run import Run
from tasks.runtime.store import link
from tasks.tools.membership import units_of
from tasks.tools.shadow import shadow_run
from terrine.data.dataset import Dataset
from terrine.determinism.randomness import numpy_generator
from terrine.errors import SettingError

Progress = Callable[[float, str], None]
Trained = tuple[list[dict[str, bytes]], np.ndarray]
"""What each teacher learned, and the votes, [queries, teachers]."""


def audit_neighbours(
    run: Run, make: Callable[[Run], None], count: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Try `count` units, one after the other: with the contents of another one behind its name, and left out.

    run: With its dataset, its public images and its backbone on disk.
    make: Takes a run from its dataset to its votes; averages that were released are there already.
    progress: Called with (share done, what is next).

    Returns how many teachers learned or voted otherwise after each step, and how many votes changed. `caught` says that
    a step moved more than one. Raises SettingError for a count that the data cannot serve, for a run that
    claims nothing, and where the same training twice gives different teachers, so that nothing can be told.
    """
    dataset = read_dataset(run.folders)
    units = units_of(dataset, run.params)
    chosen = _chosen(run, dataset, units, count)
    root = run.folders.work / "neighbours"

    def trained(of: Dataset) -> Trained:
        shutil.rmtree(root, ignore_errors=True)
        scratch = shadow_run(run, of, root)
        if run.params.teachers.releases_averages:
            # An average is a release: both worlds learn from the one that was made, as whoever saw it knows.
            link(run.folders.average, scratch.folders.average)
        make(scratch)
        states = read_states(scratch.folders, range(voters(scratch)))
        learned = [{name: array.tobytes() for name, array in state.items()} for state in states]
        return learned, read_votes(scratch.folders)

    def tell(done: int) -> None:
        if progress is not None:
            progress(done / (2 * count + 1), f"training {done + 1} of {2 * count + 1}")

    try:
        tell(0)
        as_they_are = trained(neighbour(dataset, units))
        steps = []
        for one, other in chosen:
            for step, contents in (("exchanged", other), ("left out", None)):
                tell(1 + len(steps))
                teachers, votes = _moved(as_they_are, trained(neighbour(dataset, units, one, contents)))
                steps.append({"unit": one, "step": step, "teachers": teachers, "votes": votes})
        most = max(entry["teachers"] for entry in steps)
        if most > 1 and (again := _moved(as_they_are, trained(neighbour(dataset, units)))[0]):
            raise SettingError(
                f"Trained twice on the same data on device={run.params.device}, {again} teachers differ: nothing can "
                "be told about a neighbour. Audit a run with device=cpu, where results are the same to the bit."
            )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {
        "run": run.name,
        "unit": run.params.privacy.unit,
        "units": int(units.max()) + 1,
        "tried": count,
        "voters": voters(run),
        "votes": int(as_they_are[1].size),
        "steps": steps,
        "most": most,
        "caught": most > 1,
    }


def _chosen(run: Run, dataset: Dataset, units: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return pairs of units drawn at random, the second with another label wherever there is one."""
    if run.params.transcription is not None:
        raise SettingError(f"The run {run.name} is a transcription: exchanges are for teachers that vote.")
    if run.params.aggregation.reveals == "sums":
        raise SettingError(f"In the run {run.name} no teacher learns or votes: exchanges are for mechanisms that do.")
    if run.params.teachers.unprotected:
        raise SettingError("teachers.mode=paper averages without noise: it claims nothing that an audit could refute.")
    total = int(units.max()) + 1
    if not 1 <= count <= total or total < 2:
        raise SettingError(f"--neighbours {count}: the run {run.name} has {total} units. Ask for 1 to {total} of them.")
    first_label = dataset.train_labels[np.unique(units, return_index=True)[1]]
    generator = numpy_generator(run.params.seed, "exchanged units")
    pairs = []
    for one in generator.permutation(total)[:count].tolist():
        others = np.flatnonzero(first_label != first_label[one])
        others = others if len(others) else np.delete(np.arange(total), one)
        pairs.append((one, int(generator.choice(others))))
    return pairs


def neighbour(dataset: Dataset, units: np.ndarray, one: int | None = None, other: int | None = None) -> Dataset:
    """Return the dataset as it is, without unit `one`, or with the contents of unit `other` behind the name of `one`.

    units: int64 [records], the number of each record's unit.

    Records come in the order of their labels, as class folders are read: the neighbouring relation knows names alone,
    and a deal by place must not pass for one by name.
    """
    stays, places = np.flatnonzero(units != one), np.flatnonzero(units == one)
    incoming = np.flatnonzero(units == other)
    contents = np.concatenate([stays, incoming])
    # A group may grow: its new records go by the names of those that it had.
    owner = np.concatenate([stays, np.resize(places, len(incoming))])
    order = np.lexsort((owner, dataset.train_labels[contents]))
    contents, owner = contents[order], owner[order]
    named = {
        name: values[owner]
        for name in ("train_names", "train_groups", "train_parties")
        if (values := getattr(dataset, name)) is not None
    }
    return replace(
        dataset, train_images=dataset.train_images[contents], train_labels=dataset.train_labels[contents], **named
    )


def _moved(before: Trained, after: Trained) -> tuple[int, int]:
    """Return how many teachers learned or voted otherwise, and how many votes differ."""
    differs = before[1] != after[1]
    learned = [one != other for one, other in zip(before[0], after[0], strict=True)]
    return int((differs.any(axis=0) | learned).sum()), int(differs.sum())
