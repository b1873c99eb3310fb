"""The distance between queries and private data: a private artefact, logged only with private metrics."""

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.config.params import validate
from tasks.config.values import merge
from tasks.pipeline import distance, synthesize
from tasks.pipeline import mlflow_logging as tracking
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, write_json
from terrine.synthetic.distance import image_distances, scattering_extractor
from terrine.synthetic.program import draw

ASKED = {"audit_epsilon": None, "teachers": 5, "queries": 90, "answered": 90}
VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 8},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
    "queries": {"count": 90, "batch": 15, "sources": {"gaussian": 1, "mixup:dead_leaves+stylegan": 2}},
    "device": "cpu",
}


@pytest.fixture(scope="module", name="run")
def make_run(tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("distance"), "small", validate(VALUES))
    run_through(run, "dataset", "synthesize")
    run_through(run, "distance", "distance")
    return run


def test_figures_are_those_of_the_sources_images_and_lie_in_the_private_zone(run):
    figures = distance.read_distance(run.folders)
    assert run.folders.distance.is_relative_to(run.root / "data" / "private")
    assert "PRIVATE" in figures["notice"]
    assert set(figures["sources"]) == {"gaussian", "mixup:dead_leaves+stylegan"}
    seed = synthesize.stretch(run, synthesize.plan(run)[0]).seed
    gaussian = draw("gaussian", seed=seed, first=0, count=30, size=8, channels=1).numpy()
    real = read_dataset(run.folders).train_images
    expected = image_distances(scattering_extractor(1), {"": gaussian}, np.asarray(real), seed=0)[""]
    assert figures["sources"]["gaussian"]["distance"] == pytest.approx(expected.distance, rel=1e-6)
    assert figures["all"]["rows"] == 90


@pytest.mark.parametrize("allowed", [True, False])
def test_only_a_run_that_may_log_private_figures_logs_distances(run, allowed):
    folders = run.folders
    write_json(folders.answers / "manifest.json", {"queries": 90, "answered": 80})
    write_json(folders.evaluation, {"accuracy": 0.5})
    write_json(folders.accounting / "figures.json", {"consensus_mean": 0.7})
    own = Run(run.root, run.name, validate(merge(VALUES, {"tracking": {"private_metrics": allowed}})))
    metrics = tracking._metrics(own, {"epsilon": 1.0, "epsilon_guaranteed": 2.0, "delta": 1e-5, **ASKED})
    private = {name for name in metrics if name.startswith("private_")}
    assert metrics["system/drawing_images"] == 90
    assert (metrics["epsilon"], metrics["epsilon_guaranteed"]) == (1.0, 2.0)
    if not allowed:
        assert not private
        assert not [name for name in metrics if "distance" in name]
        return
    assert (
        metrics["private_distance_gaussian"]
        == read_json(folders.distance / "figures.json")["sources"]["gaussian"]["distance"]
    )
    assert "private_distance_mixup-dead_leaves-stylegan" in private
    assert "private_distance_all" in private


def test_a_source_with_too_few_queries_has_no_figure_and_the_report_skips_it(tmp_path):
    values = merge(VALUES, {"queries": {"count": 22, "batch": 20, "sources": {"gaussian": 19, "dead_leaves": 3}}})
    run = Run(tmp_path, "small", validate(values))
    run_through(run, "dataset", "synthesize")
    run_through(run, "distance", "distance")
    assert distance.read_distance(run.folders)["sources"]["dead_leaves"] is None
    rows = distance.distance_rows(run.folders)["rows"]
    assert [row["name"] for row in rows] == ["gaussian"]
    assert set(distance.distance_metrics(run.folders)) == {"distance_all", "distance_gaussian"}
