"""The fuzz suite shows doors what it should, and notices a door that breaks."""

import contextlib
import itertools

import numpy as np

from benchmarks.fuzz import Refused, attend, file_doors, mutated, party_doors
from terrine.errors import InputError


def test_mutations_are_many_and_the_same_for_the_same_seed():
    made = [[mutated(b"hello", [b"hello", b"world"], np.random.default_rng(seed)) for seed in range(200)] for _ in "ab"]
    assert made[0] == made[1]
    assert len(set(made[0])) > 150


def test_a_refusal_is_none_and_everything_else_is_counted():
    def door(data):
        if len(data) > 5:
            raise InputError("too long") if len(data) % 2 else KeyError("x")

    figures, faults = attend("a door", door, [b"hello"], 300, 0)
    assert figures["taken"] + figures["refused"] + figures["tracebacks"] == 300
    assert min(figures["taken"], figures["refused"], figures["tracebacks"]) > 0
    assert sum(faults.values()) == figures["tracebacks"]
    assert "KeyError" in next(iter(faults))


def test_a_few_inputs_for_each_door_of_frames_and_files_are_taken_or_refused(tmp_path):
    for name, door, seeds in itertools.chain(party_doors(), file_doors(tmp_path)):
        for seed in seeds:
            with contextlib.suppress(
                *[Refused] * name.startswith("requests to")
            ):  # their paths follow from the content
                door(seed)
        assert attend(name, door, seeds, 15, 1)[1] == {}, name
