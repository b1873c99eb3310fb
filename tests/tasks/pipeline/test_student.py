"""The stage `student`: every kind is trained from public and released files only and evaluated with its backbone."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from flows.stages import run_through
from tasks.artefacts.images import read_pretraining, read_queries
from tasks.artefacts.records import read_dataset
from tasks.artefacts.released import read_student
from tasks.config.params import merge_overrides, validate
from tasks.config.values import merge
from tasks.pipeline import dataset, evaluate, student
from tasks.pipeline.figures.released_accuracy import right_answers
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table, write_json, write_table
from terrine.deployment.model import StudentModel
from terrine.errors import ArtefactError, InputError, SettingError
from terrine.files import file_digest
from terrine.heads import predict
from terrine.models.backbone import features_in_batches
from terrine.students.answers import transition_matrix

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = 10
VALUES = {
    "data": {"public_benchmark": True, "name": "digits", "size": 16},
    "partition": {"teachers": 20},
    "queries": {"count": 160, "batch": 40, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "aggregation": {"mechanism": "histogram", "sigma": 5},
    "device": "cpu",
}
SCATTERING = {"backbone": {"kind": "scattering", "projection": 40}}
PRETRAINING = {"images": {"count": 48, "sources": {"gaussian": 1}}, "epochs": 1, "batch": 16, "projection": 8}
NETWORK = {"backbone": {"kind": "small_cnn"}, "pretraining": PRETRAINING}
BACKBONES = {"scattering": SCATTERING, "small_cnn": NETWORK}
FAST = {"steps": 6, "train_batch": 16, "views": 1, "l2": 0.3}
TERM = {**FAST, "unlabelled_ratio": 1}
ON_SCATTERING = {
    "linear": {"kind": "linear", "l2": 0.3},
    "forest": {"kind": "forest", "trees": 5},
    "head alone": {"kind": "finetune", "trainable": 0, **FAST, "l2": None},
    "fixmatch": {"kind": "fixmatch", "threshold": 0.3, **TERM},
    "freematch": {"kind": "freematch", **TERM},
    "vat": {"kind": "vat", **TERM},
}
ON_NETWORK = {
    "linear": {"kind": "linear", "l2": 0.3},
    "finetune": {"kind": "finetune", **FAST},
    "full": {"kind": "full", **FAST},
    "fixmatch": {"kind": "fixmatch", "threshold": 0.3, **TERM},
    "freematch": {"kind": "freematch", **TERM},
    "vat": {"kind": "vat", **TERM},
}
CASES = [
    pytest.param(backbone, settings, id=f"{name}-{backbone}")
    for backbone, kinds in (("scattering", ON_SCATTERING), ("small_cnn", ON_NETWORK))
    for name, settings in kinds.items()
]


def write_answers(run, mechanism="histogram", answered=120):
    """Write a release about the queries as the aggregate stage does: how bright an image is decides its class."""
    queries = read_queries(run.folders)
    brightness = np.asarray(queries.images).mean((1, 2, 3))
    labels = (np.argsort(np.argsort(brightness)) * CLASSES // len(brightness)).astype(np.int64)
    given = np.arange(len(labels)) < answered
    table = {"query": np.arange(len(labels)), "answered": given, "label": np.where(given, labels, -1)}
    description = {"mechanism": mechanism, "sigma": 5.0}
    if mechanism == "histogram":
        noisy = 20.0 * np.eye(CLASSES)[labels] + 5 * np.random.default_rng(0).normal(size=(len(labels), CLASSES))
        noisy[~given] = np.nan
        table |= {f"count_{number}": noisy[:, number] for number in range(CLASSES)}
    run.folders.answers.mkdir(parents=True)
    write_table(run.folders.answers / "answers.parquet", pd.DataFrame(table))
    names = [str(number) for number in range(CLASSES)]
    about = {**description, "release_id": "01", "teachers": 20, "class_names": names}
    write_json(run.folders.answers / "manifest.json", about)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A function that returns a run with public images, a backbone and a release, made once for each backbone."""
    made = {}

    def prepare(backbone, tmp_path, mechanism="histogram", **settings):
        values = merge(VALUES, BACKBONES[backbone])
        values = merge(values, {"aggregation": {"mechanism": mechanism}, "student": settings})
        if (backbone, mechanism) not in made:
            root = tmp_path_factory.mktemp(f"{backbone}-{mechanism}")
            plain = {key: value for key, value in values.items() if key != "student"}
            run = Run(root, "small", validate(plain))
            run_through(run, "synthesize", "pretrain")
            write_answers(run, mechanism)
            made[backbone, mechanism] = root
        shutil.copytree(made[backbone, mechanism], tmp_path / "project")
        return Run(tmp_path / "project", "small", validate(values))

    return prepare


