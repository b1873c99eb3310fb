"""Sessions of several rounds, of which parties are killed, go away or come back with an older state."""

import signal

import numpy as np
import pytest

from tests.party_kills import NEXT_ROUND, OF_ROUNDS, RECEIVE_OF_TEACHER, SAVE, SEND, SETTLE, check_killed
from tests.party_processes import plain_answers, run, terms_of_averages, terms_of_gradients, trial, words
from tests.party_releases import answers_of, check_answered_once, names_of, rows_of


@pytest.mark.parametrize(
    ("case", "terms", "kill"), OF_ROUNDS, ids=[f"{case}-{terms.mechanism}" for case, terms, _ in OF_ROUNDS]
)
def test_a_party_killed_in_or_between_rounds_comes_back_and_the_batch_is_answered_once(case, terms, kill, tmp_path):
    check_killed(case, terms, kill, tmp_path)


@pytest.mark.parametrize(
    ("victim", "kill"),
    [
        ("student", (*SAVE, "after", 2)),  # it has opened the moments
        ("guardian", (*SEND, "after", 2)),  # they are on their way
        ("guardian", (*NEXT_ROUND, "before", 2)),
    ],
)
def test_what_a_round_released_is_released_again_whoever_was_killed(victim, kill, tmp_path):
    # Noise that is no replay: drawn twice, it would be another one, and the student party would say so.
    settings = {"ledger": {"account": "trial", "epsilon": 100.0}, "noise": "secure"}
    terms, _ = trial(tmp_path, terms_of_gradients(), guardian=settings)
    codes = run(tmp_path, names_of(terms), victim=victim, kill=kill)
    assert codes["guardian"] == codes["student"] == 0, words(tmp_path, "guardian") + words(tmp_path, "student")
    assert len(rows_of(tmp_path, "reserve")) == len(rows_of(tmp_path, "commit")) == 1


def test_a_guardian_with_an_older_state_draws_no_round_a_second_time(tmp_path):
    terms, votes = trial(tmp_path, terms_of_gradients())
    names = names_of(terms)
    run(tmp_path, names, victim="guardian", kill=(*SAVE, "after", 2), again="nobody")
    (path,) = (tmp_path / "guardian" / "state").glob("*/sums.npz")
    older = path.read_bytes()
    run(tmp_path, names, victim="guardian", kill=(*SETTLE, "before", 1), again="nobody")
    newer = path.read_bytes()
    # The second round was drawn and opened, the third was opened: a third draw is one too many.
    path.write_bytes(older)
    codes = run(tmp_path, names)
    assert codes["guardian"] == codes["student"] == 1
    assert "the guardian knows of none: its ledger or its state was lost" in words(tmp_path, "student")
    path.write_bytes(newer)
    assert set(run(tmp_path, ["guardian", "student"]).values()) == {0}
    check_answered_once(tmp_path, terms, votes)


@pytest.mark.parametrize("terms", [terms_of_gradients(rounds=4), terms_of_averages()], ids=["gradients", "averages"])
def test_a_party_that_goes_away_between_rounds_is_left_out_of_the_others_and_waited_for_once(terms, tmp_path):
    terms, votes = trial(tmp_path, terms)
    gone = (*RECEIVE_OF_TEACHER, "before", 2)
    codes = run(tmp_path, names_of(terms), victim="party-2", kill=gone, again=False)
    assert codes == {name: -signal.SIGKILL if name == "party-2" else 0 for name in names_of(terms)}
    _, plain = plain_answers(terms, votes, gone={"party-2": 2})
    np.testing.assert_array_equal(answers_of(tmp_path)[1], plain)
    assert len(rows_of(tmp_path, "commit")) == 1
    assert words(tmp_path, "guardian").count("the deadline is past, without party-2") == 1
