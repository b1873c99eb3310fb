"""What a trial's guardian and student party released: the answers, and the ledger's rows."""

import numpy as np
import pytest

from tasks.parties.answers import read_arrays
from tasks.parties.config import read_party
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from tests.party_processes import plain_answers


def ledger_of(folder):
    place = folder / "guardian" / "ledger"
    key = load_or_create_key(place / "key")
    return Ledger(f"sqlite:///{place / 'ledger.db'}", place / "releases", key)


def rows_of(folder, kind):
    return [row for row in ledger_of(folder).rows() if row.kind == kind]


def answers_of(folder):
    arrays = read_arrays(read_party(folder / "student" / "party.yaml"))
    return arrays["passed"], arrays["result"]


def names_of(terms):
    return ["guardian", "student", *terms.teachers]


def check_answered_once(folder, terms, votes, absent=(), gone=None):
    """The answers are the plaintext mechanism's, the ledger has one release, charged with what it cost."""
    counted = {name: own for name, own in votes.items() if name not in absent}
    passed, result = plain_answers(terms, counted, gone=gone)
    got_passed, got_result = answers_of(folder)
    np.testing.assert_array_equal(got_passed, passed)
    np.testing.assert_array_equal(got_result, result)
    (reserve,), (commit,) = rows_of(folder, "reserve"), rows_of(folder, "commit")
    assert reserve.release_id == commit.release_id
    queries = terms.asked
    if terms.mechanism == "moments":
        cost = most = 4.5 / terms.sigma**2
    elif terms.mechanism == "gradients":
        cost = most = 4.5 / terms.sigma**2 + terms.rounds * (2 * terms.clip / terms.sigma_gradients) ** 2
    elif terms.mechanism == "confident":
        cost, most = queries / terms.sigma1**2, 2 * queries / terms.sigma2**2 + queries / terms.sigma1**2
        cost += 2 * passed.sum() / terms.sigma2**2
    else:
        cost = most = 2 * queries / terms.sigma**2
    if terms.averages is not None:  # a centre, and an update and a control variate in each of two rounds
        cost, most = (figure + 5 * (2 / terms.noise_multiplier) ** 2 for figure in (cost, most))
    assert mu_squared(from_json(reserve.content["event"])) == pytest.approx(most)
    assert mu_squared(from_json(commit.content["event"])) == pytest.approx(cost)
    assert ledger_of(folder).verify() == 3
