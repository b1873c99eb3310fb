"""Two datasets that differ under one name, in every format: one teacher learns something else, what is public stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.runtime.run import Run
from terrine.determinism.randomness import numpy_generator
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.runs import Outcome, declared_public, made, settle, trained

PARTY = {"partition": {"kind": "party", "teachers": 6}}
AT_PARTIES = {"record": ("replaced", "removed"), "group": ("label", "larger")}
ALONE = ("csv", "npz")
"""Formats in which an image can change without its label; in the others both are replaced together."""
SLOW = ("dicom", "nifti")
"""Files that take long to read, listed in a table as images are: not at parties, and not all steps."""


def _cases():
    for name, form in FORMATS.items():
        for unit in form.units:
            for step in worlds.STEPS[unit]:
                by_name = step in ("renamed", "in another order") and unit == "record"
                told = {"image": name in ALONE, "label": name not in SLOW, "smaller": name not in SLOW}
                if not (by_name and form.positional) and told.get(step, True):
                    yield name, unit, "iid", step
            for step in AT_PARTIES[unit] if form.people and name not in SLOW else ():
                yield name, unit, "party", step


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A function that gives the world of a format, the run on it and what came out, made once."""
    known = {}

    def get(name: str, unit: str, partition: str) -> tuple[worlds.World, Run, Outcome]:
        key = name, unit, partition
        if key not in known:
            form = FORMATS[name]
            world = worlds.base(form.classes, form.records)
            sections = {"privacy": {"unit": unit}, **(PARTY if partition == "party" else {})}
            run = settle(tmp_path_factory.mktemp("base"), form, world, **sections)
            known[key] = world, run, made(run)
        return known[key]

    return get


def neighbour(run: Run, form, world: worlds.World, root) -> Outcome:
    """Make the same run on another world."""
    other = settle(root, form, world, privacy={"unit": run.params.privacy.unit})
    return made(Run(other.root, other.name, run.params))


@pytest.mark.parametrize(("name", "unit", "partition", "step"), list(_cases()))
def test_one_step_moves_the_teacher_of_one_name_and_nothing_public(base, tmp_path, name, unit, partition, step):
    form, (world, run, before) = FORMATS[name], base(name, unit, partition)
    units = trained(run, form, world, unit)
    how = worlds.STEPS[unit][step]
    if step in ("split", "smaller"):
        units = [name for name in units if len(worlds.members(world, unit, name)) > 1]
    at_the_end = form.positional and unit == "record" and step in ("removed", "added")
    drawn = units[-1:] if at_the_end else numpy_generator(0, f"{name} {unit} {step}").permutation(units).tolist()
    changes = (how.make(world, unit, one, form.positional, form.classes) for one in drawn)
    # A new name may be drawn for the public rows, which are no secret.
    changed = next(other for other in changes if declared_public(form, other) == declared_public(form, world))
    after = neighbour(run, form, changed, tmp_path)
    dealt = before.dealt(after)
    assert len(dealt) <= how.names
    if how.names == 1 and step != "added":  # such a unit may be drawn for the test split, or stay where it was
        assert len(dealt) == 1
    assert before.moved(after) == dealt
    assert before.public == after.public


@settings(max_examples=6)
@given(data=st.data())
def test_several_steps_move_no_more_teachers_than_they_change_names(base, tmp_path_factory, data):
    name = data.draw(st.sampled_from(["csv", "npz with ids"]))
    unit = data.draw(st.sampled_from(["record", "group"]))
    form, (world, run, before) = FORMATS[name], base(name, unit, "iid")
    names = 0
    changed = dict(world)
    for _ in range(data.draw(st.integers(1, 3))):
        step = worlds.STEPS[unit][data.draw(st.sampled_from(sorted(worlds.STEPS[unit])))]
        units = list(dict.fromkeys(key if unit == "record" else record.group for key, record in changed.items()))
        changed = step.make(changed, unit, data.draw(st.sampled_from(units)), form.positional, form.classes)
        names += step.names
    after = neighbour(run, form, changed, tmp_path_factory.mktemp("steps"))
    assert before.moved(after) <= before.dealt(after)
    assert len(before.dealt(after)) <= names
    assert before.public == after.public
