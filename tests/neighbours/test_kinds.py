"""Two datasets that differ under one name, for every kind of teacher: exactly one teacher's model and votes change."""

import json

import pytest

from tasks.config.values import merge
from tests.neighbours import worlds
from tests.neighbours.formats import FORMATS
from tests.neighbours.kinds import KINDS
from tests.neighbours.runs import made, made_after, settle

FORM = FORMATS["csv with a split"]
STEPS = {"replaced": "r101", "removed": "r091"}
"""Steps that change a record's contents or the number of records, with the unit that changes."""


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A function that gives a run that has made what is public, by the settings that this depends on."""
    known = {}

    def get(world, sections):
        key = json.dumps([sections.get("backbone"), sections.get("pretraining")])
        if key not in known:
            known[key] = settle(tmp_path_factory.mktemp("public"), FORM, world, **sections)
            made(known[key])
        return known[key]

    return get


@pytest.mark.parametrize("statistics", ["current", "original"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_moves_one_teacher_of_every_kind(tmp_path, public, kind, statistics):
    world = worlds.base(records=45)
    sections = merge({"partition": {"teachers": 6}, "teachers": {"statistics": statistics}}, KINDS[kind])
    run = settle(tmp_path / "before", FORM, world, **sections)
    before = made_after(run, public(world, sections))
    for step, unit in STEPS.items():
        changed = worlds.STEPS["record"][step].make(world, "record", unit, FORM.positional, FORM.classes)
        after = made_after(settle(tmp_path / step, FORM, changed, **sections), run)
        moved, dealt = before.moved(after), before.dealt(after)
        assert len(dealt) == len(moved) == 1
        in_blocks = run.params.teachers.voters(6) != 6  # a block is one voter, numbered separately
        assert moved == dealt or in_blocks
        assert before.public == after.public
