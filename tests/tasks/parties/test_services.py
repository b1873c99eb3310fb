"""Both services and the teacher parties' commands: one release, charged once, despite crashes in between."""

import contextlib
import json
import shutil
import socket
import ssl
import time

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tasks.parties import student
from tasks.parties.client import CollaborationError, RefusalError, ServiceClient
from tasks.parties.config import CONFIG, read_party
from tasks.parties.keys import create_key, signed_headers
from tasks.parties.ledgers import PaidRelease
from tasks.parties.store import Store
from tasks.parties.submit import CLOSED, submit
from tasks.parties.terms import Terms
from tasks.parties.trial import run_trial, services
from terrine.collaboration.protocol.student_round import StudentRound
from terrine.errors import BudgetError
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
from tests.party_trials import (
    Killed,
    Site,
    change,
    check_answered_once,
    given,
    rows_of,
    terms_of,
    terms_of_averages,
    terms_of_gradients,
    terms_of_sums,
    trial,
)
from tests.terrine.collaboration.protocol.test_report import poisoned

HISTOGRAM = {"mechanism": "histogram", "threshold": None, "sigma1": None, "sigma2": None, "sigma": 3.0}
TERMS = {
    "confident": terms_of(),
    "gnmax": terms_of(**HISTOGRAM | {"mechanism": "gnmax"}),
    "histogram": terms_of(**HISTOGRAM, queried=15),
    "moments": terms_of_sums(),
    "gradients": terms_of_gradients(),
    "averages": terms_of_averages(),
}


@pytest.fixture
def laid_out(tmp_path, monkeypatch):
    """Lay out a trial."""

    def make(terms=None, **changes):
        terms, votes = trial(tmp_path, terms, **changes)
        return Site(tmp_path, terms, given(terms, votes), monkeypatch), terms, votes

    return make


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_answers_and_cost_are_those_of_the_plaintext_mechanism(terms, laid_out, tmp_path):
    site, terms, votes = laid_out(terms)
    site.run()
    check_answered_once(tmp_path, terms, votes)


@pytest.mark.parametrize("victim", ["guardian", "student", "party-2"])
@pytest.mark.parametrize("terms", [TERMS["confident"], TERMS["averages"]], ids=["confident", "averages"])
def test_a_party_killed_at_any_write_comes_back_and_the_batch_is_answered_once(terms, victim, tmp_path, monkeypatch):
    for number in range(1, 200, 4 if terms.last else 1):
        folder = tmp_path / str(number)
        terms, votes = trial(folder, terms)
        with monkeypatch.context() as patch:
            site = Site(folder, terms, given(terms, votes), patch)
            site.kill = (victim, number)
            site.run()
            check_answered_once(folder, terms, votes)
            if site.kill is not None:  # it had fewer writes
                break
            for name in ("guardian", "student"):
                site.end(name)
        shutil.rmtree(folder)
    assert number > 3


@pytest.mark.parametrize(
    ("owner", "name"), [(PaidRelease, "settle"), (PaidRelease, "open"), (student, "write_answers")]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_is_killed_around_a_charge_or_a_file_comes_back(owner, name, when, laid_out, tmp_path, monkeypatch):
    site, terms, votes = laid_out()
    plain, calls = getattr(owner, name), []

    def armed(*arguments):
        calls.append(name)
        if when == "before" and len(calls) == 1:
            raise Killed("guardian" if owner is PaidRelease else "student")
        result = plain(*arguments)
        if when == "after" and len(calls) == 1:
            raise Killed("guardian" if owner is PaidRelease else "student")
        return result

    monkeypatch.setattr(owner, name, armed)
    site.run()
    check_answered_once(tmp_path, terms, votes)


def test_parties_report_one_after_the_other_twice_and_too_late(laid_out, tmp_path):
    site, terms, votes = laid_out()
    first = site.submit("party-1")
    assert site.submit("party-1")["receipts"] == first["receipts"]
    assert not site.advance()
    assert site.submit("party-3")["reports"] == {"party-1": "accepted"}
    assert not site.advance()  # the minimum is reached, and the deadline is not
    status = json.loads(site.request(*signed(site, "party-2", "student", "GET", "status")))
    assert (status["state"], status["accepted"]) == ("open", ["party-1", "party-3", "student"])
    assert "record" not in status
    later(site)
    assert site.advance()
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])
    site.submit("party-2")
    with pytest.raises(RefusalError, match="too late and is not counted") as refused:
        upload(site, "party-2", body=b"x")
    assert refused.value.status == 409
    # The others get the same receipts, and what they uploaded is gone.
    assert json.loads(upload(site, "party-1"))["signature"] in {one["signature"] for one in first["receipts"]}
    for name in ("guardian", "student", "party-1"):
        content = (tmp_path / name / "state" / "party.db").read_bytes()
        assert kept_body(site, "party-1")[16:80] not in content or name == "party-1"


