"""Runs on drawn images with ages or grades, through the real stages, to the command that predicts numbers."""

import hashlib
import json
from pathlib import Path
from typing import Any

import medmnist
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from flows.stages import run_through
from tasks.config.params import merge_overrides, validate
from tasks.pipeline.evaluate import evaluate_student, order_figures
from tasks.pipeline.report import write_report
from tasks.reports.accuracy import OF_ORDER, known_accuracy, released_accuracy, released_error
from tasks.reports.summary import for_anybody, result
from tasks.runtime.run import Run
from tasks.runtime.store import read_json, read_table, write_json
from tasks.runtime.task import task_from
from tasks.serving.service import build_app
from tasks.tools.check import inspect_run
from terrine.data.ordered import Scale
from terrine.deployment.model import scale_of
from terrine.errors import ArtefactError, SettingError
from terrine.privacy.accounting.events import counts, from_json, vote_answer
from terrine.privacy.statement import read_statement
from tests.command_line import terrine

EDGES = [0.0, 20.0, 40.0, 60.0, 80.0]
SIDE = 8
VALUES: dict[str, Any] = {
    "data": {"name": "npz", "path": "drawn.npz", "size": SIDE, "bins": EDGES, "pool": "test", "pool_fraction": 0.4},
    "partition": {"teachers": 90},
    "queries": {"count": 80, "batch": 40, "sources": {"pool": 1}},
    "backbone": {"projection": 40},
    "teachers": {"statistics": "original"},
    "student": {"statistics": "original"},
    "aggregation": {"mechanism": "histogram", "sigma": 5, "epsilon": 30},
    "evaluation": {"epsilon": 4},
    "ledger": {"account": "drawn", "epsilon": 1000},
}


