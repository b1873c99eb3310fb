"""The moments at which a party is killed, and what must come of it."""

import json

from tests.party_processes import run, terms_of, terms_of_averages, terms_of_gradients, terms_of_sums, trial, words
from tests.party_releases import check_answered_once, names_of

RECEIVE = ("terrine.collaboration.protocol.guardian", "Guardian.receive")
RECEIVE_OF_STUDENT = ("terrine.collaboration.protocol.student", "StudentParty.receive")
RECEIVE_OF_TEACHER = ("terrine.collaboration.protocol.teacher", "Teacher.receive")
NEXT_ROUND = ("tasks.parties.guardian", "GuardianHost._next_round")
WRITE_ABOUT = ("tasks.parties.student", "StudentHost._write_about")
SEND = ("terrine.collaboration.transport.wire", "Wire.send")
SAVE = ("tasks.parties.state", "PartyState.save")
STORE = ("terrine.privacy.ledger.release_store", "ReleaseStore.write")
SETTLE = ("terrine.privacy.ledger.release_protocol", "Reservation.commit")

KILLED = {
    "guardian, with some shares": ("guardian", *RECEIVE, "before", 2),
    "guardian, noise drawn and not written down": ("guardian", *SAVE, "before", 1),
    "guardian, noise written down and nothing sent": ("guardian", *SAVE, "after", 1),
    "guardian, with the test garbled": ("guardian", *SEND, "before", 4),
    "guardian, a question not written down": ("guardian", *SAVE, "before", 3),
    "guardian, a question written down and not answered": ("guardian", *SAVE, "after", 3),
    "guardian, answered and not charged": ("guardian", *SETTLE, "before", 1),
    "guardian, stored and not charged": ("guardian", *STORE, "after", 1),
    "guardian, charged and nobody told": ("guardian", *SETTLE, "after", 1),
    "student, with some shares": ("student", *RECEIVE_OF_STUDENT, "before", 2),
    "student, sums not written down": ("student", *SAVE, "before", 1),
    "student, sums written down and nothing said": ("student", *SAVE, "after", 1),
    "student, in the middle of the test": ("student", *SEND, "before", 3),
    "student, in the middle of the argmax": ("student", *SEND, "before", 5),
    "student, answers half written": ("student", *WRITE_ABOUT, "before", 1),
    "student, answers written and nothing said": ("student", *WRITE_ABOUT, "after", 1),
    "student, not confirmed": ("student", "tasks.parties.student", "StudentHost._confirmed", "before", 1),
    "teacher, shares not written down": ("party-2", *SAVE, "before", 1),
    "teacher, shares written down and not sent": ("party-2", *SAVE, "after", 1),
    "teacher, one share sent": ("party-2", *SEND, "before", 2),
    "teacher, both shares sent": ("party-2", *SEND, "after", 2),
}


WITHOUT_CIRCUIT = [case for case in KILLED if not any(word in case for word in ("test", "argmax", "question"))]

# Of three rounds, in the second or between two of them.
KILLED_BETWEEN = {
    "guardian, between rounds": ("guardian", *NEXT_ROUND, "before", 1),
    "guardian, with some shares": ("guardian", *RECEIVE, "before", 7),
    "guardian, noise drawn and not written down": ("guardian", *SAVE, "before", 2),
    "guardian, noise written down and nothing sent": ("guardian", *SAVE, "after", 2),
    "guardian, the last noise not written down": ("guardian", *SAVE, "before", 3),
    "student, opened and not written down": ("student", *SAVE, "before", 2),
    "student, opened and nothing said": ("student", *SAVE, "after", 2),
    "student, sums not written down": ("student", *SAVE, "before", 3),
    "student, sums written down and nothing said": ("student", *SAVE, "after", 3),
    "student, the head told to some": ("student", *SEND, "before", 4),
    "student, answers half written": ("student", *WRITE_ABOUT, "before", 1),
    "teacher, asked at a head": ("party-2", *RECEIVE_OF_TEACHER, "before", 1),
    "teacher, shares not written down": ("party-2", *SAVE, "before", 2),
    "teacher, shares written down and not sent": ("party-2", *SAVE, "after", 2),
    "teacher, one share sent": ("party-2", *SEND, "before", 4),
}


# Of averages: in the first, between the last and the votes, and when the votes' own noise is drawn.
KILLED_OF_AVERAGES = {
    "guardian, noise of an average written down and nothing sent": ("guardian", *SAVE, "after", 2),
    "guardian, between averages and votes": ("guardian", *NEXT_ROUND, "before", 3),
    "guardian, noise of the votes not written down": ("guardian", *SAVE, "before", 4),
    "student, the last average told to some": ("student", *SEND, "before", 10),
    "teacher, asked to vote": ("party-2", *RECEIVE_OF_TEACHER, "before", 3),
    "teacher, votes written down and not sent": ("party-2", *SAVE, "after", 4),
}


OF_ONE_ROUND = [
    *((case, terms_of(), kill) for case, kill in KILLED.items()),
    *((case, terms_of_sums(), KILLED[case]) for case in WITHOUT_CIRCUIT),
]
OF_ROUNDS = [
    *((case, terms_of_gradients(), kill) for case, kill in KILLED_BETWEEN.items()),
    *((case, terms_of_averages(), kill) for case, kill in KILLED_OF_AVERAGES.items()),
]


def check_killed(case, terms, kill, folder):
    """A party that is killed at this moment comes back, and the batch is answered once."""
    # Where all is done but for a word, a party waits for it for as long as its patience lasts.
    terms, votes = trial(folder, terms, patience=8.0 if "not confirmed" in case else 40.0)
    victim, *moment = kill
    codes = run(folder, names_of(terms), victim=victim, kill=moment)
    # A process that was killed was started again, so nobody may have failed; but a teacher party that was killed when
    # all was sent may find that everybody has gone home.
    assert codes["guardian"] == codes["student"] == 0, words(folder, "guardian") + words(folder, "student")
    if not victim.startswith("party"):
        assert victim in words(folder, victim)
    check_answered_once(folder, terms, votes)
    outcome = json.loads((folder / "student" / "answers" / "answers.json").read_text())
    if outcome["guardian"] is None:  # confirmed when both are run again, at no cost
        run(folder, ["guardian", "student"])
        check_answered_once(folder, terms, votes)
