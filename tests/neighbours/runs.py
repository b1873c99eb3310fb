"""Runs of two neighbouring worlds through the real stages, and what is the same in both."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.stages import run_through
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.teachers import read_states, read_votes, voter_count
from tasks.config.params import merge_overrides, validate
from tasks.runtime.run import SPLIT_SEED, Run
from terrine.data.units import name_codes, place_codes, shares
from tests.neighbours.formats import Format
from tests.neighbours.worlds import World

VALUES = {
    "data": {"size": 8},
    "partition": {"teachers": 8},
    "queries": {"count": 40, "batch": 20, "sources": {"gaussian": 1}},
    "backbone": {"projection": 12},
    "teachers": {"per_task": 3},
    "aggregation": {"mechanism": "histogram", "sigma": 3, "epsilon": 30},
    "ledger": {"account": "clinic", "epsilon": 100},
}


@dataclass(frozen=True)
class Outcome:
    """Outputs of a run: each teacher's records, its trained state, its votes, and the public bytes."""

    parts: list[list[bytes]]
    states: list[dict[str, bytes]]
    votes: np.ndarray
    public: dict[str, bytes]

    def moved(self, after: "Outcome") -> set[int]:
        """Return the teachers that learned something else or vote otherwise."""
        assert len(self.states) == len(after.states)
        learned = {number for number, state in enumerate(self.states) if state != after.states[number]}
        return learned | set(np.flatnonzero((self.votes != after.votes).any(axis=0)).tolist())

    def dealt(self, after: "Outcome") -> set[int]:
        """Return the teachers whose records differ."""
        return {number for number, part in enumerate(self.parts) if part != after.parts[number]}


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files under a folder, by their paths in it; how long public work took is left out."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    timed = {
        name: re.sub(rb'"seconds": [0-9.e+-]+', b"", content) for name, content in found.items() if ".json" in name
    }
    return found | timed


def settle(root: Path, form: Format, world: World, **sections: Any) -> Run:
    """Write a world to a new folder and return the run on it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    form.write(root, world)
    values = merge_overrides(merge_overrides(merge_overrides(VALUES, {"data": form.data}), form.overrides), sections)
    return Run(root, "harness", validate(values))


def outcome(run: Run) -> Outcome:
    """Return what a run that has voted made."""
    dataset, assignment = read_dataset(run.folders), read_assignment(run.folders)
    parts: list[list[bytes]] = [[] for _ in range(run.params.partition.teachers)]
    for teacher, image, label in zip(assignment, np.asarray(dataset.train_images), dataset.train_labels, strict=True):
        parts[teacher].append(image.tobytes() + bytes([label]))
    states = [
        {name: array.tobytes() for name, array in state.items()}
        for state in read_states(run.folders, range(voter_count(run)))
    ]
    return Outcome(parts, states, read_votes(run.folders), files(run.root / "data" / "public"))


def made(run: Run) -> Outcome:
    """Take a run from its dataset to its votes."""
    run_through(run, "dataset", "vote")
    return outcome(run)


def made_after(run: Run, before: Run) -> Outcome:
    """Take a run from its dataset to its votes where another run was made: with its ledger, and what it made public.

    The ledger is what makes averages comparable: they are a release, and the one that was drawn is returned.
    """
    for place in ("public", "private/ledger"):
        if (before.root / "data" / place).is_dir():
            shutil.copytree(before.root / "data" / place, run.root / "data" / place)
    run_through(run, "dataset", "partition")
    run_through(run, "average", "vote")
    return outcome(run)


def shares_of_rows(form: Format, world: World) -> dict[str, float]:
    """Return what each row of a table draws: below `_public_share` it is public, and a test row in the next fifth."""
    codes = place_codes(len(world)) if form.positional else name_codes(world)
    if form.people:
        codes = name_codes(record.group for record in world.values())
    return dict(zip(world, shares(codes, SPLIT_SEED, "table.split").tolist(), strict=True))


def declared_public(form: Format, world: World) -> World:
    """Return the records that are public by declaration: rows of a table."""
    if form.data["name"] != "table":
        return {}
    return {name: world[name] for name, drawn in shares_of_rows(form, world).items() if drawn < _public_share(form)}


def _public_share(form: Format) -> float:
    return float(form.data.get("public_fraction", 0))


def trained(run: Run, form: Format, world: World, unit: str) -> list[str]:
    """Return the names of the units that teachers learn from, once the run's dataset is made."""
    if form.given:
        names = [name for name, record in world.items() if record.split == "train"]
    elif run.params.data.name == "table":
        names = [name for name, drawn in shares_of_rows(form, world).items() if drawn >= _public_share(form) + 0.2]
    else:
        images = {image.tobytes() for image in np.asarray(read_dataset(run.folders).train_images)}
        names = [name for name, record in world.items() if record.image.tobytes() in images]
    return names if unit == "record" else list(dict.fromkeys(world[name].group for name in names))