def test_below_the_minimum_a_round_stays_open_and_costs_nothing(laid_out, tmp_path):
    site, terms, votes = laid_out()
    site.submit("party-1")
    later(site)
    assert not site.advance()
    assert not rows_of(tmp_path, "reserve")
    site.submit("party-2")
    assert site.advance()
    check_answered_once(tmp_path, terms, votes, absent=["party-3"])


def signed(site, name, receiver, method, path, body=b"", key=None, **changes):
    """A request with its headers, some of which may be others."""
    config = site.config(name)
    full = f"/v1/{site.terms.digest}/{path}"
    headers = signed_headers(key or config.key, name, receiver, method, full, body) | changes
    return receiver, method, full, body, headers


def kept_body(site, name, number=0):
    """The report that a party keeps; its bodies follow from its votes if it keeps none."""
    if not hasattr(site, "bodies"):
        site.bodies = {}
    found = Store(site.config(name).state).facts(site.terms.digest, number).get("student")
    return site.bodies.setdefault(name, found)


def upload(site, name, receiver="student", body=None, **changes):
    body = kept_body(site, name) if body is None else body
    return site.request(*signed(site, name, receiver, "PUT", f"rounds/0/reports/{name}", body, **changes))


def later(site):
    """Let the deadline pass."""
    site.advance()
    site.service("student").store.query("UPDATE facts SET value = x'30' WHERE name = 'since'")


def test_another_report_after_a_receipt_and_a_damaged_one_are_refused(laid_out, tmp_path):
    site, terms, votes = laid_out()
    site.submit("party-1")
    site.end("student")
    body = bytearray(kept_body(site, "party-1"))
    body[20] ^= 1
    with pytest.raises(RefusalError, match=r"uploaded another report for this round .* that one counts") as refused:
        upload(site, "party-1", body=bytes(body))
    assert refused.value.status == 409
    with pytest.raises(RefusalError, match="was damaged on the way") as refused:
        site.request(*signed(site, "party-1", "student", "PUT", "rounds/0/reports/party-1", bytes(body),
                             **{"Terrine-Digest": "0" * 64})[:3], bytes(body),
                     signed(site, "party-1", "student", "PUT", "rounds/0/reports/party-1", b"other")[4])  # fmt: skip
    assert refused.value.status == 400
    site.run()
    check_answered_once(tmp_path, terms, votes)


def test_a_party_that_reports_what_is_no_vote_is_told_and_not_counted(laid_out, tmp_path):
    site, terms, votes = laid_out()
    counts = (30, 0, 0, -28)
    state = Store(site.config("party-2").state)
    for service, body in zip(("guardian", "student"), poisoned(terms.agreement(), "party-2", counts), strict=True):
        state.facts(terms.digest, 0).setdefault(service, body)
    for name in terms.teachers:
        site.submit(name)
    site.service("student")._verify(site.collaboration("student"), 0, {*terms.teachers})
    for name in ("guardian", "student"):
        assert site.collaboration(name).verdicts(0)["party-2"] == "refused"
    with pytest.raises(CollaborationError, match="refused the report of party-2: it is not of votes"):
        site.submit("party-2")
    assert site.advance()
    check_answered_once(tmp_path, terms, votes, absent=["party-2"])


