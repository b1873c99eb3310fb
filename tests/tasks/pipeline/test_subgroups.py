"""Accuracy by scanner, site or sex: records are matched by name, regardless of the table's order."""

import numpy as np
import pytest

from tasks.config.params import public_parameters, validate
from tasks.pipeline.figures.subgroups import MISSING, by_subgroup, load_subgroups
from tasks.runtime.run import Run
from terrine.data.dataset import Dataset
from terrine.data.units import name_codes
from terrine.errors import InputError

NAMES = ["b/2.png", "a/1.png", "c/3.png", "d/4.png"]
TABLE = "path,scanner,sex\na/1.png,old,f\nx/9.png,old,m\nb/2.png,new,m\nc/3.png,old,\n"


def told(root, table=TABLE, units=None, groups=None):
    (root / "who.csv").write_text(table)
    images, labels = np.zeros((4, 1, 8, 8), np.uint8), np.arange(4) % 2
    codes = name_codes(NAMES) if units is None else units
    dataset = Dataset("own", images, labels, groups, images, labels, ("a", "b"), test_names=codes)
    values = {
        "data": {"name": "npz", "path": "own.npz", "public_benchmark": False},
        "ledger": {"account": "a", "epsilon": 8},
    }
    run = Run(root, "own", validate({**values, "evaluation": {"subgroups": "who.csv"}}))
    return load_subgroups(run, dataset), run


def test_records_are_found_by_name_and_what_is_not_said_is_a_subgroup_of_its_own(tmp_path):
    found, run = told(tmp_path)
    assert {name: list(values) for name, values in found.items()} == {
        "scanner": ["new", "old", "old", MISSING],
        "sex": ["m", "f", MISSING, MISSING],
    }
    assert "who.csv" not in str(public_parameters(run.params))


def test_every_record_of_a_group_is_in_the_groups_subgroup(tmp_path):
    units = name_codes(["p1", "p2", "p1", "p1"])
    found, _ = told(tmp_path, "patient,site\np2,north\np1,south\n", units, units)
    assert list(found["site"]) == ["south", "north", "south", "south"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("path\na/1.png\n", "at least one column of subgroups"),
        (TABLE + "a/1.png,new,m\n", r"line 6 names 'a/1.png' a second time"),
        ("path,scanner\nA/1.png,old\n", "names none of the test records in its first column 'path'"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(tmp_path, table, said):
    with pytest.raises(InputError, match=said):
        told(tmp_path, table)


def test_figures_of_a_subgroup_are_those_of_its_records_alone_by_a_plain_loop():
    generator = np.random.default_rng(0)
    labels, predictions, sites = (generator.integers(size, size=300) for size in (3, 3, 4))
    sites = np.array(["north", "south", "east", "west"])[sites]
    units = np.arange(300) // 3
    found = by_subgroup({"site": sites}, labels, predictions, units)["site"]
    assert [row["subgroup"] for row in found] == ["east", "north", "south", "west"]
    for row in found:
        own = [n for n in range(300) if sites[n] == row["subgroup"]]
        right = [labels[n] == predictions[n] for n in own]
        shares = [np.mean([predictions[n] == c for n in own if labels[n] == c]) for c in range(3)]
        assert row["records"] == len(own)
        assert row["accuracy"]["value"] == pytest.approx(np.mean(right))
        assert row["balanced_accuracy"]["value"] == pytest.approx(np.mean(shares))
        assert "by groups" in row["accuracy"]["method"]
