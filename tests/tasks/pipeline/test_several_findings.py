"""Runs on drawn images with three findings, through the real stages, from the data to the command that predicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.stages import run_through
from tasks.artefacts.records import read_dataset
from tasks.artefacts.released import read_answers, read_student
from tasks.artefacts.teachers import read_votes
from tasks.auditing.canaries import _check_auditable, audit_canaries
from tasks.auditing.mechanisms import audit
from tasks.auditing.membership import audit_student
from tasks.auditing.neighbours import _chosen
from tasks.config.params import merge_overrides, validate
from tasks.pipeline.evaluate import findings_figures
from tasks.pipeline.report import write_report
from tasks.reports.summary import result
from tasks.runtime.run import Run
from tasks.runtime.store import read_array, read_json, read_table
from terrine.deployment.export import export_student
from terrine.deployment.model import StudentModel
from terrine.errors import SettingError
from terrine.heads import FindingsHead
from terrine.privacy.accounting.events import counts, from_json, threshold_test, vote_answer
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.statement import read_statement
from tests.command_line import terrine
from tests.drawn_findings import FINDINGS, VALUES, draw, write


def run_of(root: Path, **sections: Any) -> Run:
    images, labels = draw(1000)
    write(root / "drawn.npz", images, labels, test=100)
    return Run(root, "drawn", validate(merge_overrides(VALUES, sections)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with noisy histograms, and a bound of one finding, up to its evaluation."""
    run = run_of(tmp_path_factory.mktemp("drawn"), aggregation={"findings_bound": 1})
    run_through(run, "dataset", "evaluate")
    return run


def test_every_question_is_answered_and_charged_for_as_many_as_one_unit_moves(made: Run) -> None:
    votes, answers = read_votes(made.folders), read_table(made.folders.answers / "answers.parquet")
    assert votes.shape == (180, 90)
    assert votes.reshape(60, 3, 90).sum(axis=1).max() == 1
    assert answers["query"].tolist() == np.repeat(np.arange(60), 3).tolist()
    assert answers["finding"].tolist() == [0, 1, 2] * 60
    statement = read_statement(made.folders.statement)
    assert counts(from_json(statement["event"])) == {vote_answer(5.0): 120}
    assert (statement["mechanism"]["findings"], statement["mechanism"]["findings_bound"]) == (3, 1)
    assert statement["answered"] == 180
    assert statement["answered_per_class"] == [int((answers["label"] == n).sum()) for n in (0, 1)]
    noisy = answers[["count_0", "count_1"]].to_numpy()
    truth = read_array(made.folders.accounting / "histograms.npy")
    np.testing.assert_array_equal(truth[:, 1], votes.sum(axis=1))
    assert np.std(noisy - truth) == pytest.approx(5.0, rel=0.15)


def test_plots_count_answers_by_no_and_yes_and_end_at_the_price_of_all(made: Run) -> None:
    statement = read_statement(made.folders.statement)
    _, *rows = (made.folders.plots / "classes.csv").read_text().splitlines()
    assert rows == [f"{name},{n}" for name, n in zip(("no", "yes"), statement["answered_per_class"], strict=True)]
    answered, epsilon = (made.folders.plots / "spending.csv").read_text().splitlines()[-1].split(",")
    assert (int(answered), float(epsilon)) == (180, pytest.approx(statement["epsilon"], abs=1e-4))


def test_the_student_tells_each_finding_by_itself(made: Run) -> None:
    _, head, manifest = read_student(made.folders)
    assert isinstance(head, FindingsHead)
    assert manifest["class_names"] == list(FINDINGS)
    evaluation = read_json(made.folders.evaluation)
    assert [entry["class"] for entry in evaluation["per_class"]] == list(FINDINGS)
    assert evaluation["auc"] > 0.75
    rows, answers, _ = read_answers(made)
    assert rows.tolist() == list(range(60))
    assert answers.targets.shape == (60, 3, 2)


def test_predict_serve_and_export_give_a_score_for_every_finding(made: Run, tmp_path: Path) -> None:
    images, labels = draw(40, seed=5)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:02d}.png")
    command = ["predict", str(folder), "--folder", str(made.folders.student)]
    told = json.loads(terrine(*command, "--json"))
    scores = np.array([[entry[f"probability of {name}"] for name in FINDINGS] for entry in told])
    assert findings_figures(labels, scores, list(FINDINGS))["auc"] > 0.7
    assert (scores.sum(axis=1) > 1.01).any()
    plain = terrine(*command)
    assert all(plain.count(name) == 40 for name in FINDINGS)
    header, first = terrine(*command, "--csv").splitlines()[:2]
    assert header == "image,class,probability," + ",".join(f"probability of {name}" for name in FINDINGS)
    assert first.split(",")[3:] == [f"{score:.6f}" for score in scores[0]]
    model = StudentModel.load(made.folders.student)
    assert model.label(np.array([0.9, 0.2, 0.6])) == "upper left; lower left"
    assert model.label(np.array([0.1, 0.2, 0.3])) == ""
    assert export_student(model, [tmp_path / "student.pt2"], images[:, None])[0] < 1e-4


