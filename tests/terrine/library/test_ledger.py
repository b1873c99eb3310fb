"""Releases from Python: charges, refusals and identity."""

from dataclasses import replace

import numpy as np
import pytest

import terrine as tr
from terrine.aggregation.gnmax import InteractiveGNMax
from terrine.privacy.ledger.people import People

MECHANISM = tr.GaussianHistogram.calibrated(epsilon=2, delta=1e-5, answers=40)
VOTES = tr.Votes(
    np.random.default_rng(0).integers(0, 3, (40, 25)).astype(np.uint8),
    3,
    queries="of the images",
    assignment=np.arange(100) % 25,
    made_from={"teachers": {"kind": "linear", "ridge": 0.1}},
)
OTHERS = replace(VOTES, values=(VOTES.values + 1) % 3)


def _open(tmp_path, **settings):
    return tr.Ledger.open(tmp_path / "ledger", **{"budget": 3.0, **settings})


def test_the_same_edition_and_settings_are_the_stored_release_at_no_cost(tmp_path):
    with _open(tmp_path) as ledger:
        first = ledger.release(MECHANISM, VOTES, epsilon=2)
        spent = ledger.spent()
    again = _open(tmp_path).release(MECHANISM, VOTES, epsilon=2)
    assert (first.reused, again.reused) == (False, True)
    assert np.array_equal(first.histograms, again.histograms)
    assert _open(tmp_path).spent() == spent == pytest.approx(2, abs=1e-6)
    assert str(again.statement()) == str(first.statement())
    assert again.changed == ()


def test_whether_a_release_is_the_same_is_never_decided_by_votes_and_its_keeper_alone_is_told(tmp_path):
    first = _open(tmp_path).release(MECHANISM, VOTES, epsilon=2)
    again = _open(tmp_path).release(MECHANISM, replace(OTHERS, assignment=VOTES.assignment[::-1]), epsilon=2)
    assert again.reused
    assert np.array_equal(first.histograms, again.histograms)
    assert again.changed == ("partition", "votes")
    assert again.statement().to_dict() == first.statement().to_dict()


def test_class_names_and_their_order_are_part_of_a_release_and_undeclared_ones_are_those_of_the_edition(tmp_path):
    named = [replace(VOTES, class_names=names) for names in (("a", "b", "c"), ("c", "b", "a"), ("d", "e", "f"))]
    releases = [_open(tmp_path, budget=9.0).release(MECHANISM, votes, epsilon=2) for votes in (VOTES, *named)]
    assert len({release.privacy.release_id for release in releases}) == 4
    assert not any(release.reused for release in releases)
    assert [release.privacy.task["names"] for release in releases[:2]] == [["0", "1", "2"], ["a", "b", "c"]]
    with pytest.raises(
        tr.LedgerError,
        match="releases for the classes 0, 1, 2, but these data have d, e, f",
    ):
        _open(tmp_path, budget=9.0).release(MECHANISM, replace(named[2], declared=False), epsilon=2)
    other = _open(tmp_path, budget=9.0).release(MECHANISM, replace(named[2], declared=False), edition="2", epsilon=2)
    assert other.privacy.task["found"]
    assert "The class names are the labels that occurred in the data." in str(other.statement())
    assert "labels that occurred" not in str(releases[0].statement())


def test_the_same_images_read_with_other_settings_are_other_data(tmp_path):
    numbers = np.arange(60) % 10
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=numbers.astype(float))
    same, other = (
        tr.load_dataset("npz", path=tmp_path / "own.npz", size=8, bins=bins) for bins in ((0, 5, 10), (0, 2, 10))
    )
    assert same.settings == {"bins": [0, 5, 10], "size": 8}
    queries = tr.draw("gaussian", count=20, like=same)
    backbone = tr.Scattering(projection=10).fit(queries)
    ids = [
        _open(tmp_path, budget=30.0).release(
            MECHANISM, tr.LinearTeachers().fit(data, tr.partition(data, teachers=5), backbone).vote(queries), epsilon=9
        )
        for data in (same, other, same)
    ]
    assert [release.reused for release in ids] == [False, False, True]


def test_votes_of_one_class_are_not_charged_as_findings_nor_compared_with_a_student(tmp_path):
    findings = MECHANISM.model_copy(update={"findings": 40, "findings_bound": 1})
    interactive = InteractiveGNMax(threshold=20, sigma1=20, sigma2=10, surprise=5, confidence=0.9)
    for mechanism in (findings, interactive):
        with pytest.raises(tr.SettingError, match="Nothing was released"):
            _open(tmp_path).release(mechanism, VOTES, epsilon=2)
    assert _open(tmp_path).spent() == 0


