"""Parties that are killed, missing or misled: real processes on loopback with mutual TLS."""

import json
import shutil
import signal
import time

import numpy as np
import pytest

from tasks.parties.config import read_party
from tasks.parties.state import PartyState
from tasks.parties.votes import given_by
from terrine.aggregation.votes import histograms_of
from terrine.errors import InputError, LedgerError
from terrine.privacy.accounting.gaussian import mu_squared
from tests.party_kills import RECEIVE, SAVE, SEND, SETTLE
from tests.party_processes import (
    change,
    run,
    start,
    terms_of,
    terms_of_averages,
    terms_of_gradients,
    terms_of_sums,
    trial,
    words,
)
from tests.party_releases import answers_of, check_answered_once, ledger_of, names_of, rows_of

SUMS = {"moments": terms_of_sums, "gradients": terms_of_gradients}
CONFIDENT = {"mechanism": "confident", "threshold": 3.0, "sigma1": 4.0, "sigma2": 3.0, "sigma": None}
OF_SEVERAL = SUMS | {
    "averages": terms_of_averages,
    "averages, confident": lambda: terms_of_averages(**CONFIDENT, epsilon=40.0),
}


@pytest.mark.parametrize("mechanism", ["confident", "gnmax", "histogram", *OF_SEVERAL])
def test_parties_answer_as_the_plaintext_mechanism_and_a_batch_is_answered_once(mechanism, tmp_path):
    without = {"sigma": 4.0, "threshold": None, "sigma1": None, "sigma2": None}
    own = {} if mechanism == "confident" else without
    terms = OF_SEVERAL[mechanism]() if mechanism in OF_SEVERAL else terms_of(mechanism=mechanism, **own)
    terms, votes = trial(tmp_path, terms)
    assert set(run(tmp_path, names_of(terms)).values()) == {0}
    check_answered_once(tmp_path, terms, votes)
    first = answers_of(tmp_path)[1]
    # Again, with the guardian and the student party alone: nothing is drawn and nothing is charged.
    assert set(run(tmp_path, ["guardian", "student"]).values()) == {0}
    np.testing.assert_array_equal(answers_of(tmp_path)[1], first)
    check_answered_once(tmp_path, terms, votes)
    outcome = json.loads((tmp_path / "guardian" / "state" / "outcome.json").read_text())
    assert outcome["reused"]
    # What would help to find votes out is gone.
    assert not list(tmp_path.glob("*/state/*/*.npz"))


@pytest.mark.parametrize("between", [(), ("2",)], ids=["at once", "after another edition"])
def test_a_teacher_party_whose_votes_were_counted_does_not_share_them_once_more(between, tmp_path):
    """Its account is charged once, and guardian and student party that both begin anew would draw other noise."""
    terms, votes = trial(tmp_path)
    names = names_of(terms)
    assert set(run(tmp_path, names).values()) == {0}
    check_answered_once(tmp_path, terms, votes)
    for edition in (*between, terms.edition):
        for lost in ("guardian/state", "guardian/ledger", "student/state", "student/answers"):
            shutil.rmtree(tmp_path / lost)
        for name in names:
            change(tmp_path / name / "terms.yaml", edition=edition)
        assert set(run(tmp_path, names).values()) == {int(edition == terms.edition)}
    for name in terms.teachers:
        assert f"{name} has shared for this vote, and the guardian had counted it" in words(tmp_path, name)
    assert rows_of(tmp_path, "commit") == []


def test_a_student_party_that_comes_back_with_other_sums_is_told_nothing(tmp_path):
    terms, votes = trial(tmp_path, deadline=10.0, patience=8.0)
    names = names_of(terms)
    # It has evaluated the whole test, and has not said what it opened.
    codes = run(tmp_path, names, victim="student", kill=(*SEND, "before", 4), again=False)
    assert (codes["guardian"], codes["student"]) == (1, -signal.SIGKILL)
    (path,) = (tmp_path / "student" / "state").glob("*/sums-0.npz")
    kept = path.read_bytes()
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    shifted = arrays | {"shares": arrays["shares"] + np.array([3, 0, 0, 0], arrays["shares"].dtype)}
    np.savez(path, **shifted)
    assert run(tmp_path, ["guardian", "student"]) == {"guardian": 1, "student": 1}
    for name in ("guardian", "student"):
        assert "question 1 is not the one that was answered in an earlier session" in words(tmp_path, name)
    assert not rows_of(tmp_path, "commit")
    assert len(rows_of(tmp_path, "reserve")) == 1
    # With the sums that it wrote down, it is told the rest.
    path.write_bytes(kept)
    assert set(run(tmp_path, ["guardian", "student"]).values()) == {0}
    check_answered_once(tmp_path, terms, votes)


