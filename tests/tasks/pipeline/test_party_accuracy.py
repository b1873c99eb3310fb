"""The student's accuracy by party: which records are looked at, what is counted, and that it stays private."""

import numpy as np
import pytest

from tasks.config.params import validate
from tasks.pipeline.figures.party_accuracy import party_figures, some_of_each, write_party_accuracy
from tasks.reports.partition_figures import accuracy_figures
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_array
from terrine.data.dataset import Dataset


def test_of_each_party_equally_many_records_are_drawn_or_all_it_has():
    assignment = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [300, 5, 100, 101]))
    chosen = some_of_each(assignment, 4, seed=1)
    assert np.bincount(assignment[chosen], minlength=4).tolist() == [100, 5, 100, 100]
    assert len(set(chosen.tolist())) == len(chosen)
    np.testing.assert_array_equal(chosen, some_of_each(assignment, 4, seed=1))
    many = np.arange(12_000) % 3000
    assert np.bincount(many[some_of_each(many, 3000, seed=1)]).max() == 3


def test_every_party_counts_alike_in_the_summary():
    party = np.array([0] * 8 + [1, 1] + [3])
    right = np.array([True] * 8 + [True, False] + [False])
    figures = party_figures(party, right, 4)
    assert figures["parties"] == [1.0, 0.5, None, 0.0]
    assert figures["records"] == [8, 2, 0, 1]
    assert figures["mean"] == pytest.approx(0.5)
    assert figures["worst"] == 0.0


def dataset_of(labels, names=None):
    images = np.zeros((len(labels), 1, 8, 8), np.uint8)
    images[:, 0, 0, 0] = labels
    parties = None if names is None else np.arange(len(labels)) % len(names)
    return Dataset(
        name="digits",
        train_images=images,
        train_labels=labels,
        train_groups=None,
        test_images=images[:2],
        test_labels=labels[:2],
        class_names=("a", "b"),
        public_benchmark=True,
        train_parties=parties,
        party_names=names or (),
    )


def guess_a(images):
    return np.tile([1.0, 0.0], (len(images), 1))


@pytest.mark.parametrize("kind", ["iid", "similarity", "party"])
def test_what_is_written_is_private_and_names_parties_where_they_have_names(tmp_path, kind):
    names = ("north", "south")
    labels = np.array([0, 1] * 10)
    partition = {"kind": kind, "teachers": 2, **({"similarity": 0} if kind == "similarity" else {})}
    run = Run(tmp_path, "small", validate({"data": {"public_benchmark": True}, "partition": partition}))
    write_array(run.folders.partition / "assignment.npy", np.arange(20) % 2)
    write_party_accuracy(run, dataset_of(labels, names if kind == "party" else None), guess_a)
    content = read_json(run.folders.private / "party_accuracy.json")
    assert "PRIVATE" in content["notice"]
    if kind == "iid":
        assert content["parties"] is None
        assert accuracy_figures(content) is None
        return
    assert content["parties"] == [1.0, 0.0]
    drawn = accuracy_figures(content)
    assert ("Worst party", "0.0 %") in [(name, value.replace("\u202f", " ")) for name, value in drawn["facts"]]
    assert (drawn["bars"] is None) == (kind == "similarity")
