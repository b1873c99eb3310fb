"""One accuracy of all parties: what is opened, what it costs, and what anybody sees of it."""

import json

import numpy as np
import pytest

from tasks.parties.agreement.accuracy import AccuracyTerms
from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from tasks.parties.measuring import PLACE, meeting
from tasks.parties.standing import standing
from terrine.collaboration.protocol.messages import Kind
from terrine.collaboration.transport.link import difference
from terrine.errors import SettingError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.pricing import price
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_accuracy import NoisedAccuracy
from tests.collaboration_sessions import answered
from tests.party_kills import SAVE, SETTLE
from tests.party_processes import SEED, change, run, terms_of, terms_of_gradients, trial, words
from tests.party_releases import names_of, rows_of

EPSILON, STUDENT = 1.0, "d" * 64
KILLED = {
    "nobody": (None, None),
    "guardian, noise drawn and not written down": ("guardian", (*SAVE, "before", 1)),
    "guardian, noise written down and nothing sent": ("guardian", (*SAVE, "after", 1)),
    "guardian, opened and not charged": ("guardian", (*SETTLE, "before", 1)),
    "guardian, charged and not said so": ("guardian", (*SETTLE, "after", 1)),
    "student, nothing written down": ("student", (*SAVE, "before", 1)),
    "student, opened and not written down": ("student", ("tasks.parties.student", "StudentHost._keep", "before", 1)),
    "teacher, its shares not written down": ("party-2", (*SAVE, "before", 1)),
}


def lay_out(folder, terms=None):
    """A trial, in which each party is right about some of its own; the shares of all units."""
    terms, _ = trial(folder, terms, patience=10.0)
    shares = [np.random.default_rng(number).random(40 + number).round(1) for number in range(len(terms.teachers))]
    for name, own in zip(terms.teachers, shares, strict=True):
        np.save(folder / name / "shares.npy", own)
    return terms, np.concatenate(shares)


def opened(folder):
    """What the student party has, and what the guardian said of it."""
    config = read_party(folder / "student" / "party.yaml")
    terms = AccuracyTerms.of(config.terms, EPSILON, STUDENT)
    own = meeting(config, terms)
    about = json.loads((own.answers / "answers.json").read_text())
    return terms, terms.fixed_point.released(read_arrays(own)["result"][:, 0])["sums"], about["guardian"]


@pytest.mark.parametrize("killed", KILLED)
def test_one_accuracy_is_opened_with_the_noise_of_one_and_charged_once_whoever_is_killed(killed, tmp_path):
    terms, shares = lay_out(tmp_path, terms_of_gradients(overlap=2) if killed == "nobody" else None)
    victim, kill = KILLED[killed]
    codes = run(tmp_path, names_of(terms), victim=victim, kill=kill, epsilon=EPSILON)
    # A teacher party may find that everybody has gone home.
    assert codes["guardian"] == codes["student"] == 0, words(tmp_path, "guardian") + words(tmp_path, "student")
    if opened(tmp_path)[2] is None:  # confirmed when both are run again, at no cost
        run(tmp_path, ["guardian", "student"], epsilon=EPSILON)
    found, sums, record = opened(tmp_path)
    mechanism = NoisedAccuracy(found.sigma)
    np.testing.assert_array_equal(sums, mechanism.release(shares, ReplayNoise(SEED)))
    assert abs(mechanism.estimate(sums).accuracy - shares.mean()) < 4 * mechanism.plus_minus(len(shares))
    (commit,) = rows_of(tmp_path, "commit")
    assert len(rows_of(tmp_path, "reserve")) == 1
    assert price(from_json(commit.content["event"]), terms.delta) == pytest.approx(EPSILON, rel=1e-6)
    assert record["counted"] == list(terms.teachers)
    for name in (name for name, code in codes.items() if code == 0):
        assert [f"one accuracy of all, at ε = {EPSILON:g}", "released"] in standing(tmp_path / name / "party.yaml")[
            "session"
        ]
    # Who heard that it is over keeps no shares; who did not would need them, were it run again.
    assert not [path for name, code in codes.items() if code == 0 for path in (tmp_path / name).glob("state/*/*/*.npz")]


