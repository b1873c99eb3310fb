"""Audit with neighbouring datasets: replace a unit or leave it out, repeat the run's stages, and measure the change.

The guarantee rests on one property: the contents behind one name affect only one teacher or, if records are summed,
move the sums by no more than the charged sensitivity. This audit tests the property on the run's data, with the run's
stages: partition, features, training, votes, sums. Nothing is released, no ledger is opened, and intermediate files
are deleted at the end of the audit.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.artefacts.records import read_dataset
from tasks.artefacts.released import sums_over_records
from tasks.artefacts.teachers import read_states, read_votes, voter_count
from tasks.auditing.shadow_runs import Progress, shadow_run, units_of
from tasks.pipeline.sums import load_summed_records
from tasks.runtime.releases import inputs_cost
from tasks.runtime.run import Run
from tasks.runtime.store import link
from terrine.aggregation.gradient_rounds import ALONE, JOINT
from terrine.aggregation.records import STEP
from terrine.aggregation.sums import mu_left
from terrine.data.dataset import Dataset
from terrine.deployment.model import MOMENTS
from terrine.determinism.randomness import numpy_generator
from terrine.errors import SettingError
from terrine.privacy.accounting.gaussian import mu_squared

World = Any
"""Outcome of the run's stages on its data or on a neighbouring dataset."""
Trained = tuple[list[dict[str, bytes]], np.ndarray]
"""State of each trained teacher, and the votes [queries, teachers]."""


