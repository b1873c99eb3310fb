"""No file of a release contains a real record, and the statement states what the files contain and who is public."""

from fnmatch import fnmatch

import numpy as np
import pytest

from flows.stages import run_through
from tasks.artefacts.images import read_queries
from tasks.config.params import merge_overrides, validate
from tasks.pipeline import aggregate, student
from tasks.reports.language import LANGUAGES
from tasks.reports.statement_page import published_files, render_statement_page
from tasks.reports.summary import for_anybody
from tasks.runtime.run import Run
from tasks.serving.export import export_folder
from tasks.serving.mlflow_model import pyfunc_arguments
from tasks.serving.pages import model_card
from terrine.data.source import load_dataset
from terrine.deployment.manifest import check_seal
from terrine.deployment.model import REFERENCE, StudentModel
from terrine.privacy.statement import read_statement
from tests.real_records import records_in
from tests.tasks.pipeline.test_table_run import VALUES as TABLE
from tests.tasks.pipeline.test_table_run import adult, write

IMAGES = {
    "data": {"name": "npz", "path": "own.npz", "size": 8, "channels": 1}
    | {"pool": "test", "test_fraction": 0.5, "pool_fraction": 0.5},
    "partition": {"teachers": 15},
    "queries": {"count": 120, "batch": 30, "sources": {"pool": 1}},
    "backbone": {"projection": 20},
    "aggregation": {"mechanism": "histogram", "sigma": 15, "epsilon": 20},
    "ledger": {"account": "clinic", "epsilon": 40},
    "device": "cpu",
}
NONE_OF_IT = {  # what old pages stated of every vote, in each language
    "en": "none of which comes from the private data",
    "de": "von denen keines aus den privaten Daten",
    "fr": "dont aucun ne provient des données privées",
    "es": "ninguno de los cuales procede de los datos privados",
}


def finished(root, values, **changes):
    """Return a run up to its student, and its statement."""
    run = Run(root, "small", validate(merge_overrides(values, changes)))
    run_through(run, "dataset", "vote")
    aggregate.release_answers.fn(run)
    student.train_student.fn(run)
    return run, read_statement(run.folders.statement)


def pages_of(run, statement):
    classes = check_seal(run.folders.student)["class_names"]
    technical = (run.folders.release / "statement.html").read_text()
    boards = {code: render_statement_page(statement, code) for code in LANGUAGES}
    for code, page in boards.items():
        assert NONE_OF_IT[code] not in page
    return [technical, boards["en"], model_card(statement, classes), statement["summary"]]


@pytest.fixture
def images(tmp_path):
    digits = load_dataset("digits", size=8)
    pictures = np.concatenate([digits.train_images, digits.test_images])[:900]
    labels = np.concatenate([digits.train_labels, digits.test_labels])[:900]
    np.savez(tmp_path / "own.npz", images=pictures, labels=labels)
    return tmp_path


@pytest.mark.parametrize("kind", ["linear", "forest"])
def test_a_tables_release_has_no_row_and_names_the_rows_that_are_public(tmp_path, kind):
    write(tmp_path, adult(900))
    values = TABLE | {"student": {"kind": kind, "statistics": "original"}}
    run, statement = finished(tmp_path, values, queries={"count": 100})
    rows, _ = run.params.data.public_rows(run.root, seed=0)
    assert len(rows) > 200
    assert records_in(run.folders.images, rows) >= 95  # what is compared is found where it is (a row may occur twice)
    assert records_in(run.folders.release, rows) == 0
    assert REFERENCE not in check_seal(run.folders.student)["digests"]
    facts = statement["facts"]
    assert facts["examples"] == [{"origin": "own rows", "count": 100}]
    assert facts["unprotected"] == [{"why": "own rows", "count": len(rows)}]
    assert facts["record"] == "row"
    for page in (*pages_of(run, statement), for_anybody(run)["not protected"]):
        assert f"The operator declared {len(rows)} rows of this table public." in page
    save_model(run.folders.student, tmp_path / "model")
    export_folder(run.folders.student, tmp_path / "out", [], ["pt2"])
    for folder in ("model", "out"):
        assert records_in(tmp_path / folder, rows) == 0


def save_model(student, folder):
    import mlflow

    mlflow.pyfunc.save_model(folder, **pyfunc_arguments(student) | {"input_example": None})


def test_a_release_of_a_pool_has_none_of_its_images_and_names_how_many_are_public(images):
    run, statement = finished(images, IMAGES)
    pool = load_dataset_of(run)
    listed = [name.rstrip("/") for names, _ in published_files(statement, signed=False) for name in names.split(", ")]
    assert all(any(fnmatch(path.name, name) for name in listed) for path in run.folders.release.iterdir())
    assert records_in(run.folders.images, pool) >= 120
    assert records_in(run.folders.release, pool) == 0
    manifest = check_seal(run.folders.student)
    assert manifest["reference"] == "64 images drawn by the image programs dead_leaves"
    assert len(StudentModel.load(run.folders.student, "frozen").reference) == 64
    assert statement["facts"]["examples"] == [{"origin": "own images", "count": 120}]
    assert statement["facts"]["unprotected"] == [{"why": "own images", "count": len(pool)}]
    for page in pages_of(run, statement):
        assert f"The operator declared {len(pool)} images from these data public." in page
    assert "120 real images that the operator declared public" in render_statement_page(statement, "en")
    export_folder(run.folders.student, images / "out", ["single", "frozen"], ["pt2"])
    assert check_seal(images / "out")["reference"] == manifest["reference"]
    save_model(run.folders.student, images / "model")
    for folder in ("model", "out"):
        assert records_in(images / folder, pool) == 0


def test_reference_images_of_a_mixed_set_are_its_synthetic_ones(images):
    run, statement = finished(images, IMAGES, queries={"sources": {"pool": 2, "gaussian": 1}})
    queries = read_queries(run.folders)
    drawn = np.concatenate(
        [queries.images[batch] for batch, kind in zip(queries.batches, queries.sources, strict=True) if kind != "pool"]
    )
    reference = StudentModel.load(run.folders.student, "frozen").reference
    assert {image.tobytes() for image in reference} <= {image.tobytes() for image in drawn}
    assert check_seal(run.folders.student)["reference"] == "40 images drawn by the image programs gaussian"
    origins = {item["origin"]: item["count"] for item in statement["facts"]["examples"]}
    assert origins == {"programs": 40, "own images": 80}


def load_dataset_of(run):
    pool = run.params.data.load(run.root, seed=0).pool_images
    assert pool is not None
    return pool


def test_a_declared_number_of_records_and_a_released_accuracy_are_facts(tmp_path):
    write(tmp_path, adult(900))
    _, statement = finished(tmp_path, TABLE, privacy={"units": 450}, evaluation={"epsilon": 0.5})
    facts = statement["facts"]
    assert (facts["declared_units"], facts["accuracy_epsilon"], facts["held_out"]) == (450, 0.5, True)
    assert "are about 450 protected records" in render_statement_page(statement, "en")
