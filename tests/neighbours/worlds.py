"""Small made-up datasets as the neighbouring relation sees them: maps from names to contents, and one step between two.

A record's name is the key of a `World`; a group's name is its text. If a format names records by their position
(`positional`), the position in the world is the name, so records are added and removed only at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from terrine.determinism.randomness import numpy_generator

SIDE = 8
HELD_OUT = 4
"""Every so manieth group is the test split, where a format gives the split."""


@dataclass(frozen=True)
class Record:
    """The contents behind a name: uint8 [8, 8], its class, whose it is, who holds it, and the given split."""

    image: np.ndarray
    label: int
    group: str
    party: str
    split: str


World = dict[str, Record]


def picture(label: int, key: str) -> np.ndarray:
    """Return an image of a class, uint8 [8, 8]: the class's pattern plus noise seeded by the key."""
    pattern = numpy_generator(label, "pattern").integers(0, 256, (SIDE, SIDE))
    noise = numpy_generator(label, f"noise {key}").integers(0, 256, (SIDE, SIDE))
    return ((pattern + 2 * noise) // 3).astype(np.uint8)


def base(classes: int = 3, records: int = 83) -> World:
    """Return a world of groups of one to four records each, with mixed classes, held by six parties.

    The records of a given test split come first, so that the last position is one of the training data.
    """
    world = {}
    for number in range(records):
        for part in range(1 + number % 4):
            name = f"r{number:02d}{part}"
            label = (3 * number + part) % classes
            split = "test" if number % HELD_OUT == 3 else "train"
            world[name] = Record(picture(label, name), label, f"person {number:02d}", f"site {number % 6}", split)
    return dict(sorted(list(world.items())[:records], key=lambda item: item[1].split))


def other(record: Record, classes: int, key: str) -> Record:
    """Return a record of another class and image in the same hands."""
    label = (record.label + 1) % classes
    return replace(record, label=label, image=picture(label, key))


@dataclass(frozen=True)
class Step:
    """One way in which two worlds differ.

    make: (world, unit, name of a unit, positional, classes) -> the other world.
    names: Under how many names they differ.
    """

    make: Callable[[World, str, str, bool, int], World]
    names: int = 1


def members(world: World, unit: str, name: str) -> list[str]:
    """Return the names of the records of a unit."""
    return [key for key, record in world.items() if name == (key if unit == "record" else record.group)]


def _replaced(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    return world | {key: other(world[key], classes, f"other {key}") for key in members(world, unit, name)}


def _label(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    key = members(world, unit, name)[0]
    return world | {key: replace(world[key], label=(world[key].label + 1) % classes)}


def _image(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    key = members(world, unit, name)[0]
    return world | {key: replace(world[key], image=picture(world[key].label, f"again {key}"))}


def _removed(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    gone = members(world, unit, name)
    if positional and unit == "record":
        gone = list(world)[-1:]
    return {key: record for key, record in world.items() if key not in gone}


def _added(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    """Add a unit beside the named one: in the middle, unless positions are names."""
    model = world[members(world, unit, name)[0]]
    if unit == "group":
        model = replace(model, group=f"{name} bis")
    count = 1 if unit == "record" else 3
    return _insert(world, name, {f"{members(world, unit, name)[-1]}{n}": model for n in range(count)}, positional)


def _insert(world: World, after: str, records: World, positional: bool) -> World:
    fresh = {key: replace(record, image=picture(record.label, f"new {key}")) for key, record in records.items()}
    if positional:
        return world | fresh
    made: World = {}
    for key, record in world.items():
        made[key] = record
        if after in (key, record.group):
            made |= fresh
    return made


def _renamed(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    if unit == "group":
        return {
            key: replace(record, group=f"a new name of {name}") if record.group == name else record
            for key, record in world.items()
        }
    return {f"a{key}" if key == name else key: record for key, record in world.items()}


def _in_another_order(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    return dict(reversed(world.items()))


def _split(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    half = members(world, unit, name)[::2]
    return world | {key: replace(world[key], group=f"{name} b") for key in half}


def _larger(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    key = members(world, unit, name)[-1]
    return _insert(world, name, {f"{key}+": world[key]}, positional)


def _smaller(world: World, unit: str, name: str, positional: bool, classes: int) -> World:
    gone = members(world, unit, name)[1:]
    return {key: record for key, record in world.items() if key not in gone}


STEPS = {
    "record": {
        "replaced": Step(_replaced),
        "label": Step(_label),
        "image": Step(_image),
        "removed": Step(_removed),
        "added": Step(_added),
        "renamed": Step(_renamed, names=2),
        "in another order": Step(_in_another_order, names=0),
    },
    "group": {
        "replaced": Step(_replaced),
        "label": Step(_label),
        "image": Step(_image),
        "removed": Step(_removed),
        "added": Step(_added),
        "renamed": Step(_renamed, names=2),
        "split": Step(_split, names=2),
        "larger": Step(_larger),
        "smaller": Step(_smaller),
    },
}
