"""Small trials: terms, votes, the plaintext mechanism, and both services in one process, killed at any write."""

from functools import partial

import numpy as np
import pytest
import yaml
from starlette.testclient import TestClient

from tasks.parties.answers import read_arrays
from tasks.parties.client import RefusalError, ServiceClient
from tasks.parties.config import CONFIG, read_party
from tasks.parties.keys import signed_headers
from tasks.parties.release import reported
from tasks.parties.serve import make_service
from tasks.parties.service import make_application
from tasks.parties.store import Store
from tasks.parties.submit import submit
from tasks.parties.terms import Terms
from tasks.parties.trial import lay_out, teachers_of_parties, with_keys
from terrine.aggregation.records import STEP, Records, on_grid, row_type
from terrine.aggregation.votes import count_votes
from terrine.privacy.accounting.events import from_json
from terrine.privacy.accounting.gaussian import mu_squared
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key

SEED = 11
CLASSES = 4


def keys_of(*names):
    """Return public keys for which no private keys exist, for terms that no service receives."""
    return {name: f"ed25519:{number:064x}" for number, name in enumerate(names)}


def terms_of(parties=3, held=2, queries=20, **changes):
    """Terms of a small confident vote that most queries pass."""
    teachers = teachers_of_parties(parties * held, parties)
    values = {"mechanism": "confident", "threshold": parties * held / 2, "sigma1": 4.0, "sigma2": 3.0}
    values |= {"teachers": teachers, "minimum": (parties - 1) * held, "queries": queries, "queried": queries}
    services = {role: {"url": "https://127.0.0.1:1"} for role in ("guardian", "student")}
    values |= {"keys": keys_of("guardian", "student", *teachers), "services": services}
    values |= {"unit": "record", "queries_digest": "a" * 64, "query_shards": ["b" * 64], "backbone": "c" * 64}
    values |= {"size": 8, "channels": 1, "epsilon": 30.0, "delta": 1e-5}
    values["class_names"] = [f"class {number}" for number in range(changes.pop("classes", CLASSES))]
    return Terms(**(values | changes))


def terms_of_sums(**changes):
    """Terms of moments of vectors with three coordinates."""
    values = {"mechanism": "moments", "length": 3, "sigma": 2.0, "threshold": None, "sigma1": None, "sigma2": None}
    return terms_of(queries=1, **(values | {"records": 1000, "epsilon": 10.0} | changes))


def terms_of_gradients(**changes):
    """Terms of three rounds: moments, and two of gradients."""
    values = {"mechanism": "gradients", "rounds": 2, "clip": 0.5, "learning_rate": 1.0, "sigma_gradients": 3.0}
    return terms_of_sums(**(values | changes))


AVERAGED = {
    "kind": "averaged",
    "statistics": "original",
    "centre": "shared",
    "rounds": 3,
    "steps": 2,
    "learning_rate": 0.5,
    "batch": 8,
    "clip": 2.0,
    "budget_share": 0.5,
}


def terms_of_averages(**changes):
    """Terms of a centre, two averages of five numbers, and then votes."""
    values = {"sigma": 4.0, "threshold": None, "sigma1": None, "sigma2": None, "mechanism": "histogram"}
    values |= {"teaching": {"seed": 3, "teachers": AVERAGED}, "noise_multiplier": 2.0, "weights": 5, "features": 3}
    return terms_of(**(values | changes))


class ToyTeachers:
    """Teachers that move to where they want to be, and vote by where they are: what a party of averages shares."""

    def __init__(self, terms, wanted):
        self.terms, self.shared, self.wanted = terms, terms.averages, wanted

    def vectors(self, number, broadcast):
        """Return each teacher's vector in a round: [teachers, length]."""
        if number == 0:
            return self.wanted[:, :3]
        start = self.shared.start(broadcast, number)
        value = np.zeros(5) if start.average is None else start.average.value
        return self.wanted - value + start.centre.sum()

    def votes(self, broadcast):
        """Their votes at what the last average led to: whole numbers [asked, teachers]."""
        start = self.shared.start(broadcast, self.shared.passes)
        place = (self.wanted + start.average.value + start.average.control) @ np.arange(1, 6)
        queries = np.arange(self.terms.queried)[:, None]
        return np.floor(place + queries / 7 + start.centre.sum()).astype(np.int64) % self.terms.classes

    def __call__(self, number, broadcast):
        if number == self.shared.passes:
            return self.votes(broadcast)
        return self.shared.shared(self.vectors(number, broadcast), number)[:, None]


