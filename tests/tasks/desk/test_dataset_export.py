"""A dataset of drawn images and labels: a new classifier learns from it what the student learned."""

import json
import logging
from pathlib import Path

import mlcroissant
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import terrine as tr
from flows.stages import run_through
from tasks.artefacts.images import POOL, read_queries
from tasks.config.params import validate
from tasks.desk import dataset_export
from tasks.desk.dataset_export import export_dataset
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table
from tasks.serving.verification import verify_statement
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.files import file_digest
from terrine.models.backbone import features_in_batches
from terrine.models.backbone_files import load_backbone
from terrine.queries import Queries

VOTES = {
    "seed": 3,
    "device": "cpu",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 60},
    "queries": {"count": 600, "batch": 100, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "backbone": {"kind": "scattering", "projection": 60, "invariance": True},
    "teachers": {"kind": "linear"},
    "aggregation": {"mechanism": "histogram", "sigma": 8, "epsilon": 40},
    "ledger": {"epsilon": 100},
}
SUMS = VOTES | {
    "queries": {"count": 100, "batch": 50, "sources": {"dead_leaves": 1}},
    "aggregation": {"mechanism": "moments", "epsilon": 8},
    "student": {"kind": "sums"},
}


def made(folder: Path, values: dict) -> Run:
    run = Run(folder, "small", validate(values))
    run_through(run, "dataset", "evaluate")
    return run


@pytest.fixture(scope="module")
def votes(tmp_path_factory):
    return made(tmp_path_factory.mktemp("votes"), VOTES)


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    return made(tmp_path_factory.mktemp("sums"), SUMS)


def read(folder):
    table = pd.read_csv(folder / "labels.csv", dtype={"label": str})
    images = np.stack([np.asarray(Image.open(folder / file)) for file in table["file"]])
    return table, images[:, None]


def test_a_new_classifier_reaches_the_accuracy_of_the_student(votes, tmp_path):
    """It learns the noisy votes from the exported files and the student's public feature extractor."""
    assert export_dataset(votes, tmp_path / "out") == (600, "answers")
    table, images = read(tmp_path / "out")
    assert np.array_equal(images, np.asarray(read_queries(votes.folders).images[np.arange(600)]))
    backbone = load_backbone(votes.folders.student / "backbone.safetensors")
    batches = [np.arange(start, start + 100) for start in range(0, 600, 100)]
    noisy = table.filter(like="noisy votes for").to_numpy()
    model = make_pipeline(StandardScaler(), Ridge(alpha=30))
    model.fit(features_in_batches(backbone, images, batches, "current"), noisy)
    data = tr.load_dataset("digits", size=8)
    test = features_in_batches(backbone, data.test_images, [np.arange(len(data.test_images))], "current")
    accuracy = float((model.predict(test).argmax(1) == data.test_labels).mean())
    assert accuracy >= read_json(votes.folders.evaluation)["in_batches"]["accuracy"] - 0.02


def test_labels_are_the_released_answers_and_nothing_else(votes, tmp_path):
    export_dataset(votes, tmp_path / "out")
    table, _ = read(tmp_path / "out")
    answers = read_table(votes.folders.answers / "answers.parquet")
    assert table["label"].astype(int).tolist() == answers["label"][answers["answered"]].tolist()
    assert np.allclose(table.filter(like="noisy votes for"), answers.filter(like="count_"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"README.md", "croissant.json", "images", "labels.csv", "privacy.json", "statement.html"}
    assert len(list((tmp_path / "out" / "images").iterdir())) == 600


def test_no_private_file_is_read(votes, tmp_path):
    private = votes.folders.root / "data" / "private"
    private.rename(tmp_path / "away")
    try:
        export_dataset(votes, tmp_path / "out")
    finally:
        (tmp_path / "away").rename(private)


def test_sums_are_labelled_by_the_student(sums, tmp_path):
    assert export_dataset(sums, tmp_path / "out") == (100, "student")
    table, _ = read(tmp_path / "out")
    probabilities = table.filter(like="probability of").to_numpy()
    assert np.allclose(probabilities.sum(1), 1, atol=1e-3)
    assert table["label"].astype(int).tolist() == probabilities.argmax(1).tolist()
    assert "predictions of the released student" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(SettingError, match="released sums, not one label per image"):
        export_dataset(sums, tmp_path / "more", "answers")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("labels", ["answers", "student"])
def test_the_metadata_are_valid_and_load_every_row(votes, tmp_path, labels, caplog):
    caplog.set_level(logging.ERROR)
    export_dataset(votes, tmp_path / "out", labels)
    dataset = mlcroissant.Dataset(jsonld=tmp_path / "out" / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    rows = list(dataset.records("examples"))
    table, _ = read(tmp_path / "out")
    assert [row["examples/1"].decode() for row in rows] == table["label"].tolist()
    (tmp_path / "out" / "labels.csv").write_text("file,label\n")
    listed = json.loads((tmp_path / "out" / "croissant.json").read_text())["distribution"][0]
    assert listed["sha256"] != file_digest(tmp_path / "out" / "labels.csv")


def test_the_statement_verifies_in_the_folder(votes, tmp_path):
    export_dataset(votes, tmp_path / "out")
    assert not [check for check in verify_statement(tmp_path / "out") if check.holds is False]


def test_real_images_declared_public_are_left_out(votes, tmp_path, monkeypatch):
    queries = read_queries(votes.folders)
    sources = [POOL, *queries.sources[1:]]
    monkeypatch.setattr(dataset_export, "read_queries", lambda _: Queries(queries.images, queries.batches, sources))
    count, _ = export_dataset(votes, tmp_path / "out")
    assert count == 500
    assert not (tmp_path / "out" / "images" / f"{queries.batches[0][0]:06d}.png").exists()
    monkeypatch.setattr(
        dataset_export, "read_queries", lambda _: Queries(queries.images, queries.batches, [POOL] * len(sources))
    )
    with pytest.raises(SettingError, match="Only drawn images"):
        export_dataset(votes, tmp_path / "none")


def test_other_folders_and_releases_without_a_guarantee_are_refused(votes, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="no earlier export"):
        export_dataset(votes, tmp_path / "mine")
    monkeypatch.setattr(dataset_export, "guarantee", lambda _: {"private": False})
    with pytest.raises(ArtefactError, match="no release with a guarantee"):
        export_dataset(votes, tmp_path / "out")