@pytest.mark.parametrize(
    ("request_", "status", "sentence"),
    [
        (lambda site: signed(site, "party-1", "student", "GET", "status")[:4], 401, "names no party"),
        (lambda site: signed(site, "party-1", "student", "GET", "status", key=FOREIGN), 401, "by the key"),
        (lambda site: ("student", *signed(site, "party-1", "guardian", "GET", "status")[1:]), 401, "by the key"),
        (lambda site: signed(site, "party-1", "student", "GET", "status", **{"Terrine-Nonce": "0"}), 401, "not signed"),
        (lambda site: signed(site, "party-1", "student", "GET", "status", **{"Terrine-Party": "party-2"}), 401, "key"),
        (lambda site: signed(site, "party-1", "guardian", "POST", "rounds/0/close", b"[]"), 403, "no party that may"),
        (lambda site: signed(site, "student", "guardian", "PUT", "rounds/0/reports/party-1", b"x"), 403, "no party"),
        (lambda site: signed(site, "party-1", "student", "PUT", "rounds/0/reports/party-2", b"x"), 403, "of another"),
        (lambda site: signed(site, "party-1", "student", "PUT", "rounds/1/reports/party-1", b"x"), 404, "no round 1"),
        (lambda site: signed(site, "party-1", "student", "PUT", "rounds/0/reports/party-1", bytes(10**6)), 413, "more"),
        (lambda site: signed(site, "party-1", "student", "PUT", "rounds/0/reports/party-1", b"x"), 401, "by the key"),
        (lambda site: signed(site, "student", "guardian", "POST", "rounds/0/verify", b"{"), 400, "not JSON, a dict"),
        (lambda site: signed(site, "student", "guardian", "POST", "rounds/0/verify", b'[]'), 400, "not JSON, a dict"),
        (lambda site: signed(site, "student", "guardian", "POST", "rounds/0/base", bytes(32)), 409, "not closed"),
        (lambda site: signed(site, "student", "guardian", "POST", "done"), 409, "not closed"),
        (lambda site: signed(site, "student", "guardian", "POST", "rounds/0/close", b'["party-1"]'), 409, "are needed"),
        (lambda site: ("student", "GET", "/v1/unknown/status"), 404, "no part in a collaboration"),
        (lambda site: ("student", "GET", "/"), 404, "Not Found"),
    ],
)  # fmt: skip
def test_foreign_unsigned_and_impossible_requests_are_refused(request_, status, sentence, laid_out):
    site, _, _ = laid_out()
    site.service("student")
    site.service("guardian")
    with pytest.raises(RefusalError, match=sentence) as refused:
        site.request(*request_(site))
    assert refused.value.status == status


FOREIGN = Ed25519PrivateKey.generate()


def test_a_replayed_request_and_one_of_another_time_are_refused(laid_out, monkeypatch):
    site, _, _ = laid_out()
    site.service("student")
    request = signed(site, "party-1", "student", "GET", "status")
    site.request(*request)
    with pytest.raises(RefusalError, match="it is a replay"):
        site.request(*request)
    now = time.time()
    for away in (-1000, 1000):
        monkeypatch.setattr("tasks.parties.keys.time.time", lambda away=away: now + away)
        request = signed(site, "party-1", "student", "GET", "status")
        monkeypatch.setattr("tasks.parties.keys.time.time", lambda: now)
        with pytest.raises(RefusalError, match="away from this service's clock"):
            site.request(*request)


PATHS = ["status", "done", "%00"]
PATHS += [
    f"rounds/0/{what}" for what in ("base", "blocks/0", "blocks/{}0000", "opened/1", "verify", "close", "weights")
]
PATHS += [f"rounds/0/{what}" for what in ("reports/party-1", "counts/3", "reports/%2e%2e")]
PATHS += ["rounds/{}/close", "rounds/{}0000/weights", "rounds/-1/weights"]


def test_malformed_requests_cause_no_error_of_the_server_and_no_memory(laid_out):
    site, terms, _ = laid_out()
    rng, statuses = np.random.default_rng(0), set()
    for name in terms.teachers:
        site.submit(name)
    for number in range(600):
        receiver, caller = [("student", "party-1"), ("guardian", "party-1"), ("guardian", "student")][number % 3]
        path = str(rng.choice(PATHS)).format(rng.integers(0, 10**18))
        if path == "done" or (path.endswith("close") and caller == "student"):
            continue
        body = rng.bytes(int(rng.choice([0, 1, 32, 300, 5000])))
        try:
            receiver, method, path, body, headers = signed(
                site, caller, receiver, str(rng.choice(["GET", "PUT", "POST", "DELETE"])), path, body
            )
            if rng.random() < 0.3:
                headers = {key: str(rng.choice([value, value[:-1], "\x7f", ""])) for key, value in headers.items()}
            site.request(receiver, method, path, body, headers)
        except RefusalError as refused:
            statuses.add(refused.status)
    assert statuses <= {400, 401, 403, 404, 405, 409, 413}
    site.run()