def votes_on(terms, seed=0):
    """Return the votes of each party, by name; teachers mostly agree. With sums, return each party's sums or records;
    with averages, the vectors that its teachers are drawn to."""
    generator = np.random.default_rng(seed)
    if terms.averages is not None:
        return {name: generator.normal(size=(held, 5)) for name, held in terms.teachers.items()}
    if terms.rounds is not None:
        return {name: _records(terms, generator) for name in terms.teachers}
    if terms.fixed_point is not None:
        return {name: generator.integers(-(2**44), 2**44, terms.numbers) for name in terms.teachers}
    truth = generator.integers(terms.classes, size=terms.queries)
    votes = {}
    for name, held in terms.teachers.items():
        own = generator.integers(terms.classes, size=(terms.queries, held))
        votes[name] = np.where(generator.random(own.shape) < 0.7, truth[:, None], own).astype(np.uint8)
    return votes


def _records(terms, generator, count=40):
    rows = np.empty(count, row_type(terms.length))
    rows["label"] = generator.integers(terms.classes, size=count)
    vectors = generator.normal(size=(count, terms.length)) + np.eye(terms.classes, terms.length)[rows["label"]]
    rows["vector"] = on_grid(vectors * (1 - 1e-9) / np.linalg.norm(vectors, axis=1, keepdims=True))
    rows["unit"] = generator.integers(20, size=count)
    return rows


def trial(folder, terms=None, votes=None, *, guardian=None, student=None):
    """Lay out a trial with replayed noise; return its terms, with keys, and the votes."""
    terms = terms or terms_of()
    votes = votes or votes_on(terms)
    terms = Terms(**(terms.public() | with_keys(folder, list(terms.teachers))))
    settings = {"ledger": {"account": "trial", "epsilon": None}, "replay_seed": SEED}
    given = {"own": {"params": {"privacy": {"unit": terms.unit}}, "images": "queries", "backbone": "backbone"}}
    teachers = dict.fromkeys(terms.teachers, given)
    lay_out(folder, terms, guardian=settings | (guardian or {}), teachers=teachers, student=student)
    return terms, votes


def given(terms, votes):
    """Return a function from a teacher party's configuration to its report."""
    if terms.averages is not None:
        return lambda config: ToyTeachers(terms, votes[config.name])
    return lambda config: reported(terms, config.name, votes[config.name])


class Killed(BaseException):
    """The process ends here."""


class Site:
    """Both services in this process, whose requests need no network, and the teacher parties' commands.

    A service that was killed is built again from its folder.
    """

    def __init__(self, folder, terms, report_source, monkeypatch):
        self.folder, self.terms, self.given = folder, terms, report_source
        self.services, self.clients, self.kill, self.commits = {}, {}, None, {}
        plain = Store._commit

        def commit(store):
            name = store.path.parent.parent.name
            self.commits[name] = self.commits.get(name, 0) + 1
            if self.kill == (name, self.commits[name]):
                store.close()  # nothing of the transaction is left
                raise Killed(name)
            plain(store)

        def once(client, method, path, body, headers):
            headers = signed_headers(client._key, client._name, client.receiver, method, path, body) | headers
            return self.request(client.receiver, method, path, body, headers)

        monkeypatch.setattr(Store, "_commit", commit)
        monkeypatch.setattr(ServiceClient, "_once", once)

    def config(self, name):
        return read_party(self.folder / name / CONFIG)

    def service(self, name):
        if name not in self.services:
            self.services[name] = make_service(self.config(name))
            self.clients[name] = TestClient(make_application(self.services[name]), raise_server_exceptions=True)
        return self.services[name]

    def end(self, name):
        """Kill a service's process at its current step."""
        if (service := self.services.pop(name, None)) is not None:
            for paid in getattr(service, "_paid", {}).values():
                paid.abandon()
            service.store.close()

    def request(self, receiver, method, path, body=b"", headers=None):
        self.service(receiver)
        response = self.clients[receiver].request(method, path, content=body, headers=headers)
        if response.status_code >= 400:
            raise RefusalError(response.status_code, response.json()["detail"])
        return response.content

    def submit(self, name):
        return submit(self.config(name), self.given)

    def collaboration(self, name):
        return self.service(name).find(self.terms.digest)

    def advance(self):
        """Have the student party do all that it can; return whether it has its record."""
        name = self.terms.student
        while self.service(name).advance(self.collaboration(name)):
            pass
        return self.collaboration(name).whole.get("record") is not None

    def run(self, names=None):
        """Run every party's steps until the release is complete, restarting killed services."""
        steps = [*(partial(self.submit, name) for name in names or self.terms.teachers), self.advance]
        for _ in range(3 * (self.terms.last + 2)):
            for step in steps:
                for _ in range(3):
                    try:
                        done = step()
                        break
                    except Killed as killed:
                        self.kill = None
                        self.end(str(killed))
            if done is True:
                return self
        raise AssertionError("The release is not complete.")


