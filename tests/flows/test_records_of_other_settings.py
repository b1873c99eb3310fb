"""A stage that is run by itself finds records that other settings laid down, and releases nothing about them."""

import shutil

import numpy as np
import pytest

from flows.stages import run_through
from tasks.config.params import validate
from tasks.config.values import as_yaml
from tasks.pipeline.mlflow_logging import log_run
from tasks.reports.comparison import compared
from tasks.runtime.run import Run
from tasks.runtime.store import write_text
from terrine.errors import ArtefactError

CLINIC = {
    "data": {"name": "npz", "path": "clinic.npz", "size": 8},
    "ledger": {"account": "clinic", "epsilon": 2.0},
    "partition": {"teachers": 10},
    "queries": {"count": 24, "batch": 12, "sources": {"gaussian": 1}},
    "backbone": {"projection": 20},
    "aggregation": {"mechanism": "histogram", "sigma": 60, "epsilon": 2},
}
BENCHMARK = {"data": {"name": "digits", "size": 8}, "ledger": {}}
REHEARSAL = {"data": {**CLINIC["data"], "test_fraction": 0.5}}
FILES = {"data": {**CLINIC["data"], "name": "folder"}}
SUMS = {"aggregation": {"mechanism": "gradients", "epsilon": 20}, "student": {"kind": "sums", "statistics": "original"}}


def run_with(root, *changes):
    values = CLINIC
    for change in changes:
        values = {**values, **change}
    return Run(root, "clinic", validate(values))


@pytest.fixture(scope="module")
def voted(tmp_path_factory):
    """A project whose teachers learnt from private records, and voted."""
    root = tmp_path_factory.mktemp("project")
    generator = np.random.default_rng(0)
    images, labels = generator.integers(0, 256, (300, 8, 8), dtype=np.uint8), generator.permutation(300) % 3
    np.savez(root / "clinic.npz", images=images, labels=labels)
    run_through(run_with(root), "dataset", "vote")
    return root


@pytest.mark.parametrize(
    "changes", [(BENCHMARK,), (BENCHMARK, SUMS), (REHEARSAL,), (FILES,)], ids=["votes", "sums", "split", "kind"]
)
def test_private_records_are_not_released_under_the_settings_of_others(voted, tmp_path, changes):
    """As a benchmark's they would be charged to an account without a budget, and their exact accuracy published."""
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    run = run_with(tmp_path, *changes)
    for stage in ("aggregate", "evaluate", "report"):
        with pytest.raises(ArtefactError, match=r"The records of clinic were made with other settings"):
            run_through(run, stage, stage)
    assert not run.folders.release.exists()
    assert not (tmp_path / "data" / "private" / "ledger" / "ledger.db").exists()


def test_exact_accuracies_of_private_records_are_neither_logged_nor_compared_as_a_benchmarks(voted, tmp_path):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    run_through(run_with(tmp_path), "aggregate", "evaluate")
    run = run_with(tmp_path, BENCHMARK)
    write_text(run.folders.parameters, as_yaml(run.params.model_dump(mode="json")))
    for tell in (lambda: log_run.fn(run), lambda: compared(tmp_path, ["clinic"])):
        with pytest.raises(ArtefactError, match=r"The records of clinic were made with other settings"):
            tell()
    assert not (tmp_path / "mlflow.db").exists()


def test_records_that_lie_elsewhere_now_or_have_another_edition_are_the_runs(voted, tmp_path):
    shutil.copytree(voted, tmp_path, dirs_exist_ok=True)
    data = {**CLINIC["data"], "path": "moved.npz", "edition": "2"}
    run_through(run_with(tmp_path, {"data": data}), "aggregate", "aggregate")