def test_a_student_party_that_hides_different_bits_in_its_transfers_is_told_nothing_then_or_later(tmp_path):
    terms, _ = trial(tmp_path, deadline=10.0, patience=8.0)
    codes = run(tmp_path, names_of(terms), victim="student", kill="cheat", again=False)
    assert (codes["guardian"], codes["student"]) == (1, 1)
    for kill, fault in (
        ("cheat", "block 0 fails the consistency check"),
        (None, "question 1 is not the one that was answered in an earlier session"),
        ("cheat", "block 0 fails the consistency check"),
    ):
        heard = words(tmp_path, "guardian")
        assert "block 0 fails the consistency check" in heard
        assert set(run(tmp_path, ["guardian", "student"], victim="student", kill=kill, again=False).values()) == {1}
        assert fault in words(tmp_path, "guardian").removeprefix(heard)
        (path,) = (tmp_path / "guardian" / "state").glob("*/questions.npz")
        assert PartyState(path.parent.parent, path.parent.name).load("questions")[0]["questions"].shape == (2, 32)
    assert not rows_of(tmp_path, "commit")
    assert len(rows_of(tmp_path, "reserve")) == 1


def test_a_guardian_whose_questions_are_those_of_another_round_answers_nothing(tmp_path):
    trial(tmp_path)
    names = ["guardian", "student", "party-1", "party-2", "party-3"]
    run(tmp_path, names, victim="student", kill=(*SEND, "before", 4), again="nobody")
    (path,) = (tmp_path / "guardian" / "state").glob("*/questions.npz")
    state = PartyState(path.parent.parent, path.parent.name)
    arrays, _ = state.load("questions")
    assert arrays["questions"].shape == (2, 32)
    state.save("questions", arrays, origin="0" * 32)
    assert run(tmp_path, ["guardian"]) == {"guardian": 1}
    assert "belongs to another round than the sums beside it" in words(tmp_path, "guardian")


@pytest.mark.parametrize(
    ("kill", "charged"),
    [
        ((*RECEIVE, "before", 2), False),
        ((*SAVE, "before", 1), True),
        ((*SETTLE, "before", 1), True),
    ],
)
def test_a_guardian_that_does_not_come_back_has_charged_the_worst_case_if_it_drew_noise(kill, charged, tmp_path):
    terms, votes = trial(tmp_path, patience=10.0)
    codes = run(tmp_path, names_of(terms), victim="guardian", kill=kill, again=False)
    assert codes["guardian"] == -signal.SIGKILL
    assert codes["student"] == 0 if kill[0] == SETTLE[0] else codes["student"] == 1
    assert len(rows_of(tmp_path, "reserve")) == charged
    assert not rows_of(tmp_path, "commit")
    if charged:
        most = 2 * terms.asked / terms.sigma2**2 + terms.asked / terms.sigma1**2
        (spent,) = ledger_of(tmp_path).events(rows_of(tmp_path, "reserve")[0].dataset)
        assert mu_squared(spent) == pytest.approx(most)
    # Days later, everybody is back.
    trial(tmp_path, terms, votes)
    codes = run(tmp_path, names_of(terms))
    assert codes["guardian"] == codes["student"] == 0
    check_answered_once(tmp_path, terms, votes)


def test_a_teacher_party_that_stays_away_is_left_out_and_the_accounting_stays_as_agreed(tmp_path):
    terms, votes = trial(tmp_path)
    codes = run(tmp_path, ["guardian", "student", "party-1", "party-3"])
    assert set(codes.values()) == {0}
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])
    assert "without party-2" in words(tmp_path, "guardian")


def test_a_teacher_party_that_sends_damaged_frames_is_named_and_left_out(tmp_path):
    terms, votes = trial(tmp_path)
    codes = run(tmp_path, names_of(terms), victim="party-2", kill="spoil")
    assert codes == {name: int(name == "party-2") for name in names_of(terms)}
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])
    for name in ("guardian", "student"):
        assert "A message from 'party-2' was refused: its checksum does not fit" in words(tmp_path, name)
    assert "closed without party-2" in words(tmp_path, "party-2")