def test_a_guardian_restored_from_a_backup_draws_no_second_noise(laid_out, tmp_path):
    site, terms, votes = laid_out()
    for name in terms.teachers:
        site.submit(name)
    site.service("student")._verify(site.collaboration("student"), 0, {*terms.teachers})
    site.end("guardian")
    shutil.copytree(tmp_path / "guardian", tmp_path / "backup")
    site.service("student")._close(site.collaboration("student"), 0, [*terms.teachers])
    site.end("guardian")
    shutil.copytree(tmp_path / "guardian", tmp_path / "latest")
    restore(tmp_path, "backup")
    with pytest.raises(RefusalError, match="not closed"):
        site.advance()
    assert not rows_of(tmp_path, "reserve")
    site.end("guardian")
    restore(tmp_path, "latest")
    assert site.advance()
    check_answered_once(tmp_path, terms, votes)


def restore(folder, backup):
    shutil.rmtree(folder / "guardian")
    shutil.copytree(folder / backup, folder / "guardian")


def test_a_report_that_a_restored_service_lost_is_uploaded_again(laid_out, tmp_path):
    site, terms, votes = laid_out()
    site.service("guardian")
    site.end("guardian")
    shutil.copytree(tmp_path / "guardian", tmp_path / "backup")
    for name in terms.teachers:
        site.submit(name)
    site.end("guardian")
    restore(tmp_path, "backup")
    assert not site.advance()
    site.run()
    check_answered_once(tmp_path, terms, votes)


def test_a_student_party_with_other_sums_is_told_nothing(laid_out, tmp_path, monkeypatch):
    site, terms, votes = laid_out()
    for name in terms.teachers:
        site.submit(name)
    plain = student.sum_reports
    site.kill = ("guardian", 99)
    monkeypatch.setattr(StudentRound, "_opened", lambda *_: (_ for _ in ()).throw(Killed("student")))
    with pytest.raises(Killed):
        site.advance()
    site.end("guardian")
    site.end("student")
    monkeypatch.undo()
    site = Site(tmp_path, terms, given(terms, votes), monkeypatch)
    monkeypatch.setattr(student, "sum_reports", lambda *arguments: plain(*arguments) + np.uint64(3))
    with pytest.raises(RefusalError, match="is not the one that was answered before"):
        site.advance()
    assert not rows_of(tmp_path, "commit")
    monkeypatch.setattr(student, "sum_reports", plain)
    assert site.advance()
    check_answered_once(tmp_path, terms, votes)


def test_a_party_whose_votes_were_counted_does_not_report_them_once_more(laid_out, tmp_path):
    """Services that both begin again would draw other noise, and the party's account is charged once."""
    site, terms, votes = laid_out()
    change(tmp_path / "party-1" / CONFIG, ledger={"account": "own", "epsilon": None})
    remembered = tmp_path / "party-1" / "state" / CLOSED
    remembered.parent.mkdir(exist_ok=True)
    remembered.write_text('{"an earlier release": 3}')
    site.run()
    for name in terms.teachers:
        site.submit(name)
    assert json.loads(remembered.read_text()).items() > {"an earlier release": 3}.items()
    for name in ("guardian", "student"):
        site.end(name)
        for lost in ("state", "ledger", "answers"):
            shutil.rmtree(tmp_path / name / lost, ignore_errors=True)
    later_terms = Terms(**(terms.public() | {"deadline": 60.0, "name": "again"}))
    for name in terms.roles():
        change(tmp_path / name / "terms.yaml", **later_terms.public())
    site = Site(tmp_path, later_terms, given(later_terms, votes), pytest.MonkeyPatch())
    with pytest.raises(CollaborationError, match="has reported in round 0, and it was counted"):
        site.submit("party-1")
    # Another folder of the same party, beside the same ledger, knows it as well.
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "party-1", moved / "party-1", ignore=shutil.ignore_patterns("state", "ledger"))
    ledger = {"account": "own", "epsilon": None, "url": f"sqlite:///{tmp_path}/party-1/ledger/ledger.db"}
    ledger |= {"key": f"{tmp_path}/party-1/ledger/key", "store": f"{tmp_path}/party-1/ledger/releases"}
    config = read_party(change(moved / "party-1" / CONFIG, ledger=ledger))
    with pytest.raises(CollaborationError, match="has reported in round 0, and it was counted"):
        submit(config, site.given)
    (tmp_path / "party-1" / "state" / CLOSED).write_text("{")
    with pytest.raises(CollaborationError, match=r"cannot be read\. Restore it"):
        site.submit("party-1")


