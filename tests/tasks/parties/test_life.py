"""What comes before and after a session: teaching, the student at each party, the next edition, status."""

import json
import zipfile

import numpy as np
import pytest
import yaml

from tasks.parties import finishing
from tasks.parties.agreement.editions import begin, look_ahead
from tasks.parties.config import read_party
from tasks.parties.finishing import finish_teacher
from tasks.parties.standing import standing
from tasks.parties.teaching import kept, teach_before
from tasks.parties.votes import given_by
from tasks.reports.pages import render
from terrine.errors import ArtefactError, BudgetError, InputError, SettingError
from terrine.privacy.ledger.people import People
from tests.party_processes import CONFIG, change, run, start, terms_of, terms_of_sums, trial, words
from tests.party_releases import names_of, rows_of


def with_own_data(folder, name="party-2", **values):
    """Give a party data of its own, of which no file has been read."""
    (folder / name / "data").mkdir(exist_ok=True)
    (folder / name / "data" / "one.png").write_bytes(b"1")
    data = {"name": "folder", "path": str(folder / name / "data"), "size": 8, "channels": 1}
    own = {"params": {"data": data}, "images": "queries", "backbone": "backbone"}
    return change(folder / name / CONFIG, votes=None, unit=None, own=own, **values)


@pytest.fixture
def taught(tmp_path, monkeypatch):
    """A party that teaches in no time, and counts how often."""
    _, votes = trial(tmp_path)
    path, times = with_own_data(tmp_path), []

    def cast(own, agreed, held):
        times.append(agreed.edition)
        return votes["party-2"]

    monkeypatch.setattr("tasks.parties.training.cast_votes", cast)
    return path, times, votes["party-2"]


def test_what_was_taught_before_is_shared_and_nothing_is_taught_twice(taught):
    path, times, votes = taught
    assert "votes of 2 teachers on 20 queries" in teach_before(read_party(path))
    assert "nothing has changed" in teach_before(read_party(path))
    np.testing.assert_array_equal(given_by(read_party(path), "party-2")(0, None), votes)
    assert times == [""]
    # It is for the party alone.
    assert {file.stat().st_mode & 0o077 for file in (path.parent / "work").rglob("*.npz")} == {0}


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (lambda path: (path.parent / "data" / "two.png").write_bytes(b"2"), "the data changed"),
        (lambda path: (path.parent / "data" / "one.png").write_bytes(b"12"), "the data changed"),
        (
            lambda path: path.with_name("terms.yaml").write_text(
                path.with_name("terms.yaml").read_text().replace("edition: ''", "edition: second")
            ),
            "the terms changed (edition was '' and is 'second')",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("params:", "params:\n    seed: 3")),
            "own.params changed",
        ),
        (lambda path: next((path.parent / "work").rglob("given.npz")).write_bytes(b"x"), "what was kept is damaged"),
    ],
)
def test_what_was_taught_is_taught_anew_where_anything_has_changed_and_that_is_said(what, sentence, taught, caplog):
    path, times, _ = taught
    teach_before(read_party(path))
    what(path)
    assert kept(read_party(path), 2)["since"] == sentence
    given_by(read_party(path), "party-2")
    assert sentence in caplog.text
    assert len(times) == 2
    assert "arrays" in kept(read_party(path), 2)


def test_records_that_were_prepared_are_summed_as_they_are(tmp_path, monkeypatch):
    from terrine.aggregation.records import Records, row_type

    terms, _ = trial(tmp_path, terms_of_sums())
    path = with_own_data(tmp_path)
    rows = np.zeros(5, row_type(3))
    rows["vector"][:, 0], rows["unit"] = 0.5, np.arange(5)
    records = Records.of(rows["vector"], rows["label"], rows["unit"], terms.classes)
    monkeypatch.setattr("tasks.parties.training.own_records", lambda *_: records)
    assert "5 records, ready to be summed" in teach_before(read_party(path))
    monkeypatch.setattr("tasks.parties.training.own_records", None)
    sums = terms.fixed_point
    expected = sums.shared(sums.course.summing(records)(None), 2 * terms.records, 0)
    np.testing.assert_array_equal(given_by(read_party(path), "party-2")(0, None)[:, 0], expected)


