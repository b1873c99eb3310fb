"""One accuracy over all parties: what is opened, what it costs, and what a party sees of it."""

import numpy as np
import pytest

from tasks.parties.accuracy_terms import AccuracyTerms, terms_from
from tasks.parties.answers import read_arrays, stored_answers
from tasks.parties.config import CONFIG
from tasks.parties.submit import submit
from terrine.errors import SettingError
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.pricing import price
from terrine.privacy.noise import ReplayNoise
from terrine.privacy.noised_accuracy import NoisedAccuracy
from tests.collaboration_sessions import answered
from tests.party_trials import SEED, Site, change, given, rows_of, terms_of, terms_of_gradients, trial

EPSILON, STUDENT = 1.0, "d" * 64


MADE = {"confident": terms_of(), "gradients": terms_of_gradients(overlap=2, epsilon=20.0)}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_one_accuracy_is_opened_with_the_noise_of_one_and_charged_once_on_top(made, tmp_path, monkeypatch):
    terms, votes = trial(tmp_path, made)
    change(tmp_path / "party-1" / CONFIG, ledger={"account": "patients", "epsilon": None})
    site = Site(tmp_path, terms, given(terms, votes), monkeypatch).run()
    shares = [np.random.default_rng(number).random(40 + number).round(1) for number in range(len(terms.teachers))]
    accuracy = AccuracyTerms.of(terms, EPSILON, STUDENT)
    assert terms_from(accuracy.public()) == accuracy
    vote = read_arrays(site.config("student"))["result"]
    for name in ("guardian", "student"):
        site.service(name).store.register(accuracy.digest, accuracy.public())  # as `terrine party finish` does
    for own, name in zip(shares, terms.teachers, strict=True):
        config = site.config(name).model_copy(update={"terms": accuracy})
        for _ in range(2):
            submit(config, lambda _, own=own: lambda number, weights: accuracy.shared(own))
    student = site.service("student")
    while student.advance(student.find(accuracy.digest)):
        pass
    config = site.config("student").with_terms(accuracy)
    sums = accuracy.fixed_point.released(read_arrays(config)["result"][:, 0])["sums"]
    mechanism, every = NoisedAccuracy(accuracy.sigma), np.concatenate(shares)
    np.testing.assert_array_equal(sums, mechanism.release(every, ReplayNoise(SEED)))
    assert abs(mechanism.estimate(sums).accuracy - every.mean()) < 4 * mechanism.plus_minus(len(every))
    reserved, commits = rows_of(tmp_path, "reserve"), rows_of(tmp_path, "commit")
    assert (len(reserved), len(commits)) == (2, 2)
    assert [row.content["run"] for row in reserved] == [terms.called] * 2
    assert price(from_json(commits[1].content["event"]), terms.delta) == pytest.approx(EPSILON, rel=1e-6)
    record = stored_answers(config)["guardian"]
    assert record["counted"] == list(terms.teachers)
    assert record["epsilon_total"] > max(EPSILON, record["epsilon"])
    np.testing.assert_array_equal(read_arrays(site.config("student"))["result"], vote)


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


def test_another_student_or_another_price_has_other_terms():
    terms = terms_of()
    ours = AccuracyTerms.of(terms, EPSILON, STUDENT)
    for other in (
        AccuracyTerms.of(terms, EPSILON, "e" * 64),
        AccuracyTerms.of(terms, 2.0, STUDENT),
        AccuracyTerms.of(terms_of(sigma2=3.5), EPSILON, STUDENT),
    ):
        assert other.digest != ours.digest
    with pytest.raises(SettingError, match="too coarse"):
        AccuracyTerms.of(terms, 1e-9, STUDENT)


@pytest.fixture(scope="module")
def views():
    """Messages that each party received, by session. Either party-1 is right about all its units and party-3 about
    none, or the reverse; the total stays the same."""
    terms = AccuracyTerms.of(terms_of(held=1, minimum=3), EPSILON, STUDENT)
    which, seen = np.random.default_rng(5).integers(0, 2, 700), {}
    for kind in which:
        own = [np.full(8, float(kind)), np.full(8, 0.5), np.full(8, 1.0 - kind)]
        agreed = terms.agreement()
        shared = np.concatenate([terms.shared(shares) for shares in own], axis=1)
        _, result, loop = answered(agreed, shared, lambda _, shape: np.ones(shape, int))
        assert (result[:, 0] == terms.shared(np.concatenate(own))[:, 0] + 1).all()
        ((_, _, counts),) = loop.record
        seen.setdefault(("guardian", "student"), []).append(np.frombuffer(counts, "<u8"))
        for name, bodies in loop.reports.items():
            for to, body in zip(("guardian", "student"), bodies, strict=True):
                seen.setdefault((name, to), []).append(np.frombuffer(body[-16:], "<u8"))
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
