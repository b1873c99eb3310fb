"""A session over hours and days: who is there, who was late, two guardians, and a guardian on another machine."""

import json
import shutil
import time

import pytest

from tasks.parties.config import read_party
from tasks.parties.guardian import GuardianHost
from tasks.parties.standing import standing
from tasks.parties.trial import free_endpoints
from terrine.files import json_object
from tests.party_kills import SEND, SETTLE
from tests.party_processes import CONFIG, change, gone, run, start, terms_of, terms_of_sums, trial, until, words
from tests.party_releases import check_answered_once, names_of, rows_of


@pytest.fixture
def started():
    """Start parties that end with the test."""
    processes = []

    def begin(folder, name, kill=None):
        processes.append(start(folder, name, kill))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.join(5)


def test_a_party_that_comes_when_all_is_over_is_told_that_it_was_late(tmp_path, started):
    terms, votes = trial(tmp_path, terms_of_sums())
    guardian = started(tmp_path, "guardian", "stay")
    others = [started(tmp_path, name) for name in ("student", "party-1", "party-3")]
    until(lambda: "Missing: party-2" in words(tmp_path, "guardian"))
    gone(tmp_path, "party-2")
    until(lambda: "It stays for" in words(tmp_path, "guardian"))
    for process in others:
        process.join(60)
    # What came out is written down before anybody is waited for.
    assert json_object(tmp_path / "guardian" / "state" / "outcome.json")["counted"] == ["party-1", "party-3"]
    late = started(tmp_path, "party-2")
    late.join(60)
    assert late.exitcode == 1
    assert "closed without party-2, which was late" in words(tmp_path, "party-2")
    states = {party["name"]: party["state"] for party in standing(tmp_path / "party-2" / "party.yaml")["parties"]}
    assert (states["party-2"], states["party-3"]) == ("late or left out", "counted")
    guardian.join(60)
    assert guardian.exitcode == 0
    assert "party-2 was late, and was told so" in words(tmp_path, "guardian")
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])
    # Nobody is there any more: each says what it knows, and no more.
    for name, code in (("party-2", 1), ("party-3", 0)):
        change(tmp_path / name / CONFIG, patience=0.5)
        assert run(tmp_path, [name]) == {name: code}
    assert words(tmp_path, "party-2").count("The round was closed without party-2, which was late") == 2
    assert "It was counted, and nothing is left to be done" in words(tmp_path, "party-3")
    assert json_object(tmp_path / "party-3" / "state" / "outcome.json")["counted"] == ["party-1", "party-3"]


def test_a_party_that_was_killed_is_told_what_its_own_memory_can_say(tmp_path, started):
    trial(tmp_path, terms_of_sums())
    sent = ("tasks.parties.teacher", "TeacherHost.deliver", "after", 1)
    names = ["guardian", "student", "party-1", "party-2"]
    assert run(tmp_path, names, victim="party-2", kill=sent, again="nobody")["party-2"] < 0
    for name, sentence in (
        ("party-2", "Its shares had left, and whether they came in time is not known here"),
        ("party-3", "If the round was closed meanwhile, this party was late for it"),
    ):
        change(tmp_path / name / CONFIG, patience=0.5)
        assert run(tmp_path, [name]) == {name: 1}
        assert sentence in words(tmp_path, name)


def test_everybody_says_who_is_there_and_who_is_missing(tmp_path, started):
    trial(tmp_path, terms_of_sums())
    running = {name: started(tmp_path, name) for name in ("guardian", "student", "party-1")}
    until(lambda: "Here: student, party-1. Missing: party-2, party-3." in words(tmp_path, "guardian"))
    assert "the shares of 2 of 6 parts are here, 4 are needed" in words(tmp_path, "guardian")
    until(lambda: "Here: guardian, student. Missing: nobody." in words(tmp_path, "party-1"))
    until(lambda: "Here: guardian, party-1. Missing: party-2, party-3." in words(tmp_path, "student"))
    # The words come before the file.
    written, there = tmp_path / "student" / "state" / "session.json", (["guardian", "party-1"], ["party-2", "party-3"])
    until(lambda: tuple(json.loads(written.read_text())[of] for of in ("here", "missing")) == there)
    # Whether it is at work is what holds its lock, whoever has its process's number later.
    status = tmp_path / "student" / "party.yaml"
    assert standing(status)["next"] == "Nothing: the session is under way here, and goes on by itself."
    running["student"].kill()
    running["student"].join()
    assert standing(status)["session"][1][1].endswith("not running now")
    assert standing(status)["next"] == f"terrine party vote --config {status}"