def test_a_party_in_two_collaborations_adds_them_up_and_shares_nothing_past_its_budget(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    terms, _ = trial(first, terms_of_sums(sigma=4.0, epsilon=10.0))
    trial(second, terms_of_sums(sigma=4.0, epsilon=10.0, edition="another collaboration"))
    place = tmp_path / "site"
    own = {"url": f"sqlite:///{place}/ledger.db", "key": str(place / "key"), "store": str(place / "releases")}
    people = tmp_path / "people.npz"
    People.of(np.arange(1, 201, dtype=np.uint64)).save(people)
    own |= {"account": "patients", "epsilon": 3.0, "people": str(people)}
    change(first / "party-2" / CONFIG, ledger=own)
    change(second / "party-2" / CONFIG, ledger=own)
    assert set(run(first, names_of(terms)).values()) == {0}
    assert run(second, ["party-2"]) == {"party-2": 1}
    assert "past its budget of ε=3" in words(second, "party-2")
    assert "frames of shares" not in words(second, "party-2")
    # Another name is no second budget for the same people.
    change(second / "party-2" / CONFIG, ledger=own | {"account": "others"})
    processes = {name: start(second, name) for name in names_of(terms)}
    processes["party-2"].join(60)
    for process in processes.values():
        process.kill()
    assert processes["party-2"].exitcode == 1
    assert "of these records were released about under another account" in words(second, "party-2")
    assert "frames of shares" not in words(second, "party-2")


def test_the_next_edition_shows_what_remains_and_keeps_what_was(tmp_path):
    terms, _ = trial(
        tmp_path,
        terms_of_sums(sigma=4.0, epsilon=10.0),
        guardian={"ledger": {"account": "trial", "epsilon": 3.5}, "noise": "secure"},
    )
    names = names_of(terms)
    paths = {name: tmp_path / name / "party.yaml" for name in names}
    before = look_ahead(paths["guardian"], "second").account
    assert (before["spent"], before["state"]) == (0.0, "not charged")
    assert set(run(tmp_path, names).values()) == {0}
    first = json.loads((tmp_path / "student" / "answers" / "answers.json").read_text())
    found = look_ahead(paths["guardian"], "second")
    assert found.account["spent"] == first["guardian"]["epsilon"]
    assert 0 < found.account["left"] < 3.5
    with pytest.raises(SettingError, match="is this one or an earlier one"):
        look_ahead(paths["guardian"], "")
    with pytest.raises(InputError, match="holds no query images"):
        look_ahead(paths["student"], "second", tmp_path)
    # More than remains is refused before anything is changed.
    tight = change(tmp_path / "guardian" / CONFIG, ledger={"account": "trial", "epsilon": 3.5})
    if found.account["price"] > found.account["left"]:
        with pytest.raises(BudgetError, match="is spent"):
            look_ahead(tight, "second")
    for name in names:
        begin(paths[name], look_ahead(paths[name], "second"))
        assert read_party(paths[name]).terms.edition == "second"
    kept_there = tmp_path / "student" / "editions" / "first"
    assert json.loads((kept_there / "answers" / "answers.json").read_text()) == first
    assert yaml.safe_load((kept_there / "terms.yaml").read_text())["edition"] == ""
    assert set(run(tmp_path, names).values()) == {0}
    again = json.loads((tmp_path / "student" / "answers" / "answers.json").read_text())
    assert again["release_id"] != first["release_id"]
    assert len(rows_of(tmp_path, "commit")) == 2


def test_a_student_that_a_party_tested_is_none_of_the_next_edition(tmp_path):
    trial(tmp_path, terms_of_sums())
    path = with_own_data(tmp_path, "party-2")
    evaluation = finishing.Folders(read_party(path).own.work, "own").evaluation
    evaluation.parent.mkdir(parents=True)
    evaluation.write_text("{}")
    place = begin(path, look_ahead(path, "second"))
    assert (place / evaluation.name).is_file()
    assert not evaluation.exists()


def test_status_says_where_a_collaboration_stands_and_what_comes_next(tmp_path):
    trial(tmp_path, terms_of_sums())
    path = tmp_path / "guardian" / "party.yaml"
    found = standing(path)
    assert found["next"].startswith("terrine party vote --config")
    assert found["account"][-1][1].startswith("not charged")
    run(tmp_path, ["guardian", "student", "party-1", "party-3"])
    accepted = tmp_path / "guardian" / "accepted"
    accepted.mkdir()
    (accepted / "mailed.json").write_text(json.dumps({"party": "party-1"}))
    (accepted / "damaged.json").write_text("{")
    found = standing(path)
    states = {party["name"]: (party["accepted"], party["state"]) for party in found["parties"]}
    assert states["party-1"] == ("yes", "counted")
    assert states["party-2"] == ("–", "late or left out")
    assert found["account"][-1][1].startswith("charged")
    assert found["next"].startswith("Nothing")
    assert standing(tmp_path / "student" / "party.yaml")["account"][0][1].startswith("none: recorded")
    own = standing(with_own_data(tmp_path, "party-2"))
    assert own["next"].startswith("terrine party teach")
    (tmp_path / "party-2" / "credentials" / "key.pem").unlink()
    assert "key.pem" in standing(tmp_path / "party-2" / "party.yaml")["problem"]
    page = render("party.html", found | {"at": "now", "name": "<b>x</b>"})
    assert "late or left out" in page
    assert "<b>x</b>" not in page


def test_a_student_that_is_not_the_agreed_one_is_tested_nowhere(tmp_path):
    trial(tmp_path, terms_of())
    config = read_party(with_own_data(tmp_path))
    with pytest.raises(ArtefactError, match="terrine party teach"):
        finish_teacher(config, tmp_path, None, None)
    folders = finishing.Folders(config.own.work, "own")
    with pytest.raises(InputError, match="holds no student with its statement"):
        finishing._take_student(tmp_path, folders, config)
    archive = tmp_path / "student.zip"
    archive.write_bytes(b"PK no archive")
    with pytest.raises(ArtefactError, match="is damaged"):
        finishing._take_student(archive, folders, config)
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("../outside", b"")
        packed.writestr("student/manifest.json", b"{}")
        packed.writestr("privacy.json", b"{}")
    with pytest.raises(ArtefactError):
        finishing._take_student(archive, folders, config)
    assert not (tmp_path / "outside").exists()
    with pytest.raises(SettingError, match="gives a file of votes"):
        finish_teacher(read_party(tmp_path / "party-1" / "party.yaml"), archive, None, None)
