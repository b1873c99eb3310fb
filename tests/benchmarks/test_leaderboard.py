"""The leaderboard: available sets, costs and accuracies of the methods, and resumption after a kill."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from benchmarks import features as shared
from benchmarks import leaderboard as module
from benchmarks.leaderboard import METHODS, Entry, available, leaderboard, main, student_of_votes
from terrine.data.dataset import Dataset
from terrine.errors import InputError
from terrine.planning import Plan
from terrine.privacy.accounting.gaussian import mu_of, mu_squared


@pytest.fixture
def features(tmp_path, monkeypatch):
    """Three classes of vectors instead of images, cached as the leaderboard caches features; returns its requests."""
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

    monkeypatch.setattr(module, "kept_features", known)
    monkeypatch.setattr(module.dp_sgd, "noise_for", lambda *about: (12.0, 0.995 * about[0]))
    (tmp_path / "sets" / "medmnist").mkdir(parents=True)
    for place in ("medmnist/bloodmnist.npz", "pneumoniamnist.npz"):
        (tmp_path / "sets" / place).touch()
    return asked


def test_sets_are_found_in_either_place_and_missing_ones_are_named_with_where_they_were_looked_for(
    tmp_path, features, capsys
):
    there, missing = available(tmp_path / "sets")
    assert there == ["bloodmnist", "pneumoniamnist"]
    assert str(tmp_path / "sets" / "medmnist" / "octmnist.npz") in missing["octmnist"]
    assert "several labels" in missing["chestmnist"]
    with pytest.raises(InputError, match="no row for 'octmnist': neither"):
        leaderboard(tmp_path / "sets", tmp_path / "work", sets=["octmnist"])
    with pytest.raises(InputError, match="None of MedMNIST's sets"):
        leaderboard(tmp_path / "nowhere", tmp_path / "work")
    with pytest.raises(SystemExit):
        main(["--method", "magic"])
    assert "invalid choice: 'magic'" in capsys.readouterr().err


def test_every_method_has_a_row_at_no_more_than_its_exact_price_and_more_budget_helps(tmp_path, features):
    rows = leaderboard(tmp_path / "sets", tmp_path / "work", sets=["pneumoniamnist"], epsilons=[0.5, 8.0], seeds=2)
    assert [row["method"] for row in rows] == [name for name in METHODS[:-1] for _ in range(2)] + ["no privacy"]
    for few, many in zip(rows[0:-1:2], rows[1:-1:2], strict=True):
        assert 0.49 < few["epsilon"] <= 0.5
        assert 7.9 < many["epsilon"] <= 8.0
        assert np.mean(many["accuracy"]) >= np.mean(few["accuracy"]) - 0.02
        assert np.mean(many["auc"]) > 0.8
    assert rows[-1]["epsilon"] is None
    assert np.mean(rows[-1]["accuracy"]) > 0.9
    written = json.loads((tmp_path / "work" / "leaderboard.json").read_text())
    assert written["rows"] == rows
    assert written["notice"].startswith("NOT PRIVATE")
    assert "| pneumoniamnist | 1,200 | votes | 0.5000 | 0.5000 |" in (tmp_path / "work" / "leaderboard.md").read_text()


def test_a_leaderboard_that_was_killed_measures_only_what_is_missing(tmp_path, features, monkeypatch):
    options = {"methods": ["moments", "gradients"], "epsilons": [3.0], "seeds": 2}
    measured, figures = [], Entry.figures

    def once(entry, method, epsilon, seed):
        if len(measured) == 5:
            raise KeyboardInterrupt
        measured.append((entry.name, method, seed))
        return figures(entry, method, epsilon, seed)

    monkeypatch.setattr(Entry, "figures", once)
    with pytest.raises(SystemExit):
        leaderboard(tmp_path / "sets", tmp_path / "work", **options)
    assert len(json.loads((tmp_path / "work" / "leaderboard.json").read_text())["rows"]) == 2
    before = list(measured)
    measured.clear()
    rows = leaderboard(tmp_path / "sets", tmp_path / "work", **options)
    assert not set(before) & set(measured)
    assert len(rows) == 4
    assert dict(features) == {"features bloodmnist 100.npz": 180, "features pneumoniamnist 100.npz": 30}


def test_what_votes_and_sums_cost_holds_the_moments_that_all_read(tmp_path, features):
    """By hand: the budget of both is μ² of the moments and of what is left."""
    entry = Entry("pneumoniamnist", tmp_path, tmp_path)
    assert mu_squared(entry.mean.event) == pytest.approx(0.05 * mu_of(1.0, 1e-5) ** 2, rel=1e-3)
    planned, _ = entry.voted(3.0)
    spent = 2 * planned.queries / planned.sigma**2 + mu_squared(entry.mean.event)
    assert spent == pytest.approx(mu_of(3.0, 1e-5) ** 2, rel=1e-3)


def test_a_student_of_votes_learns_less_from_more_noise(features, tmp_path):
    entry = Entry("pneumoniamnist", tmp_path, tmp_path)
    kept = entry.kept
    student = student_of_votes(kept, np.arange(1200) % 60, 3)
    right = [
        (
            module.predict(student(Plan(60, sigma, 300, 0.0, 0.0, 0), 1), kept["test"]).argmax(1) == kept["test_labels"]
        ).mean()
        for sigma in (1.0, 2000.0)
    ]
    assert right[0] > 0.9 > right[1] + 0.2


def test_the_command_prints_the_table_and_says_that_nothing_of_it_is_private(tmp_path, features, capsys):
    options = ["--root", str(tmp_path / "sets"), "--work", str(tmp_path / "work"), "--epsilon", "3", "--seeds", "1"]
    main([*options, "--method", "gradients"])
    printed = capsys.readouterr().out
    for text in ("No row for octmnist: neither", "2/2 pneumoniamnist", "gradients", "NOT PRIVATE", "leaderboard.md"):
        assert text in printed


def test_images_of_a_set_are_read_without_its_validation_split(tmp_path, monkeypatch):
    asked = {}

    def load(name, **settings):
        asked.update(settings, name=name)
        return Dataset(name, *[np.zeros(1)] * 2, None, *[np.zeros(1)] * 2, ("a", "b"))

    monkeypatch.setattr(module, "load_dataset", load)
    Entry("bloodmnist", tmp_path, tmp_path).load()
    assert (asked["validation"], asked["channels"], asked["download"]) == ("drop", 3, False)


def chest_x_rays(folder, generator):
    """Write a stand-in for CheXpert: its folders and tables, with brighter images for one finding."""
    for split, count in (("train", 60), ("valid", 24)):
        rows = []
        for number in range(count):
            path = f"CheXpert-v1.0-small/{split}/patient{number:05}/study1/view1_frontal.jpg"
            own = {finding: generator.choice(["1.0", "0.0", "-1.0", ""]) for finding in module.FINDINGS}
            own["Edema"] = str(float(number % 2))
            image = generator.integers(0, 128, (40, 48)) + 100 * (number % 2)
            place = folder / path.partition("/")[2]
            place.parent.mkdir(parents=True)
            Image.fromarray(image.astype(np.uint8)).save(place)
            rows.append({"Path": path, "Sex": "Female", "No Finding": "", **own})
        pd.DataFrame(rows).to_csv(folder / f"{split}.csv", index=False)


def retinas(folder, generator):
    """Write a stand-in for EyePACS: photographs, grades, and the solution of the competition."""
    for split, table, count in (("train", "trainLabels.csv", 60), ("test", "retinopathy_solution.csv", 25)):
        (folder / split).mkdir(parents=True)
        rows = []
        for number in range(count):
            level = number % 5
            image = generator.integers(0, 56, (50, 40, 3)) + 40 * level
            Image.fromarray(image.astype(np.uint8)).save(folder / split / f"{number}_left.jpeg")
            rows.append({"image": f"{number}_left", "level": level, "Usage": "Private"})
        pd.DataFrame(rows).to_csv(folder / table, index=False)


def test_chexpert_and_eyepacs_are_read_from_their_folders_and_written_for_the_public_leaderboard(tmp_path, monkeypatch):
    for name, value in (("SIDE", 28), ("FEATURES", 20)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(shared, "QUERIES", 60)
    generator = np.random.default_rng(0)
    for name, write in (("chexpert", chest_x_rays), ("eyepacs", retinas)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, generator)
    work = tmp_path / "work"
    main(["--root", str(tmp_path), "--work", str(work), "--epsilon", "8", "--seeds", "2", "--added"])
    rows = json.loads((work / "leaderboard.json").read_text())["rows"]
    assert [(row["set"], row["method"]) for row in rows] == [
        (name, method) for name in ("chexpert", "eyepacs") for method in module.SUMS
    ]
    x_rays, eyes = rows[:3], rows[3:]
    assert all(row["accuracy"] == [] and row["records"] == 60 and row["delta"] == 1e-6 for row in x_rays)
    assert all(len(row["accuracy"]) == len(row["auc"]) and row["delta"] == 1e-5 for row in eyes)
    for row in (x_rays[1], eyes[1]):
        assert 7.9 < row["epsilon_added"] <= 8 < row["epsilon"]
    assert np.mean(eyes[1]["auc"]) > 0.7
    (entry,) = yaml.safe_load((work / "chexpert.yml").read_text())
    first = entry["claims"][0]
    assert (first["epsilon"], first["delta"], first["neighbouring_relation"]) == (8.0, 1e-6, "add/remove")
    assert first["private_accuracy"] == f"{100 * np.mean(x_rays[0]['auc']):.2f}% AUC"
    assert len(entry["claims"]) == 2
    assert set(first) >= {"public_data", "model", "dp_accountant"}


def test_uncertain_findings_count_as_present_and_missing_ones_do_not(tmp_path):
    (tmp_path / "chexpert").mkdir()
    chest_x_rays(tmp_path / "chexpert", np.random.default_rng(1))
    data = Entry("chexpert", tmp_path, tmp_path).load()
    table = pd.read_csv(tmp_path / "chexpert" / "train.csv")
    wanted = table[list(module.FINDINGS)].isin([1.0, -1.0]).to_numpy()
    assert (data.train_labels == wanted).all()
    assert data.test_labels.shape == (24, 5)


def test_votes_and_dp_sgd_have_no_row_at_the_epsilon_of_adding_a_record(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--added", "--method", "votes"])
    assert "--added supports --method moments" in capsys.readouterr().err