@pytest.mark.parametrize(
    "other",
    [
        {"edition": "2"},
        {"mechanism": tr.GNMax(sigma=MECHANISM.sigma)},
        {"votes": replace(VOTES, made_from={"teachers": {"kind": "linear", "ridge": 0.2}})},
        {"votes": replace(VOTES, values=VOTES.values[:-1])},
        {"epsilon": 2.5},
    ],
)
def test_another_edition_or_setting_is_another_release_that_is_charged_and_refused_beyond_the_budget(tmp_path, other):
    given = {"mechanism": MECHANISM, "votes": VOTES, "epsilon": 2.0, "edition": "1"}
    with _open(tmp_path, budget=2.5) as ledger:
        ledger.release(**given)
        spent = ledger.spent()
        with pytest.raises(tr.BudgetError, match="Nothing was drawn and nothing was charged"):
            ledger.release(**given | other)
        assert ledger.spent() == spent
    assert len(list((tmp_path / "ledger" / "releases").glob("*.npz"))) == 1


def test_the_worst_case_is_reserved_before_anything_is_drawn(tmp_path, monkeypatch):
    ledger = _open(tmp_path)

    def dying(self, shape, sigma):
        assert ledger.spent() == pytest.approx(2, abs=1e-6)
        raise RuntimeError("no power")

    monkeypatch.setattr("terrine.privacy.noise.SecureNoise.gaussian", dying)
    with pytest.raises(RuntimeError, match="no power"):
        ledger.release(MECHANISM, VOTES, epsilon=2)
    assert ledger.spent() == pytest.approx(2, abs=1e-6)


def test_a_release_about_other_images_with_the_same_settings_is_refused(tmp_path):
    _open(tmp_path).release(MECHANISM, VOTES, epsilon=2)
    with pytest.raises(tr.ArtefactError, match="with other query images"):
        _open(tmp_path).release(MECHANISM, replace(VOTES, queries="of others"), epsilon=2)


def test_records_that_are_not_public_have_no_release_without_a_budget(tmp_path):
    with pytest.raises(tr.SettingError, match="need a budget"):
        _open(tmp_path, budget=None).release(MECHANISM, VOTES, epsilon=2)
    assert _open(tmp_path, budget=None).spent() == 0
    public = replace(VOTES, public=True)
    assert _open(tmp_path, budget=None).release(MECHANISM, public, epsilon=2).answered.all()


def test_a_public_name_makes_no_private_records_public():
    data = tr.Digits(size=8).load()
    assert data.public
    assert not replace(data, public_benchmark=False).public
    assert not replace(data, name="clinic").public


def test_an_account_keeps_its_budget_and_its_unit(tmp_path):
    _open(tmp_path).release(MECHANISM, VOTES, epsilon=2)
    with pytest.raises(tr.LedgerError, match="has a budget of"):
        _open(tmp_path, budget=30.0)
    with pytest.raises(tr.LedgerError, match="protect each record, but this one protects each group"):
        _open(tmp_path).release(MECHANISM, replace(VOTES, unit="group"), epsilon=0.5, edition="2")
    _open(tmp_path, account="others", budget=30.0).release(MECHANISM, VOTES, epsilon=2)


def test_records_that_teachers_learned_from_have_one_account_and_on_a_site_one_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TERRINE_SITE", str(tmp_path / "site"))
    known = replace(VOTES, people=People.of(np.arange(1, 201, dtype=np.uint64)))
    _open(tmp_path).release(MECHANISM, known, epsilon=2)
    with pytest.raises(tr.LedgerError, match="under another account"):
        _open(tmp_path, account="others").release(MECHANISM, known, epsilon=2)
    with pytest.raises(tr.LedgerError, match="another ledger of this site"):
        tr.Ledger.open(tmp_path / "elsewhere", budget=3.0).release(MECHANISM, known, epsilon=2)


def test_teachers_that_share_a_part_have_no_guarantee_and_the_statement_says_so(tmp_path):
    said = str(_open(tmp_path).release(MECHANISM, replace(VOTES, disjoint=False), epsilon=2).statement())
    assert said.startswith("NOT PRIVATE")