def test_a_partys_own_account_is_charged_once_and_refuses_before_anything_is_uploaded(laid_out, tmp_path):
    site, _, _ = laid_out()
    change(tmp_path / "party-1" / CONFIG, ledger={"account": "own", "epsilon": 1.0})
    with pytest.raises(BudgetError, match="budget"):
        site.submit("party-1")
    assert site.collaboration("student").verdicts(0) == {}
    change(tmp_path / "party-1" / CONFIG, ledger={"account": "other", "epsilon": 40.0})
    site.run()
    site.submit("party-1")
    place = tmp_path / "party-1" / "ledger"
    own = Ledger(f"sqlite:///{place / 'ledger.db'}", place / "releases", load_or_create_key(place / "key"))
    assert [row.kind for row in own.rows()].count("commit") == 1


def test_a_budget_that_does_not_pay_stops_the_guardian_before_anything_is_asked(laid_out):
    site, _, _ = laid_out(guardian={"ledger": {"account": "trial", "epsilon": 1.0}})
    with pytest.raises(BudgetError):
        site.service("guardian")


@contextlib.contextmanager
def half_open(url):
    """Open connections that send nothing, half a TLS greeting, half a request head, and half a body."""
    host, _, port = url.removeprefix("https://").partition(":")
    context, opened = ssl._create_unverified_context(), []
    request = b"PUT /v1/x/status HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
    for number in range(60):
        connection = socket.create_connection((host, int(port)))
        opened.append(connection)
        if number % 4 == 1:
            connection.sendall(b"\x16\x03\x01\x02")
        elif number % 4 > 1:
            opened.append(context.wrap_socket(connection))
            opened[-1].sendall(request if number % 4 == 2 else request + b"\r\nhalf")
    yield
    for connection in opened:
        connection.close()


def test_services_over_tls_and_a_certificate_that_is_not_pinned(tmp_path):
    terms, votes = trial(tmp_path, TERMS["histogram"])
    run_trial(tmp_path, given(terms, votes), limit=200.0)
    check_answered_once(tmp_path, terms, votes)
    other = create_key(tmp_path / "other", "student", "https://127.0.0.1:1").certificate
    services_ = terms.public()["services"] | {"student": {"url": "https://127.0.0.1:1", "certificate": other}}
    with services(tmp_path / "guardian" / CONFIG, tmp_path / "student" / CONFIG) as urls:
        config = read_party(tmp_path / "party-1" / CONFIG).model_copy(update={"urls": urls, "patience": 60.0})
        assert ServiceClient(config, "student").json("GET", "status")["state"] == "complete"
        with half_open(urls["student"]):
            start = time.monotonic()
            assert ServiceClient(config, "student").json("GET", "status")["state"] == "complete"
            assert time.monotonic() - start < 30
        foreign = config.model_copy(update={"terms": Terms(**(terms.public() | {"services": services_}))})
        with pytest.raises(CollaborationError, match="another TLS certificate than the terms pin"):
            ServiceClient(foreign, "student").json("GET", "status")
        unpinned = {role: {"url": one["url"]} for role, one in terms.public()["services"].items()}
        trusting = config.model_copy(update={"terms": Terms(**(terms.public() | {"services": unpinned}))})
        with pytest.raises(CollaborationError, match="another TLS certificate than the terms pin, or an untrusted"):
            ServiceClient(trusting, "student").json("GET", "status")