def test_a_guardian_left_over_from_an_earlier_attempt_is_named_and_holds_nobody(tmp_path, started):
    terms, votes = trial(tmp_path, terms_of_sums(minimum=6), deadline=300.0, patience=300.0)
    earlier = tmp_path.with_name(f"{tmp_path.name}-earlier")
    shutil.copytree(tmp_path / "guardian", earlier / "guardian")
    left_over, elsewhere = started(earlier, "guardian"), free_endpoints().guardian
    change(tmp_path / "guardian" / CONFIG, listen=elsewhere)
    for name in ("party-1", "party-2", "party-3"):
        change(tmp_path / name / CONFIG, guardian=elsewhere)
    # The student party alone still has the address of the earlier attempt.
    until(lambda: "listening" in words(earlier, "guardian"))
    student = started(tmp_path, "student")
    for name in ("guardian", *terms.teachers):
        started(tmp_path, name)
    student.join(60)
    assert student.exitcode == 1
    told = words(tmp_path, "student")
    assert "Two guardians are running. Ours, at" in told
    assert f"of one at {elsewhere}, up since" in told
    left_over.join(60)
    assert left_over.exitcode == 1
    assert "Two guardians are running" in words(earlier, "guardian")
    # With the right address it is met by all that wait.
    change(tmp_path / "student" / CONFIG, guardian=elsewhere)
    student = started(tmp_path, "student")
    student.join(60)
    assert student.exitcode == 0
    check_answered_once(tmp_path, terms, votes)


def test_a_second_guardian_with_the_same_state_is_refused_before_it_reads_any(tmp_path, started):
    """It would draw noise again for what the first has drawn, and not written down when the second looked."""
    terms, votes = trial(tmp_path)
    first, address = started(tmp_path, "guardian"), read_party(tmp_path / "guardian" / CONFIG).listen
    until(lambda: "listening" in words(tmp_path, "guardian"))
    change(tmp_path / "guardian" / CONFIG, listen=free_endpoints().guardian)
    second = started(tmp_path, "guardian")
    second.join(60)
    assert second.exitcode == 1
    assert "Another process of guardian is at work in" in words(tmp_path, "guardian")
    change(tmp_path / "guardian" / CONFIG, listen=address)
    for name in ("student", *terms.teachers):
        started(tmp_path, name)
    first.join(60)
    assert first.exitcode == 0
    check_answered_once(tmp_path, terms, votes)


def test_a_single_party_that_says_it_is_elsewhere_ends_no_session(tmp_path, started):
    terms, votes = trial(tmp_path, terms_of_sums())
    earlier = tmp_path.with_name(f"{tmp_path.name}-earlier")
    shutil.copytree(tmp_path / "guardian", earlier / "guardian")
    elsewhere = free_endpoints().guardian
    change(earlier / "guardian" / CONFIG, listen=elsewhere, deadline=300.0)
    change(tmp_path / "party-2" / CONFIG, guardian=elsewhere)
    started(earlier, "guardian")
    student, _ = started(tmp_path, "student"), started(tmp_path, "party-2")
    until(lambda: "guardian is connected" in words(tmp_path, "party-2"))
    # By the time that the right guardian comes, the student party has been asked for that of another.
    time.sleep(2)
    gone(tmp_path, "party-2")
    guardian, *_ = [started(tmp_path, name) for name in ("guardian", "party-1", "party-3")]
    for process in (guardian, student):
        process.join(60)
        assert process.exitcode == 0
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])


@pytest.mark.parametrize("kill", [(*SEND, "before", 4), (*SETTLE, "before", 1)])
def test_a_guardian_restored_on_another_machine_goes_on_at_no_second_charge(kill, tmp_path):
    terms, votes = trial(tmp_path)
    fresh = tmp_path.with_name(f"{tmp_path.name}-fresh")
    shutil.copytree(tmp_path / "guardian", fresh)
    run(tmp_path, names_of(terms), victim="guardian", kill=kill, again="nobody")
    # Its folder comes back at another place and another address; the old one is gone.
    backup = tmp_path.with_name(f"{tmp_path.name}-backup")
    (tmp_path / "guardian").rename(backup)
    other = tmp_path.with_name(f"{tmp_path.name}-other")
    for restored in (fresh, backup):
        shutil.rmtree(other, ignore_errors=True)
        restored.rename(other)
        (tmp_path / "guardian").unlink(missing_ok=True)
        (tmp_path / "guardian").symlink_to(other)
        endpoint = free_endpoints().guardian
        # Nobody but a guardian that nobody follows waits in vain.
        waits = {"deadline": 10.0, "patience": 10.0} if restored == fresh else {"deadline": 30.0, "patience": 40.0}
        change(tmp_path / "guardian" / CONFIG, listen=endpoint, **waits)
        for name in ("student", *terms.teachers):
            change(tmp_path / name / CONFIG, guardian=endpoint)
        if restored == fresh:
            # One that knows nothing of what was drawn since, with another ledger besides: nobody follows it.
            assert run(tmp_path, ["guardian", "student"]) == {"guardian": 1, "student": 1}
            assert "the guardian asks it anew" in words(tmp_path, "student") or "has answers to these terms" in words(
                tmp_path, "student"
            )
            assert not rows_of(tmp_path, "reserve")
    assert set(run(tmp_path, ["guardian", "student"]).values()) == {0}
    check_answered_once(tmp_path, terms, votes)


def test_the_deadline_counts_from_when_the_round_was_first_opened(tmp_path, monkeypatch):
    trial(tmp_path, terms_of(), deadline=600.0)
    config = read_party(tmp_path / "guardian" / "party.yaml")
    now = [1000.0]
    monkeypatch.setattr("tasks.parties.guardian.time.time", lambda: now[0])
    left = []
    for later in (0.0, 400.0, 590.0, 10_000.0):
        now[0] = 1000.0 + later
        left.append(GuardianHost(config)._left())
    # Who is started again at its end, or long after it, still waits for a minute.
    assert left == [600.0, 200.0, 60.0, 60.0]