def audit_neighbours(
    run: Run, make: Callable[[Run], None], count: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Test `count` units one by one: replace each unit's contents by those of another unit, then leave it out.

    run: The run to audit, with dataset, public images and backbone on disk.
    make: Function that runs the stages from dataset to votes; released averages already exist.
    progress: Called with (share done, next step).

    Returns for each step how many teachers' states or votes changed, and how many votes changed; for sums, how far they
    moved as a share of the charged sensitivity. `caught` is true if a step changed more than one teacher, or moved the
    sums of one round or of all rounds by more than is charged. Raises SettingError if `count` is out of range, the run
    claims no guarantee, or training twice on the same data gives different teachers, so that no change can be
    attributed to a unit.
    """
    dataset = read_dataset(run.folders)
    units = units_of(dataset, run.params)
    chosen = _chosen(run, dataset, units, count)
    root = run.folders.work / "neighbours"
    trial = _Sums(run) if sums_over_records(run) else _Votes(run, make)

    def outcome(of: Dataset) -> World:
        shutil.rmtree(root, ignore_errors=True)
        return trial.outcome(shadow_run(run, of, root))

    def tell(done: int) -> None:
        if progress is not None:
            progress(done / (2 * count + 1), f"world {done + 1} of {2 * count + 1}")

    try:
        tell(0)
        as_they_are = outcome(neighbour(dataset, units))
        steps: list[dict[str, Any]] = []
        for one, other in chosen:
            for step, contents in (("exchanged", other), ("left out", None)):
                tell(1 + len(steps))
                moved = trial.moved(as_they_are, outcome(neighbour(dataset, units, one, contents)), contents is None)
                steps.append({"unit": one, "step": step, **moved})
        most = max(entry[trial.counted] for entry in steps)
        if most > 1:
            trial.check(as_they_are, outcome(neighbour(dataset, units)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {
        "run": run.name,
        "unit": run.params.privacy.unit,
        "units": int(units.max()) + 1,
        "tried": count,
        **trial.about(as_they_are),
        "steps": steps,
        "most": most,
        "caught": most > 1,
    }


class _Votes:
    """Vote mechanisms: one unit may change the state and votes of at most one teacher."""

    counted = "teachers"

    def __init__(self, run: Run, make: Callable[[Run], None]) -> None:
        self._run, self._make = run, make

    def outcome(self, scratch: Run) -> Trained:
        """Train the teachers and return their states and votes."""
        if self._run.params.teachers.releases_averages:
            # The average was released, so both datasets are trained with the same released average.
            link(self._run.folders.average, scratch.folders.average)
        self._make(scratch)
        states = read_states(scratch.folders, range(voter_count(scratch)))
        learned = [{name: array.tobytes() for name, array in state.items()} for state in states]
        return learned, read_votes(scratch.folders)

    def moved(self, before: Trained, after: Trained, left_out: bool) -> dict[str, int]:
        """Count the teachers whose state or votes differ, and the votes that differ."""
        differs = before[1] != after[1]
        learned = [one != other for one, other in zip(before[0], after[0], strict=True)]
        return {"teachers": int((differs.any(axis=0) | learned).sum()), "votes": int(differs.sum())}

    def check(self, before: Trained, again: Trained) -> None:
        """Raise SettingError if training twice on the same data gives different teachers."""
        if different := self.moved(before, again, False)["teachers"]:
            raise SettingError(
                f"Trained twice on the same data on device={self._run.params.device}, {different} teachers differ: "
                "nothing can be told about a neighbour. Audit a run with device=cpu, where results are the same to the "
                "bit."
            )

    def about(self, world: Trained) -> dict[str, int]:
        """Return the numbers of teachers and votes."""
        return {"voters": voter_count(self._run), "votes": int(world[1].size)}


class _Sums:
    """Sum mechanisms: one unit may move the sums by at most the charged μ, in standard deviations of the noise.

    Gradients are computed at the heads computed from noiseless sums, since the charge holds at any head.
    """

    counted = "share"

    def __init__(self, run: Run) -> None:
        settings: Any = run.params.aggregation
        spent = inputs_cost(run.params)
        self._run, self._schedule = run, settings.schedule(mu_left(settings.epsilon, settings.delta, spent))
        self._broadcasts: list[Any] = []

    def outcome(self, scratch: Run) -> list[np.ndarray]:
        """Return the exact sums of each round, in standard deviations of its noise."""
        released = self._run.folders.answers / MOMENTS
        if released.is_file():
            link(released, scratch.folders.answers / MOMENTS)
        records, schedule = load_summed_records(scratch), self._schedule
        summed, descent, first = schedule.summing(records), schedule.descent(records.length), not self._broadcasts
        rounds = []
        for number in range(schedule.passes):
            if first:
                self._broadcasts.append(descent.broadcast)
            sums = summed(self._broadcasts[number]) * STEP
            if first:
                descent.receive(sums)
            parts = schedule.noise(records.length, records.classes, number)
            rounds.append(sums / np.repeat([sigma for _, sigma in parts], [count for count, _ in parts]))
        return rounds

    def moved(self, before: list[np.ndarray], after: list[np.ndarray], left_out: bool) -> dict[str, Any]:
        """Return each round's shift as a share of its charge, and the largest share of any round or of all together."""
        schedule = self._schedule
        charged, square, gradient = schedule.event, JOINT, 2 * schedule.clip
        if left_out:
            charged, square, gradient = schedule.event_added, ALONE, schedule.clip
        prices = [math.sqrt(square) / schedule.sigma, *[gradient / (schedule.sigma_gradients or 1)] * schedule.rounds]
        moved = [float(np.linalg.norm(one - other)) for one, other in zip(before, after, strict=True)]
        rounds = [far / price for far, price in zip(moved, prices, strict=True)]
        return {"share": max(math.hypot(*moved) / math.sqrt(mu_squared(charged)), *rounds), "rounds": rounds}

    def check(self, before: list[np.ndarray], again: list[np.ndarray]) -> None:
        """Do nothing: features are computed image by image, so the same data always give the same sums."""

    def about(self, world: list[np.ndarray]) -> dict[str, int]:
        """Return the numbers of rounds and of released values."""
        return {"rounds": len(world), "numbers": sum(len(numbers) for numbers in world)}


def _chosen(run: Run, dataset: Dataset, units: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return random pairs of units; if possible, the second unit of a pair has a different label."""
    if run.params.transcription is not None:
        raise SettingError(f"The run {run.name} is a transcription: exchanges are for teachers that vote.")
    run.params.aggregation.refuse_findings("terrine audit --neighbours")
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
    """Return the dataset unchanged, without unit `one`, or with the contents of unit `other` under the name of `one`.

    units: int64 [records], the number of each record's unit.

    Records are sorted by label, i.e. in the order in which class folders are read, so that positions change. Neighbours
    are defined by names only, so the audit must detect a partition that depends on positions.
    """
    stays, places = np.flatnonzero(units != one), np.flatnonzero(units == one)
    incoming = np.flatnonzero(units == other)
    contents = np.concatenate([stays, incoming])
    # A group may grow: its new records reuse the names of its previous ones.
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
