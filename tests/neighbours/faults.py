"""Faults that were found in Terrine or in published code, to be put back: the harness and the audit must see them.

Each is a function that takes pytest's monkeypatch; `SECTIONS` are the parameters under which it shows.
"""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tasks.artefacts.teachers import record_inputs
from terrine.data import partition
from terrine.teachers import network_training, records
from terrine.teachers.networks import ScratchKind


def _deal(teacher_of: Callable[..., np.ndarray]) -> Callable[[Any], None]:
    """Deal by another rule, (units int64 [records], teachers) -> int64 [records]."""

    def put_back(monkeypatch: Any) -> None:
        def iid(records, teachers, *, names=None, groups=None, seed):
            return teacher_of(np.arange(records) if groups is None else groups, teachers)

        monkeypatch.setattr(partition, "iid", iid)

    return put_back


def _by_rank(units: np.ndarray, teachers: int) -> np.ndarray:
    return np.unique(units, return_inverse=True)[1] % teachers


def _evened_out(units: np.ndarray, teachers: int) -> np.ndarray:
    """Assign groups, largest first, to the teacher with the fewest records."""
    codes, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    loads, teacher_of_unit = np.zeros(teachers), np.zeros(len(codes), np.int64)
    for index in np.argsort(-sizes, kind="stable"):
        teacher_of_unit[index] = loads.argmin()
        loads[teacher_of_unit[index]] += sizes[index]
    return teacher_of_unit[unit]


def _mixed_batches(monkeypatch: Any) -> None:
    def batches(assignment, most, **_):
        return np.array_split(np.arange(len(assignment)), 2)

    monkeypatch.setattr(records, "record_batches", batches)


def _scaled(monkeypatch: Any) -> None:
    plain = record_inputs

    def scaled(*arguments):
        made = plain(*arguments)
        return replace(made, rows=(made.rows - made.rows.mean(axis=0)) / (made.rows.std(axis=0) + 1e-6))

    monkeypatch.setattr("tasks.artefacts.teachers.record_inputs", scaled)


def _precision_by_neighbours(monkeypatch: Any) -> None:
    """Train a network in another precision where the next teacher has another number of records, as CUDA once did."""
    plain = ScratchKind.train

    def train(self, own, teachers, *, seed, device):
        counts = np.bincount(own.assignment, minlength=max(teachers) + 1)
        for _, same in itertools.groupby(teachers, key=lambda teacher: counts[teacher]):
            part = list(same)
            context = torch.autocast("cpu", dtype=torch.bfloat16) if len(part) == 1 else nullcontext()
            network_training.mixed_precision = lambda device, context=context: context
            yield from plain(self, own, part, seed=seed, device=device)

    # To be put back when the test ends.
    monkeypatch.setattr(network_training, "mixed_precision", network_training.mixed_precision)
    monkeypatch.setattr(ScratchKind, "train", train)


_GROUPS = {"privacy": {"unit": "group"}}
_NETWORKS = {
    "seed": 3,  # under which one of the first units that are tried shows it
    "teachers": {"kind": "scratch", "epochs": 1, "batch": None, "per_task": 20},
}

FAULTS: dict[str, Callable[[Any], None]] = {
    "a deal by place": _deal(lambda units, teachers: np.arange(len(units)) % teachers),
    "a deal by the rank of a group": _deal(_by_rank),
    "a deal that evens out parts": _deal(_evened_out),
    "features of batches that mix teachers": _mixed_batches,
    "a scaler fitted on all records": _scaled,
    "precision by how many records others have": _precision_by_neighbours,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "a deal by the rank of a group": _GROUPS,
    "a deal that evens out parts": _GROUPS,
    "precision by how many records others have": _NETWORKS,
}