def test_the_report_and_the_summary_show_the_area_of_every_finding(made: Run) -> None:
    (made.root / "experiments").mkdir()
    (made.root / "experiments" / "drawn.yaml").write_text("description: drawn findings\n")
    (made.root / "dvc.lock").touch()
    write_report.fn(made)
    page = made.folders.report.read_text()
    assert "Area under the ROC curve by finding" in page
    assert "Confusion matrix" not in page
    assert all(name in page for name in FINDINGS)
    assert "area under the ROC curve, mean over findings" in result(made).plain


@pytest.mark.parametrize(
    ("sections", "enough"),
    [
        ({"aggregation": {"mechanism": "gnmax"}, "student": {"forward_correction": True}}, 0.65),
        ({"aggregation": {"mechanism": "moments"}, "student": {"kind": "sums"}}, 0.85),
        ({"aggregation": {"mechanism": "gradients"}, "student": {"kind": "sums"}}, 0.85),
    ],
    ids=["gnmax", "moments", "gradients"],
)
def test_other_mechanisms_answer_about_findings_too(tmp_path: Path, sections: Any, enough: float) -> None:
    run = run_of(tmp_path, **sections)
    run_through(run, "dataset", "evaluate")
    assert read_json(run.folders.evaluation)["auc"] > enough
    assert read_statement(run.folders.statement)["mechanism"]["findings"] == 3


@pytest.mark.parametrize("mechanism", ["moments", "gradients"])
def test_canaries_are_planted_in_sums_about_findings_too(tmp_path: Path, mechanism: str) -> None:
    run = run_of(tmp_path, aggregation={"mechanism": mechanism}, student={"kind": "sums"})
    run_through(run, "dataset", "pretrain")
    found = audit_canaries(run, run_through, 200)
    assert not found["caught"]
    assert 0.75 < found["moved"] <= 1
    assert found["epsilon_at_least"] < found["epsilon_charged"]
    assert found["epsilon_without_noise"] > 3


def test_confident_charges_the_tests_and_answers_that_one_unit_moves(tmp_path: Path) -> None:
    confident = {"mechanism": "confident", "threshold": 70, "sigma1": 5, "sigma2": 5, "findings_bound": 1}
    run = run_of(tmp_path, aggregation=confident)
    run_through(run, "dataset", "evaluate")
    answered = read_table(run.folders.answers / "answers.parquet")["answered"].to_numpy().reshape(60, 3)
    statement = read_statement(run.folders.statement)
    found = counts(from_json(statement["event"]))
    assert 0 < answered.sum() < 180
    assert found == {threshold_test(5.0): 120, vote_answer(5.0): np.minimum(answered.sum(axis=1), 2).sum()}


def test_attacks_that_are_made_for_classes_say_so(made: Run) -> None:
    for attack in (
        lambda: audit(made.params.aggregation, noise=ReplayNoise(0)),
        lambda: audit_student(made, lambda run: None),
        lambda: _check_auditable(made, 1),
        lambda: _chosen(made, read_dataset(made.folders), np.arange(300), 2),
    ):
        with pytest.raises(SettingError, match="several findings"):
            attack()


def test_figures_of_findings_are_those_of_loops_over_pairs_of_images() -> None:
    generator = np.random.default_rng(0)
    labels, said = generator.integers(0, 2, (30, 3)), np.round(generator.random((30, 3)), 1)
    labels[:, 2] = 0
    found: Any = findings_figures(labels, said, ["a", "b", "c"])
    for number, entry in enumerate(found["per_class"][:2]):
        there, absent = said[labels[:, number] == 1, number], said[labels[:, number] == 0, number]
        wins = [(one > other) + (one == other) / 2 for one in there for other in absent]
        assert entry["auc"] == pytest.approx(np.mean(wins))
        assert entry["accuracy"] == pytest.approx(np.mean((said[:, number] > 0.5) == labels[:, number]))
        assert entry["sensitivity"] == pytest.approx(np.mean(there > 0.5))
        assert entry["specificity"] == pytest.approx(np.mean(absent <= 0.5))
        assert entry["count"] == len(there)
    assert found["per_class"][2]["auc"] is None
    assert found["per_class"][2]["sensitivity"] is None
    assert found["auc"] == pytest.approx(np.mean([entry["auc"] for entry in found["per_class"][:2]]))