def test_with_too_few_teachers_the_round_ends_at_no_cost_and_can_be_run_again(tmp_path):
    terms, votes = trial(tmp_path)
    codes = run(tmp_path, ["guardian", "student", "party-1"])
    assert set(codes.values()) == {1}
    for name in ("guardian", "student", "party-1"):
        assert "the votes of 2 teachers are there, and 4 are needed" in words(tmp_path, name)
    assert not rows_of(tmp_path, "reserve")
    trial(tmp_path, terms, votes)
    assert set(run(tmp_path, names_of(terms)).values()) == {0}
    check_answered_once(tmp_path, terms, votes)


def test_a_release_past_the_budget_is_refused_before_anybody_is_asked(tmp_path):
    settings = {"ledger": {"account": "trial", "epsilon": 3.0}, "noise": "secure"}
    trial(tmp_path, deadline=2.0, patience=1.0, guardian=settings)
    assert run(tmp_path, ["guardian"]) == {"guardian": 1}
    assert "past its budget of ε=3" in words(tmp_path, "guardian")
    assert not rows_of(tmp_path, "reserve")


def test_secure_noise_is_drawn_once_and_the_ledger_says_so(tmp_path):
    # Released histograms show the noise itself, so what is asked of it holds for all but one draw in 10^10.
    counted = {"mechanism": "histogram", "sigma": 4.0, "threshold": None, "sigma1": None, "sigma2": None}
    terms, votes = trial(
        tmp_path, terms_of(**counted), guardian={"ledger": {"account": "trial", "epsilon": 100.0}, "noise": "secure"}
    )
    assert set(run(tmp_path, names_of(terms)).values()) == {0}
    (commit,) = rows_of(tmp_path, "commit")
    assert commit.content["noise"] == "secure"
    _, result = answers_of(tmp_path)
    noise = result - histograms_of(np.concatenate(list(votes.values()), axis=1), terms.classes)
    assert noise.shape == (20, 4)
    assert 0.5 * terms.sigma < noise.std() < 1.7 * terms.sigma
    assert set(run(tmp_path, ["guardian", "student"]).values()) == {0}
    np.testing.assert_array_equal(answers_of(tmp_path)[1], result)
    assert len(rows_of(tmp_path, "commit")) == 1
    # Its budget is one of records: labels alone are not charged to it.
    with pytest.raises(LedgerError, match="protect a record, and this one protects a label"):
        ledger_of(tmp_path).register(commit.dataset, 100.0, terms.delta, "release", unit="label")


def test_a_party_that_votes_by_record_takes_no_part_where_groups_are_accounted_for(tmp_path):
    terms, votes = trial(tmp_path, terms_of(unit="group"))
    path = tmp_path / "party-2" / "party.yaml"
    path.write_text(path.read_text().replace("unit: group", "unit: record"))
    assert run(tmp_path, ["party-2"]) == {"party-2": 1}
    assert "unit=record, and the terms protect a group" in words(tmp_path, "party-2")
    # Nor does one whose own copy of the terms says record.
    path = tmp_path / "party-2" / "terms.yaml"
    path.write_text(path.read_text().replace("unit: group", "unit: record"))
    codes = run(tmp_path, names_of(terms))
    assert codes == {name: int(name == "party-2") for name in names_of(terms)}
    assert "did not agree on the same terms" in words(tmp_path, "party-2")
    assert "unit" in words(tmp_path, "party-2").splitlines()[-1]
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])
    # The account and the answers are those of groups.
    (commit,) = rows_of(tmp_path, "commit")
    ledger_of(tmp_path).register(commit.dataset, None, terms.delta, "replay", unit="group")
    answers = json.loads((tmp_path / "student" / "answers" / "answers.json").read_text())
    assert answers["unit"] == answers["terms"]["unit"] == "group"


def test_an_account_of_records_is_not_charged_for_groups(tmp_path):
    settings = {"ledger": {"account": "trial", "epsilon": 100.0}, "noise": "secure"}
    terms, votes = trial(tmp_path, guardian=settings)
    assert set(run(tmp_path, names_of(terms)).values()) == {0}
    trial(tmp_path, terms_of(unit="group"), votes, deadline=2.0, patience=1.0, guardian=settings)
    assert run(tmp_path, ["guardian"]) == {"guardian": 1}
    assert "protect a record, and this one protects a group" in words(tmp_path, "guardian")
    assert len(rows_of(tmp_path, "reserve")) == 1


def test_a_party_with_other_terms_is_turned_away_in_a_sentence(tmp_path):
    terms, _ = trial(tmp_path)
    path = tmp_path / "party-2" / "terms.yaml"
    path.write_text(path.read_text().replace("sigma2: 3.0", "sigma2: 2.5"))
    codes = run(tmp_path, names_of(terms))
    assert codes["party-2"] == 1
    assert "did not agree on the same terms" in words(tmp_path, "party-2")
    assert "sigma2" in words(tmp_path, "party-2")
    assert codes["guardian"] == codes["student"] == 0