@pytest.mark.parametrize(("backbone", "settings"), CASES)
def test_every_kind_is_trained_where_there_is_no_private_zone(prepared, tmp_path, backbone, settings):
    run = prepared(backbone, tmp_path, **settings)
    assert not (run.root / "data" / "private").exists()
    (run.root / "data" / "private").touch()  # reading or writing below it fails
    student.train_student.fn(run)
    own, head, manifest = read_student(run.folders)
    assert manifest["kind"] == settings["kind"]
    assert head.classes == CLASSES
    assert head.features == own.feature_dim
    trained = backbone != "scattering" and settings["kind"] != "linear"
    same = file_digest(run.folders.student / "backbone.safetensors") == file_digest(
        run.folders.backbone / "backbone.safetensors"
    )
    assert same != (trained and manifest["training"]["chosen_step"] > 0)
    assert not list(run.folders.release.glob("student-work-*"))


def test_an_interrupted_stage_goes_on_and_clears_its_work(prepared, tmp_path, monkeypatch):
    from terrine.students import training

    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    options = {"kind": "fixmatch", "threshold": 0.3, "patience": None, **TERM}
    whole = prepared("small_cnn", tmp_path / "whole", **options)
    student.train_student.fn(whole)
    run = prepared("small_cnn", tmp_path / "cut", **options)
    plain, taken = training._Training._take_step, []

    def stop(self):
        if len(taken) == 4:
            raise KeyboardInterrupt
        taken.append(self.step)
        plain(self)

    monkeypatch.setattr(training._Training, "_take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        student.train_student.fn(run)
    assert not run.folders.student.exists()
    assert [path.name for path in student.training_folder(run).iterdir()] == ["training"]
    steps = []
    monkeypatch.setattr(training._Training, "_take_step", lambda self: (steps.append(self.step), plain(self)))
    student.train_student.fn(run)
    assert steps == [4, 5]
    assert not student.training_folder(run).exists()
    for name in ("head.safetensors", "backbone.safetensors"):
        assert (run.folders.student / name).read_bytes() == (whole.folders.student / name).read_bytes()


def test_pretraining_images_are_looked_at_where_no_answers_are_needed(prepared, tmp_path):
    run = prepared("small_cnn", tmp_path, kind="vat", **TERM)
    pool = student.student_pool(run)
    assert len(pool.images) == 160 + 48
    assert sorted(set(pool.sources)) == ["dead_leaves", "gaussian", "stylegan"]
    assert max(len(batch) for batch in pool.batches) <= 40
    np.testing.assert_array_equal(pool.images[:160], read_queries(run.folders).images)
    np.testing.assert_array_equal(pool.images[160:], read_pretraining(run.folders))
    assert len(student.student_pool(Run(run.root, run.name, with_student(run, pool=20))).images) == 180
    assert len(student.student_pool(Run(run.root, run.name, with_student(run, kind="full"))).images) == 160


def with_student(run, **settings):
    return validate(merge_overrides(run.params.model_dump(mode="json"), {"student": settings}))


def test_the_evaluation_is_of_the_students_own_backbone(prepared, tmp_path):
    run = prepared("small_cnn", tmp_path, kind="full", patience=None, learning_rate=0.01, **FAST)
    student.train_student.fn(run)
    dataset.prepare_dataset.fn(run)
    shutil.rmtree(run.folders.backbone)
    evaluate.evaluate_student.fn(run)
    assert run.folders.evaluation.is_relative_to(run.folders.private)
    figures = read_json(run.folders.evaluation)
    own, head, _ = read_student(run.folders)
    test = read_dataset(run.folders)
    from terrine.determinism.randomness import numpy_generator

    order = numpy_generator(0, "evaluation order").permutation(len(test.test_labels))
    features = features_in_batches(own, test.test_images, np.array_split(order, 1), "current")
    expected = (predict(head, features).argmax(1) == test.test_labels).mean()
    assert figures["in_batches"] == {"statistics": "current", "accuracy": pytest.approx(expected, abs=1e-9)}
    assert figures["measures"]["independent"] == "records"


def test_all_figures_are_those_of_the_student_as_served(prepared, tmp_path):
    """In batches its answers are others: they have one accuracy, beside."""
    run = prepared("scattering", tmp_path, kind="linear", l2=0.3)
    student.train_student.fn(run)
    dataset.prepare_dataset.fn(run)
    evaluate.evaluate_student.fn(run)
    test, figures = read_dataset(run.folders), read_json(run.folders.evaluation)
    said = StudentModel.load(run.folders.student).predict(np.asarray(test.test_images)).argmax(axis=1)
    in_batches = evaluate.probabilities(run, test.test_images).argmax(axis=1)
    served, other = ((each == test.test_labels).mean() for each in (said, in_batches))
    assert served != other
    assert figures["accuracy"] == figures["measures"]["accuracy"]["value"] == pytest.approx(served, abs=1e-9)
    assert figures["in_batches"] == {"statistics": "current", "accuracy": pytest.approx(other, abs=1e-9)}
    np.testing.assert_array_equal(np.sum(figures["confusion"], axis=0), np.bincount(said, minlength=10))
    assert right_answers(run, test).mean() == pytest.approx(served, abs=1e-9)  # of which a release would be


def test_test_images_belong_together_where_the_data_have_groups_and_not_where_they_have_names(prepared, tmp_path):
    run = prepared("small_cnn", tmp_path)
    dataset.prepare_dataset.fn(run)
    test = read_dataset(run.folders)
    assert test.test_groups is None
    np.testing.assert_array_equal(test.test_units, test.test_names)
    grouped = replace(test, test_groups=test.test_names // 2)
    np.testing.assert_array_equal(grouped.test_units, grouped.test_groups)


def test_what_is_released_of_the_accuracy_is_found_image_by_image_whatever_its_company(prepared, tmp_path):
    """Under current statistics one image more would move the answers to others, and so more than one unit's share."""
    run = prepared("small_cnn", tmp_path, kind="linear", l2=0.3)
    assert run.params.student.statistics == "current"
    student.train_student.fn(run)
    dataset.prepare_dataset.fn(run)
    test = read_dataset(run.folders)
    right = right_answers(run, test)
    for some in (np.arange(7), np.arange(40, 5, -1)):
        fewer = replace(test, test_images=test.test_images[some], test_labels=test.test_labels[some])
        np.testing.assert_array_equal(right_answers(run, fewer), right[some])


def test_a_student_whose_file_was_changed_by_a_byte_is_refused(prepared, tmp_path):
    run = prepared("scattering", tmp_path, kind="linear", l2=0.3)
    student.train_student.fn(run)
    for name in ("head.safetensors", "backbone.safetensors"):
        path = run.folders.student / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.unlink()  # the backbone's is a link: its public twin must stay as it is
        path.write_bytes(bytes(content))
        with pytest.raises(ArtefactError, match=name):
            read_student(run.folders)
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    read_student(run.folders)


def test_labels_are_corrected_as_the_parameters_say(prepared, tmp_path):
    run = prepared("scattering", tmp_path, mechanism="gnmax", kind="linear", l2=0.3, forward_correction=True)
    rows, answers, _ = student.read_answers(run)
    assert len(rows) == 120
    np.testing.assert_allclose(answers.described["forward_correction"], transition_matrix(5.0, 20, 10), atol=1e-11)
    student.train_student.fn(run)
    table = read_table(run.folders.answers / "answers.parquet")
    own, head, _ = read_student(run.folders)
    features = features_in_batches(
        own, *(getattr(read_queries(run.folders), name) for name in ("images", "batches")), "current"
    )
    right = predict(head, features[rows]).argmax(1) == table["label"].to_numpy()[rows]
    assert right.mean() > 0.6


def test_a_release_without_answers_teaches_nothing_and_says_so(prepared, tmp_path):
    run = prepared("scattering", tmp_path, kind="linear")
    table = read_table(run.folders.answers / "answers.parquet")
    write_table(run.folders.answers / "answers.parquet", table.assign(answered=False))
    with pytest.raises(InputError, match="No query was answered"):
        student.train_student.fn(run)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"student": {"kind": "full"}}, "no weights to train"),
        ({"student": {"kind": "fixmatch", "trainable": 50}}, "trainable=50"),
        ({"student": {"kind": "linear", "views": 30}}, "views=30 has no meaning"),
        ({"student": {"forward_correction": True}}, "mechanism=histogram"),
        ({"student": {"kind": "full", "trainable": 5}, **NETWORK}, "trainable=5 has no meaning for kind=full"),
        ({"student": {"kind": "fixmatch", "threshold": 1.2}}, "student.threshold"),
    ],
)
def test_impossible_students_are_refused_before_any_budget_is_spent(settings, words):
    with pytest.raises(SettingError, match=words):
        validate(merge(merge(VALUES, SCATTERING), settings))
