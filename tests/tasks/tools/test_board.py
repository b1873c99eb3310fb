"""`terrine board`: what it finds, what it measures, and that it goes on where it was killed."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from flows.cli import app
from tasks.tools import board as boards
from tasks.tools.board import METHODS, available, board, student_of_votes
from terrine.data.dataset import Dataset
from terrine.errors import InputError
from terrine.planning import Plan
from terrine.privacy.accounting.gaussian import mu_of, mu_squared


@pytest.fixture
def features(tmp_path, monkeypatch):
    """Three classes of vectors instead of images, kept where the board keeps features; returns how often it asked."""
    generator, asked = np.random.default_rng(0), []
    centres = generator.normal(size=(3, 6))

    def rows(count):
        labels = generator.integers(3, size=count)
        return (centres[labels] + 0.4 * generator.normal(size=(count, 6))).astype(np.float32), labels

    (train, labels), (test, test_labels), (queries, _) = rows(1200), rows(150), rows(300)
    kept = {"train": train, "labels": labels, "test": test, "test_labels": test_labels, "queries": queries}

    def known(load, backbone, path, mean):
        asked.append((path.name, backbone.deformations.rotation))
        return kept

    monkeypatch.setattr(boards, "kept_features", known)
    monkeypatch.setattr(boards.dp_sgd, "noise_for", lambda *about: (12.0, 0.995 * about[0]))
    (tmp_path / "sets" / "medmnist").mkdir(parents=True)
    for place in ("medmnist/bloodmnist.npz", "pneumoniamnist.npz"):
        (tmp_path / "sets" / place).touch()
    return asked


def test_sets_are_found_in_either_place_and_missing_ones_are_named_with_where_they_were_looked_for(tmp_path, features):
    there, missing = available(tmp_path / "sets")
    assert there == ["bloodmnist", "pneumoniamnist"]
    assert str(tmp_path / "sets" / "medmnist" / "octmnist.npz") in missing["octmnist"]
    assert "several labels" in missing["chestmnist"]
    with pytest.raises(InputError, match="no row for 'octmnist': neither"):
        board(tmp_path / "sets", tmp_path / "work", sets=["octmnist"])
    with pytest.raises(InputError, match="None of MedMNIST's sets"):
        board(tmp_path / "nowhere", tmp_path / "work")
    with pytest.raises(InputError, match="no method 'magic'"):
        board(tmp_path / "sets", tmp_path / "work", methods=["magic"])


def test_every_method_has_a_row_at_no_more_than_its_exact_price_and_more_budget_helps(tmp_path, features):
    rows = board(tmp_path / "sets", tmp_path / "work", sets=["pneumoniamnist"], epsilons=[0.5, 8.0], seeds=2)
    assert [row["method"] for row in rows] == [name for name in METHODS[:-1] for _ in range(2)] + ["no privacy"]
    for few, many in zip(rows[0:-1:2], rows[1:-1:2], strict=True):
        assert 0.49 < few["epsilon"] <= 0.5
        assert 7.9 < many["epsilon"] <= 8.0
        assert many["accuracy"]["mean"] >= few["accuracy"]["mean"] - 0.02
        assert many["auc"]["mean"] > 0.8
    assert rows[-1]["epsilon"] is None
    assert rows[-1]["accuracy"]["mean"] > 0.9
    written = json.loads((tmp_path / "work" / "board.json").read_text())
    assert written["rows"] == rows
    assert written["notice"].startswith("NOT PRIVATE")
    assert "| pneumoniamnist | 1,200 | votes | 0.5000 |" in (tmp_path / "work" / "board.md").read_text()


def test_a_board_that_was_killed_measures_only_what_is_missing(tmp_path, features, monkeypatch):
    options = {"methods": ["moments", "gradients"], "epsilons": [3.0], "seeds": 2}
    measured, figures = [], boards.Contest.figures

    def once(contest, method, epsilon, seed):
        if len(measured) == 5:
            raise KeyboardInterrupt
        measured.append((contest.name, method, seed))
        return figures(contest, method, epsilon, seed)

    monkeypatch.setattr(boards.Contest, "figures", once)
    with pytest.raises(KeyboardInterrupt):
        board(tmp_path / "sets", tmp_path / "work", **options)
    assert len(json.loads((tmp_path / "work" / "board.json").read_text())["rows"]) == 2
    before = list(measured)
    measured.clear()
    rows = board(tmp_path / "sets", tmp_path / "work", **options)
    assert not set(before) & set(measured)
    assert len(rows) == 4
    assert dict(features) == {"features bloodmnist 100.npz": 180, "features pneumoniamnist 100.npz": 30}


def test_what_votes_and_sums_cost_holds_the_moments_that_all_read(tmp_path, features):
    """By hand: the budget of both is μ² of the moments and of what is left."""
    contest = boards.medmnist_contest("pneumoniamnist", tmp_path, tmp_path)
    assert mu_squared(contest.mean.event) == pytest.approx(0.05 * mu_of(1.0, 1e-5) ** 2, rel=1e-3)
    planned, _ = contest.voted(3.0)
    spent = 2 * planned.queries / planned.sigma**2 + mu_squared(contest.mean.event)
    assert spent == pytest.approx(mu_of(3.0, 1e-5) ** 2, rel=1e-3)


def test_a_student_of_votes_learns_less_from_more_noise(features, tmp_path):
    contest = boards.medmnist_contest("pneumoniamnist", tmp_path, tmp_path)
    kept = contest.kept
    student = student_of_votes(kept, np.arange(1200) % 60, 3)
    right = [
        (
            boards.predict(student(Plan(60, sigma, 300, 0.0, 0.0, 0), 1), kept["test"]).argmax(1) == kept["test_labels"]
        ).mean()
        for sigma in (1.0, 2000.0)
    ]
    assert right[0] > 0.9 > right[1] + 0.2


def test_the_command_prints_the_table_and_says_that_nothing_of_it_is_private(tmp_path, features):
    options = ["--root", str(tmp_path / "sets"), "--work", str(tmp_path / "work"), "--epsilon", "3", "--seeds", "1"]
    found = CliRunner().invoke(app, ["board", "medmnist", *options, "--method", "gradients"], env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.output
    for text in ("No row for octmnist: neither", "2/2 pneumoniamnist", "gradients", "NOT PRIVATE", "board.md"):
        assert text in found.output


def test_images_of_a_set_are_read_without_its_validation_split(tmp_path, monkeypatch):
    asked = {}

    def load(name, **settings):
        asked.update(settings, name=name)
        return Dataset(name, *[np.zeros(1)] * 2, None, *[np.zeros(1)] * 2, ("a", "b"))

    monkeypatch.setattr(boards, "load_dataset", load)
    boards.medmnist_contest("bloodmnist", tmp_path, tmp_path).load()
    assert (asked["validation"], asked["channels"], asked["download"]) == ("drop", 3, False)