def test_votes_that_are_none_never_leave_the_party(tmp_path):
    _, votes = trial(tmp_path)
    for spoilt, sentence in (
        (votes["party-2"][:5], "whole numbers [20, 2]"),
        (votes["party-2"].astype(float), "float64"),
        (votes["party-2"] + 9, "the 4 classes are 0 to 3"),
    ):
        np.save(tmp_path / "party-2" / "votes.npy", spoilt)
        assert run(tmp_path, ["party-2"]) == {"party-2": 1}
        assert sentence in words(tmp_path, "party-2")


def test_sums_that_are_none_never_leave_the_party(tmp_path):
    _, votes = trial(tmp_path, terms_of_sums())
    for spoilt, sentence in (
        (votes["party-2"][:5], "whole numbers [18], got int64 of shape [5]"),
        (votes["party-2"].astype(float), "float64"),
        (votes["party-2"] * 2**4, "outside what 2,000 of them can have"),
    ):
        np.save(tmp_path / "party-2" / "votes.npy", spoilt)
        assert run(tmp_path, ["party-2"]) == {"party-2": 1}
        assert sentence in words(tmp_path, "party-2")


def test_records_that_are_none_never_leave_the_party(tmp_path):
    terms, votes = trial(tmp_path, terms_of_gradients())
    path, rows = tmp_path / "party-2" / "votes.npy", votes["party-2"]
    longer = rows.copy()
    longer["vector"] *= 2
    many = np.repeat(rows[:1], 12_000)
    many["unit"] = np.arange(len(many))
    for spoilt, sentence in (
        (rows["vector"], "Sums in several rounds need the records"),
        (rows[:, None], r"of shape \[40, 1\]"),
        (longer, "longer than 1"),
        (many, "outside what 2,000 of them can have"),
    ):
        np.save(path, spoilt)
        with pytest.raises(InputError, match=sentence):
            given_by(read_party(path.with_name("party.yaml")), "party-2")(0, None)
    # A party may have none, and adds nothing.
    np.save(path, rows[:0])
    given = given_by(read_party(path.with_name("party.yaml")), "party-2")
    assert not given(0, None).any()
    question = terms.length * terms.classes + terms.length * (terms.length + 1) // 2
    assert not given(1, np.ones(question)).any()


def test_a_guardian_that_nobody_comes_to_does_not_wait_for_ever(tmp_path):
    trial(tmp_path, deadline=0.5, patience=1.0)
    assert run(tmp_path, ["guardian"]) == {"guardian": 1}
    assert "heard nothing for 1.5 s" in words(tmp_path, "guardian")


def test_parties_whose_guardian_is_away_say_so(tmp_path):
    # A long deadline: the sentence about silence, which does not name the guardian, would come after two minutes.
    trial(tmp_path, deadline=120.0, patience=1.0)
    assert run(tmp_path, ["student", "party-1"]) == {"student": 1, "party-1": 1}
    away = "'guardian' at "
    assert words(tmp_path, "student").splitlines()[-1].startswith(f"Error: {away}")
    assert "could not be reached for 1 s" in words(tmp_path, "student")
    # A teacher party is as near to noticing that the student party waits, too.
    last = words(tmp_path, "party-1").splitlines()[-1]
    assert last.startswith((f"Error: {away}", "Error: 'student' at "))
    assert "could not be reached for 1 s" in last or "has been in no session with us for 1 s. Is the guardian" in last


def test_a_student_that_starts_again_while_the_guardian_is_about_to_speak_ends_the_session_and_nobody(tmp_path):
    terms, votes = trial(tmp_path)
    processes = {name: start(tmp_path, name, "hold" if name == "guardian" else None) for name in names_of(terms)}
    try:
        end = time.monotonic() + 60
        while "held" not in words(tmp_path, "guardian") and time.monotonic() < end:
            time.sleep(0.02)
        processes["student"].kill()
        processes["student"].join(60)
        processes["student"] = start(tmp_path, "student")
        for process in processes.values():
            process.join(60)
        assert {name: process.exitcode for name, process in processes.items()} == dict.fromkeys(processes, 0)
    finally:
        for process in processes.values():
            process.kill()
    assert "was started again in the middle of a session" in words(tmp_path, "guardian")
    check_answered_once(tmp_path, terms, votes)