def _plain_averages(terms, wanted, noise, gone):
    """Average all teachers' vectors centrally, without secret sharing, and return the resulting votes."""
    averaging = terms.averages.averaging
    toys = {name: ToyTeachers(terms, own) for name, own in wanted.items()}
    value, control, broadcast = np.zeros(5), np.zeros(5), None
    for number in range(terms.averages.passes):
        there = [toy for name, toy in toys.items() if number < gone.get(name, number + 1)]
        clip = averaging.mechanism if number else averaging.centre_mechanism
        mean = clip.release([toy.vectors(number, broadcast) for toy in there], noise) / terms.total
        if number == 0:
            centre = broadcast = mean
            continue
        settings = averaging.settings
        length = settings.learning_rate * settings.step_decay ** (number - 1)
        value, control = value + mean, control + (-control - mean / (settings.steps * length))
        broadcast = np.concatenate([centre, value, control])
    return {name: toy.votes(broadcast) for name, toy in toys.items() if name not in gone}


def _summing(terms, own):
    if terms.rounds is None:
        return lambda broadcast: own
    return terms.fixed_point.schedule.summing(Records.of(own["vector"], own["label"], own["unit"], terms.classes))


def plain_answers(terms, votes, seed=SEED, gone=None):
    """Return the plaintext mechanism's answers on these votes and the guardian's noise, in whole votes on the counts.

    gone: by name, from which round on a party was away.
    """
    from terrine.privacy.noise import ReplayNoise
    from terrine.privacy.noised_sum import add_noise

    if (sums := terms.fixed_point) is not None:
        noise, descent, opened = ReplayNoise(seed), sums.schedule.descent(sums.length), []
        summing = {name: _summing(terms, own) for name, own in votes.items()}
        for number in range(sums.schedule.passes):
            there = [own for name, own in summing.items() if number < (gone or {}).get(name, number + 1)]
            total = sum(summed(descent.broadcast) for summed in there)
            parts, drawn = sums.parts(number), []
            for part, (_, sigma) in zip(
                np.split(total, np.cumsum([count for count, _ in parts])[:-1]), parts, strict=True
            ):
                drawn.append(add_noise(part, sigma, noise, STEP))
            descent.receive(np.concatenate(drawn))
            opened.append(np.concatenate(drawn) / sums.step(number))
        return np.ones(sums.numbers, bool), np.concatenate(opened)[:, None]
    noise = ReplayNoise(seed)
    if terms.averages is not None:
        votes = _plain_averages(terms, votes, noise, gone or {})
    counts = count_votes(np.concatenate(list(votes.values()), axis=1)[: terms.queried], terms.classes)
    if terms.mechanism == "confident":
        passed = counts.max(axis=1) + noise.gaussian(len(counts), terms.sigma1) >= terms.threshold
        noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma2) + 0.5)
    else:
        passed = np.ones(len(counts), bool)
        noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma) + 0.5)
    if terms.mechanism == "histogram":
        return passed, noisy.astype(np.int64)
    return passed, np.where(passed, noisy.argmax(axis=1), -1)


def change(path, **values):
    """Update values of a YAML file and drop those set to None."""
    content = yaml.safe_load(path.read_text()) | values
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


def ledger_of(folder):
    place = folder / "guardian" / "ledger"
    key = load_or_create_key(place / "key")
    return Ledger(f"sqlite:///{place / 'ledger.db'}", place / "releases", key)


def rows_of(folder, kind):
    return [row for row in ledger_of(folder).rows() if row.kind == kind]


def answers_of(folder):
    arrays = read_arrays(read_party(folder / "student" / CONFIG))
    return arrays["passed"], arrays["result"]


def check_answered_once(folder, terms, votes, absent=(), gone=None):
    """The answers are the plaintext mechanism's, the ledger has one release, charged with what it cost."""
    counted = {name: own for name, own in votes.items() if name not in absent}
    passed, result = plain_answers(terms, counted, gone=gone)
    got_passed, got_result = answers_of(folder)
    np.testing.assert_array_equal(got_passed, passed)
    np.testing.assert_array_equal(got_result, result)
    (reserve,), (commit,) = rows_of(folder, "reserve"), rows_of(folder, "commit")
    assert reserve.release_id == commit.release_id
    queries = terms.queried
    if terms.mechanism == "moments":
        cost = most = 4.5 / terms.sigma**2
    elif terms.mechanism == "gradients":
        cost = most = 4.5 / terms.sigma**2 + terms.rounds * (2 * terms.clip / terms.sigma_gradients) ** 2
    elif terms.mechanism == "confident":
        cost, most = queries / terms.sigma1**2, 2 * queries / terms.sigma2**2 + queries / terms.sigma1**2
        cost += 2 * passed.sum() / terms.sigma2**2
    else:
        cost = most = 2 * queries / terms.sigma**2
    if terms.averages is not None:  # a centre, and a mean update in each of two rounds
        cost, most = (figure + 3 * (2 / terms.noise_multiplier) ** 2 for figure in (cost, most))
    assert mu_squared(from_json(reserve.content["event"])) == pytest.approx(most)
    assert mu_squared(from_json(commit.content["event"])) == pytest.approx(cost)
    assert ledger_of(folder).verify() == 3