def test_it_is_charged_on_top_of_the_vote_once_and_to_a_partys_own_account(tmp_path):
    terms, _ = lay_out(tmp_path, terms_of(name="Lungs", edition="2"))
    path = tmp_path / "party-1" / "party.yaml"
    path.write_text(path.read_text() + "ledger: {account: patients, epsilon: null}\n")
    names = names_of(terms)
    assert set(run(tmp_path, names).values()) == {0}
    vote = (tmp_path / "student" / "answers" / "answers.npz").read_bytes()
    assert set(run(tmp_path, names, epsilon=EPSILON).values()) == {0}
    ledger = {"account": "trial", "epsilon": None, "run": "another name"}
    change(tmp_path / "guardian" / "party.yaml", ledger=ledger)
    assert set(run(tmp_path, names[:2], epsilon=EPSILON).values()) == {0}  # again, and nothing is drawn
    assert len(rows_of(tmp_path, "commit")) == 2
    _, _, record = opened(tmp_path)
    assert record["epsilon_total"] > max(EPSILON, record["epsilon"])
    assert (tmp_path / "student" / "answers" / "answers.npz").read_bytes() == vote
    place = tmp_path / "party-1" / "ledger"
    own = Ledger(f"sqlite:///{place / 'ledger.db'}", place / "releases", load_or_create_key(place / "key"))
    assert [row.kind for row in own.rows()].count("commit") == 2
    reserved = [*rows_of(tmp_path, "reserve"), *(row for row in own.rows() if row.kind == "reserve")]
    assert [row.content["run"] for row in reserved] == ["Lungs, edition 2"] * 4


@pytest.mark.parametrize("overlap", [1, 2, 3])
def test_somebody_at_several_parties_moves_the_sums_by_what_is_charged_and_by_all_of_it(overlap):
    terms = AccuracyTerms.of(terms_of(overlap=overlap), EPSILON, STUDENT)
    event = terms.event()
    assert EPSILON * (1 - 1e-6) < price(event, terms.delta) <= EPSILON
    step, rest, moved = terms.fixed_point.step(0), np.array([1.0, 0.0, 0.5]), []
    for before, after in ((1.0, 0.0), (0.0, 1.0), (None, 1.0), (0.0, None), (0.25, 0.75)):
        own = [
            terms.shared(rest if share is None else np.append(rest, share)).astype(float) * step
            for share in (before, after)
        ]
        moved.append(overlap * np.linalg.norm(own[1] - own[0]))
    assert max(moved) == pytest.approx(event.sensitivity, abs=1e-5)
    assert max(moved) <= event.sensitivity


def test_who_measures_another_student_or_at_another_price_is_told():
    terms = terms_of()
    ours = AccuracyTerms.of(terms, EPSILON, STUDENT).public()
    for other in (
        AccuracyTerms.of(terms, EPSILON, "e" * 64),
        AccuracyTerms.of(terms, 2.0, STUDENT),
        AccuracyTerms.of(terms_of(sigma2=3.5), EPSILON, STUDENT),
    ):
        assert difference(ours, other.public(), ("uni", "north"))
    with pytest.raises(SettingError, match="too coarse"):
        AccuracyTerms.of(terms, 1e-9, STUDENT)


@pytest.fixture(scope="module")
def views():
    """What each party was sent in sessions in which party-1 is right about all its units, or none, party-3 the other
    way round, and all together always about as many."""
    terms = AccuracyTerms.of(terms_of(held=1, minimum=3), EPSILON, STUDENT)
    which, seen = np.random.default_rng(5).integers(0, 2, 700), {}
    for number, kind in enumerate(which):
        own = [np.full(8, float(kind)), np.full(8, 0.5), np.full(8, 1.0 - kind)]
        agreed = terms.agreement(f"{number:032x}", "0" * 64)
        shared = np.concatenate([terms.shared(shares) for shares in own], axis=1)
        _, student, loop = answered(agreed, shared, lambda _, shape: np.ones(shape, int))
        assert (student.result[:, 0] == terms.shared(np.concatenate(own))[:, 0] + 1).all()
        for sender, to, frame in loop.record:
            if Kind(frame[6]) in (Kind.SHARES, Kind.COUNTS):
                seen.setdefault((sender, to), []).append(np.frombuffer(frame[-16:], "<u8"))
    return which, {key: np.stack(rows) for key, rows in seen.items()}


def test_nobody_sees_another_partys_accuracy(views):
    from tests.terrine.collaboration.protocol.test_transcript import LEAST, homogeneity

    which, seen = views
    assert {to for _, to in seen} == {"guardian", "student"}
    assert len(seen) == 7
    for numbers in seen.values():
        for shift in (0, 40, 44, 60):
            for number in (0, 1):
                assert homogeneity((numbers[:, number] >> np.uint64(shift) & np.uint64(15)).astype(int), which) > LEAST
    both = seen["party-1", "guardian"] + seen["party-1", "student"]
    assert homogeneity((both[:, 0] >> np.uint64(44) & np.uint64(15)).astype(int), which) < LEAST


def test_the_meeting_has_a_place_of_its_own(tmp_path):
    trial(tmp_path)
    config = read_party(tmp_path / "student" / "party.yaml")
    own = meeting(config, AccuracyTerms.of(config.terms, EPSILON, STUDENT))
    assert (own.state.name, own.answers.parent) == (PLACE, config.answers)