def draw(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 [count, 8, 8], that have the more contrast the older, and ages from 0 to 80."""
    generator = np.random.default_rng(seed)
    ages = generator.uniform(0, 80, count).round(2)
    images = 128 + generator.normal(0, 1, (count, SIDE, SIDE)) * (2 + 0.6 * ages[:, None, None])
    return np.clip(images, 0, 255).astype(np.uint8), ages


def run_of(root: Path, labels: Any = None, **sections: Any) -> Run:
    images, ages = draw(1100)
    labels = ages if labels is None else labels(ages)
    np.savez(
        root / "drawn.npz",
        train_images=images[300:],
        train_labels=labels[300:],
        test_images=images[:300],
        test_labels=labels[:300],
    )
    return Run(root, "drawn", validate(merge_overrides(VALUES, sections)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_of(tmp_path_factory.mktemp("drawn"))
    run_through(run, "dataset", "evaluate")
    return run


def labels_released(run: Run) -> np.ndarray:
    return np.asarray(read_table(run.folders.answers / "answers.parquet")["label"])


def test_the_student_is_far_better_than_the_median_and_its_error_is_released_at_its_price(made: Run) -> None:
    found = read_json(made.folders.evaluation)["order"]
    error = found["mean_absolute_error"]
    assert error["value"] < 0.6 * found["error_of_the_median"]
    assert error["low"] < error["value"] < error["high"]
    assert found["spearman"]["value"] > 0.7
    released = released_error(made.folders)
    assert released is not None
    assert released_accuracy(made.folders) is None
    assert (released["largest_error"], released["accuracy"], released["epsilon"]) == (80.0, None, 4)
    assert abs(released["mean_absolute_error"] - error["value"]) < 2 * released["plus_minus"] + 1
    assert 0 < released["plus_minus"] < 4
    assert "mean absolute error is" in released["summary"]
    assert known_accuracy(made) == {
        "error_released": released["mean_absolute_error"],
        "error_released_plus_minus": released["plus_minus"],
    }


def test_the_statement_says_edges_and_costs_what_classes_cost(made: Run) -> None:
    statement = read_statement(made.folders.statement)
    assert statement["mechanism"]["bins"] == EDGES
    assert counts(from_json(statement["event"])) == {vote_answer(5.0): 80}
    assert statement["answered_per_class"] == np.bincount(labels_released(made), minlength=4).tolist()


def test_predict_serve_mlflow_and_export_say_the_number(made: Run, tmp_path: Path) -> None:
    images, ages = draw(60, seed=5)
    (tmp_path / "photos").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "photos" / f"{number:02d}.png")
    command = ["predict", str(tmp_path / "photos"), "--folder", str(made.folders.student)]
    told = json.loads(terrine(*command, "--json"))
    said = np.array([entry["number"] for entry in told])
    assert np.abs(said - ages).mean() < 12
    for entry in told:
        low, high = map(float, entry["class"].split(" to "))
        assert low <= entry["number"] <= high
        assert entry["probability"] == entry[f"probability of {entry['class']}"]
    header, first = terrine(*command, "--csv").splitlines()[:2]
    assert header.startswith("image,number,class,probability,probability of 0 to 20")
    assert float(first.split(",")[1]) == pytest.approx(said[0], rel=1e-4)
    assert f"{said[0]:.4g}" in terrine(*command)
    service, model = build_app(made.folders.student)
    client, photo = TestClient(service), (tmp_path / "photos" / "00.png").read_bytes()
    answer = client.post("/images", content=photo, headers={"content-type": "image/png"}).json()
    assert answer["numbers"] == pytest.approx(said[:1])
    assert answer["labels"] == [told[0]["class"]]
    assert client.get("/model").json()["scale"] == {"edges": EDGES}
    queried: dict[str, Any] = {"inputs": (images[:2, None] / 255).tolist()}
    answers = client.post("/invocations", json=queried).json()["predictions"]
    assert [answer["number"] for answer in answers] == pytest.approx(said[:2], rel=1e-4)
    assert answers[0]["class"] == told[0]["class"]
    for edges in ([0, 1], [0, 3, 2, 5, 6], "none", [0, 1, 2, 3, None]):
        with pytest.raises(ArtefactError, match="what order its classes have"):
            scale_of({"class_names": model.class_names, "scale": {"edges": edges}})


def test_numbers_of_a_table_are_learned_evaluated_released_and_told_of_new_rows(tmp_path: Path) -> None:
    def rows(count: int, seed: int) -> tuple[str, np.ndarray]:
        generator = np.random.default_rng(seed)
        ages = generator.uniform(0, 80, count).round(1)
        cells = np.stack([ages + generator.normal(0, 6, count), generator.normal(0, 1, count)], 1).round(2)
        lines = [f"{bone},{noise},{age}" for (bone, noise), age in zip(cells, ages, strict=True)]
        return "\n".join(["bone,noise,age", *lines]) + "\n", ages

    (tmp_path / "rows.csv").write_text(rows(2000, 0)[0])
    data = {"name": "table", "path": "rows.csv", "target": "age", "bins": EDGES, "public_fraction": 0.1}
    values = {**VALUES, "data": data, "queries": {"count": 150, "batch": 50}, "backbone": {"kind": "columns"}}
    run = Run(tmp_path, "drawn", validate(values))
    run_through(run, "dataset", "evaluate")
    order = read_json(run.folders.evaluation)["order"]
    assert order["of"] == "numbers"
    assert order["mean_absolute_error"]["value"] < 0.6 * order["error_of_the_median"]
    assert read_statement(run.folders.statement)["mechanism"]["bins"] == EDGES
    released = released_error(run.folders)
    assert released is not None
    assert abs(released["mean_absolute_error"] - order["mean_absolute_error"]["value"]) < 2 * released["plus_minus"] + 1
    text, ages = rows(60, 5)
    (tmp_path / "new.csv").write_text(text)
    command = ["predict", str(tmp_path / "new.csv"), "--folder", str(run.folders.student)]
    told = json.loads(terrine(*command, "--json"))
    assert np.abs(np.array([entry["number"] for entry in told]) - ages).mean() < 14
    for entry in told:
        low, high = map(float, entry["class"].split(" to "))
        assert low <= entry["number"] <= high
    assert f"{told[0]['number']:.4g}" in terrine(*command)


def test_the_report_and_the_summary_show_the_error(made: Run) -> None:
    (made.root / "experiments").mkdir()
    (made.root / "experiments" / "drawn.yaml").write_text("description: drawn ages\n")
    (made.root / "dvc.lock").touch()
    write_report.fn(made)
    page = made.folders.report.read_text()
    assert all(text in page for text in ("Errors of ordered classes", "weighted kappa", "mean absolute error is"))
    assert "mean absolute error of numbers" in result(made).plain
    assert "mean absolute error released" in for_anybody(made)


def test_grades_are_judged_by_how_far_a_wrong_one_is_off_and_release_an_accuracy(tmp_path: Path) -> None:
    def grades(ages: np.ndarray) -> np.ndarray:
        return np.array(["none", "mild", "severe"])[(ages > 30).astype(int) + (ages > 60)]

    own = {"data": {"bins": [], "grades": ["none", "mild", "severe"]}, "aggregation": {"mechanism": "gnmax"}}
    run = run_of(tmp_path, grades, **own)
    run_through(run, "dataset", "evaluate")
    found = read_json(run.folders.evaluation)
    order = found["order"]
    assert order["of"] == "grades"
    assert order["mean_absolute_error"]["value"] < 0.75 * order["error_of_the_median"]
    assert order["within_one"]["value"] >= found["accuracy"] == found["measures"]["accuracy"]["value"]
    assert released_accuracy(run.folders) is not None
    assert released_error(run.folders) is None
    assert read_statement(run.folders.statement)["mechanism"]["grades"] == 3
    evaluate_student.fn(run)
    assert read_json(run.folders.evaluation) == found


def test_an_empty_bin_is_a_note_of_the_check_and_not_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    run_of(tmp_path)
    values = merge_overrides(VALUES, {"data": {"bins": [*EDGES, 120.0]}})
    (tmp_path / "experiments" / "drawn.yaml").write_text(json.dumps(values))
    (tmp_path / "params.yaml").write_text("run: drawn\n")
    found = inspect_run(tmp_path, "drawn")
    assert found.refusals == []
    assert any("At most one training record has '80 to 120'" in note for note in found.notes)


def test_figures_of_an_order_are_known_of_public_benchmarks_and_edges_are_part_of_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": "retinamnist", "grades": [0, 1, 2, 3, 4], "root": str(tmp_path), "download": False}
    run = Run(tmp_path, "retina", validate({"data": data}))
    generator = np.random.default_rng(0)
    arrays = {f"{split}_images": generator.integers(0, 255, (9, 28, 28, 3), np.uint8) for split in ("train", "test")}
    labels = {f"{split}_labels": np.arange(9)[:, None] % 4 for split in ("train", "test")}
    np.savez(file := tmp_path / "retinamnist.npz", **arrays, **labels)
    published = hashlib.md5(file.read_bytes()).hexdigest()
    monkeypatch.setitem(medmnist.INFO, "retinamnist", medmnist.INFO["retinamnist"] | {"MD5": published})
    dataset = run.params.data.load(tmp_path)
    assert (dataset.scale, dataset.test_numbers) == (Scale.from_settings(grades="01234"), None)
    assert dataset.test_labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    figures = order_figures(dataset, dataset.scale, np.eye(5)[[0, 1, 2, 4, 0, 1, 2, 3, 0]], None)
    write_json(run.folders.evaluation, {"accuracy": 8 / 9, "order": figures})
    known = known_accuracy(run)
    assert known["mean_absolute_error"] == pytest.approx(1 / 9)
    assert known.keys() == {"accuracy", *OF_ORDER}
    task = task_from(validate(VALUES).data, ["a", "b"], declared=True)
    assert (task.kind, task.edges) == ("bins", tuple(EDGES))
    assert task.identity()["edges"] == EDGES


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"transcription": {"annotation": {"sigma": 3}}, "evaluation": {"epsilon": None}}, "not supported by trans"),
        ({"aggregation": {"where": "parties"}, "privacy": {"units": 9}}, "not supported by aggregation.where=parties"),
        ({"evaluation": {"subgroups": "a.csv", "released_subgroups": {"sex": ["f", "m"]}}}, "accuracies of classes"),
    ],
)
def test_what_means_nothing_with_an_order_is_refused_in_a_sentence(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said) as refused:
        validate(merge_overrides(VALUES, sections))
    assert "\n" not in str(refused.value)
