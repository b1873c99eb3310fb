"""Two datasets with several findings that differ under one name: what moves through the real stages, and its price."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.records import read_assignment, read_dataset
from tasks.artefacts.teachers import read_votes
from tasks.config.params import merge_overrides, validate
from tasks.pipeline.sums import load_summed_records
from tasks.runtime.run import Run
from terrine.aggregation.gradient_rounds import JOINT
from terrine.aggregation.records import STEP
from terrine.aggregation.votes import count_finding_votes
from terrine.privacy.accounting.gaussian import mu_squared
from tests.drawn_findings import VALUES, draw, write

OPTIMISERS: dict[str, dict[str, Any]] = {
    "ridge": {"optimiser": "ridge"},
    "adam": {"optimiser": "adam", "batch": 8, "learning_rate": 0.05},
}
STEPS = ("replaced", "another finding", "removed")


def run_of(root: Path, step: str | None, **sections: Any) -> Run:
    """A run on 80 records and 20 test images; `step` is what happens to the last record, which its place names."""
    root.mkdir(parents=True, exist_ok=True)
    images, labels = draw(100)
    fresh = draw(1, seed=9)
    if step == "replaced":
        images[79], labels[79] = fresh[0][0], 1 - labels[79]
    elif step == "another finding":
        labels[79, 1] = 1 - labels[79, 1]
    elif step == "removed":
        images, labels = np.delete(images, 79, axis=0), np.delete(labels, 79, axis=0)
    write(root / "drawn.npz", images, labels, test=20)
    values = merge_overrides(VALUES, {"partition": {"teachers": 8}, "queries": {"count": 40, "batch": 20}})
    return Run(root, "drawn", validate(merge_overrides(values, sections)))


@pytest.mark.parametrize("bound", [None, 1])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_record_moves_one_teacher_and_no_more_answers_than_are_charged(
    tmp_path: Path, bound: int | None, optimiser: str
) -> None:
    sections = {"aggregation": {"findings_bound": bound}, "teachers": OPTIMISERS[optimiser]}
    before = run_of(tmp_path / "before", None, **sections)
    run_through(before, "dataset", "vote")
    mechanism, votes = before.params.aggregation, read_votes(before.folders)
    assert votes.reshape(40, 3, 8).sum(axis=1).max() <= (bound or 3)  # so that any two votes differ in `moved` at most
    price = mu_squared(mechanism.cost(len(votes), len(votes)))
    most = 0.0
    for step in STEPS:
        after = run_of(tmp_path / step, step, **sections)
        run_through(after, "dataset", "vote")
        others = read_votes(after.folders)
        changed = votes != others
        assert set(np.flatnonzero(changed.any(axis=0))) <= {read_assignment(before.folders)[79]}
        assert changed.reshape(40, 3, 8).sum(axis=1).max() <= mechanism.moved
        moved = count_finding_votes(votes, 3, bound) - count_finding_votes(others, 3, bound)
        most = max(most, float(np.square(moved).sum()) / mechanism.sigma**2)
    assert 0 < most <= price


def test_a_record_moves_sums_by_no_more_than_is_charged(tmp_path: Path) -> None:
    found = []
    for step in (None, *STEPS):
        sums = {"aggregation": {"mechanism": "moments"}, "student": {"kind": "sums"}}
        run = run_of(tmp_path / str(step), step, **sums)
        run_through(run, "dataset", "vote")
        assert read_dataset(run.folders).several
        found.append(load_summed_records(run))
    moments = [(each.second_moments() * STEP, each.label_moments() * STEP) for each in found]
    for second, labels in moments[1:]:
        distance = np.square(second - moments[0][0]).sum() + np.square(labels - moments[0][1]).sum()
        assert 0 < distance <= JOINT
