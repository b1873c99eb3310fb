"""Run a collaboration of five hospitals with the documented commands only, while everything goes wrong.

    PYTHONPATH=. python benchmarks/five_parties.py [--kills 8]

As root, if other users can run the interpreter, each party has its own user and a private folder; otherwise the
folders and homes belong to one user.

Teacher parties never run at the same time. West has a class of another name, and north first gets a proposal with one
corrupted byte. South submits twice, and again after the guardian was restored from a backup that is older than its
report. East misses the deadline. Both services are killed at their first write, then at their second, and so on.
All parties export the student, and together they release one accuracy.

The script fails unless the ledger has one charge for the answers and one for the accuracy, and answers, ε and accuracy
are exactly those of the plaintext mechanisms on the same votes and noise.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).resolve().parents[1]
HOSPITALS, SERVICES = ("north", "south", "west", "central", "east"), ("trust", "uni")
HELD, SEED, PRICE, DEADLINE = 4, 7, 2.0, 240.0
PRESET: dict[str, Any] = {
    "data": {"name": "folder", "path": "with each party", "size": 8, "channels": 1},
    "partition": {"teachers": 20},
    "queries": {"count": 60, "batch": 12, "sources": {"gaussian": 1, "dead_leaves": 1}},
    "backbone": {"projection": 30},
    "teachers": {"optimiser": "ridge"},
    "aggregation": {"mechanism": "histogram", "sigma": 6.0, "epsilon": 14},
    "student": {"l2": 0.3},
    "ledger": {"account": "trial", "epsilon": 20},
}
# A service that kills itself at its n-th commit; n is the last argument, 0 for never.
KILLED = """
import os, signal, sys
from tasks.parties.store import Store
left, plain = [int(sys.argv.pop())], Store._commit
def commit(store):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(store)
Store._commit = commit
from flows.__main__ import main
main()
"""


class Party:
    """One party: a user with a home folder, and its commands."""

    def __init__(self, place: Path, name: str, user: int | None) -> None:
        self.name, self.home, self._user = name, place / name, user
        self.home.mkdir()
        self.own(self.home)
        self.home.chmod(0o700)
        self.config = self.home / name / "party.yaml"

    def own(self, path: Path) -> None:
        """Give a path to this party's user."""
        if self._user is not None:
            for one in (path, *path.rglob("*")):
                os.chown(one, self._user, self._user)

    def start(self, command: Sequence[str], log: str) -> subprocess.Popen[str]:
        """Start a command of this party."""
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
        environment |= {"TERRINE_ROOT": str(self.home), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(self.home / ".cache")}
        user = {} if self._user is None else {"user": self._user, "group": self._user, "extra_groups": []}
        stream = open(self.home / log, "a")  # noqa: SIM115
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=environment,
            stdout=stream,
            stderr=stream,
            text=True,
            **user,  # type: ignore[call-overload]
        )

    def run(self, *arguments: str, fails: str = "") -> str:
        """Run `terrine party ...`; return what it prints. `fails`: the reason for which it must fail."""
        log = f"{len(list(self.home.glob('*.log'))):02d}-{arguments[0]}.log"
        done = self.start([sys.executable, "-m", "flows", "party", *arguments], log).wait()
        text = " ".join((self.home / log).read_text().split())
        if (done != 0) != bool(fails) or fails not in text:
            raise SystemExit(f"{self.name}: terrine party {' '.join(arguments)} ended with {done}: {text[-1500:]}")
        print(f"{self.name:8} terrine party {arguments[0]}{' is refused: ' + fails if fails else ''}", flush=True)
        return text


class Service:
    """A service that is killed at its first write, then at its second, and so on, and restarted each time."""

    def __init__(self, party: Party, kills: int) -> None:
        self.party, self.killed, self._kills, self._stop = party, 0, kills, threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            at = self.killed + 1 if self.killed < self._kills else 0
            command = [sys.executable, "-c", KILLED, "party", "serve", "--config", str(self.party.config), str(at)]
            process = self.party.start(command, "serve.out")
            while process.poll() is None and not self._stop.wait(0.1):
                pass
            if process.poll() is None:
                process.kill()
                process.wait()
            elif process.returncode == -9:
                self.killed += 1
            else:
                self._stop.set()
                print((self.party.home / "serve.out").read_text()[-2000:])

    def end(self) -> None:
        """Kill the service for good."""
        self._stop.set()
        self._thread.join()


def write_data(parties: dict[str, Party]) -> None:
    """Give every hospital its own digits; west calls the class 9 nine."""
    from terrine.data.source import load_dataset

    whole = load_dataset("digits", size=8)
    for place, name in enumerate(HOSPITALS):
        rows = slice(place * 280, (place + 1) * 280)
        names = [str(digit) for digit in range(10)]
        if name == "west":
            names[9] = "nine"
        images = np.concatenate([whole.train_images, whole.test_images])[rows]
        labels = np.concatenate([whole.train_labels, whole.test_labels])[rows]
        path = parties[name].home / "own.npz"
        np.savez(path, images=images, labels=labels, class_names=names)
        parties[name].own(path)


def rename_class(party: Party) -> None:
    """Have west correct the name of its class."""
    path = party.home / "own.npz"
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **arrays | {"class_names": [str(digit) for digit in range(10)]})


def send(path: Path, party: Party) -> Path:
    """Copy a file to a party."""
    target = party.home / path.name
    shutil.copyfile(path, target)
    party.own(target)
    return target


def corrupt(path: Path) -> Path:
    """Return a copy of an archive with one byte changed, in the last third."""
    content = bytearray(path.read_bytes())
    content[2 * len(content) // 3] ^= 1
    damaged = path.with_name("damaged.zip")
    damaged.write_bytes(content)
    return damaged


def agree(parties: dict[str, Party]) -> None:
    """Keys, proposal and acceptances."""
    from terrine.ports import HOST, free_ports

    uni, lines = parties["uni"], []
    urls = {name: f"https://{HOST}:{port}" for name, port in zip(SERVICES, free_ports(2), strict=True)}
    for name, party in parties.items():
        url = ["--url", urls[name]] if name in urls else []
        lines.append(
            next(line for line in party.run("key", name, *url).split(f"{name} ") if line.startswith("ed25519"))
        )
        lines[-1] = f"{name} {lines[-1]}"
    (uni.home / "experiments").mkdir()
    (uni.home / "keys.txt").write_text("\n".join(lines))
    (uni.home / "params.yaml").write_text("run: own\n")
    (uni.home / "experiments" / "own.yaml").write_text(yaml.safe_dump(PRESET))
    uni.own(uni.home)
    teachers = [word for name in HOSPITALS for word in ("--teacher", f"{name}={HELD}")]
    names = ["--guardian", "trust", "--student", "uni", "--classes", ",".join(map(str, range(10)))]
    options = ["--minimum", str(4 * HELD), "--deadline", f"{DEADLINE:g}s", "--archive"]
    text = uni.run("propose", "digits", "--preset", "own", "--keys", "keys.txt", *teachers, *names, *options)
    digest, archive = text.rpartition("--expect ")[2].split()[0], uni.home / "digits.zip"
    for name, party in parties.items():
        sent = send(archive, party) if party is not uni else archive
        data = ["--data", "own.npz"] if name in HOSPITALS else []
        accept = ["accept", sent.name, "--as", name, *data, "--expect", digest, "--yes"]
        if name == "north":
            damaged = send(corrupt(archive), party)
            party.run("accept", damaged.name, *accept[2:], fails="Error")
        if name == "west":
            party.run(*accept, fails="these data contain 'nine'")
            rename_class(party)
        party.run(*accept)
    # Replayed noise, so that the plaintext mechanism can be compared; everything else stays as it was accepted.
    path = parties["trust"].config
    ledger = yaml.safe_load(path.read_text())["ledger"] | {"epsilon": None}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"replay_seed": SEED, "ledger": ledger}))


def report(parties: dict[str, Party], services: dict[str, Service], kills: int) -> None:
    """Reports one after another, a backup that is restored, and a party that is late."""
    trust, started = parties["trust"], time.monotonic()

    def submit(name: str) -> str:
        return parties[name].run("submit", "--config", str(parties[name].config))

    first = submit("north")
    services["trust"].end()
    backup = trust.home / "backup"
    for name in ("trust", "ledger-trust"):
        shutil.copytree(trust.home / name, backup / name)
    services["trust"] = Service(trust, kills)
    receipts = submit("south")
    if receipts.partition("SHA-256")[2] != submit("south").partition("SHA-256")[2]:
        raise SystemExit("south submitted twice and got other receipts.")
    services["trust"].end()
    for name in ("trust", "ledger-trust"):
        shutil.rmtree(trust.home / name)
        shutil.copytree(backup / name, trust.home / name)
    trust.own(trust.home)
    services["trust"] = Service(trust, kills)
    for name in ("south", "west", "central"):
        submit(name)
    assert first
    print(f"         reports of four hospitals after {time.monotonic() - started:.0f} s; now the deadline", flush=True)
    wait_until(parties["north"], lambda status: "is counted" in status or "finish" in status)
    if "came too late and is not counted" not in submit("east"):
        raise SystemExit("east was not told that it is late.")


def wait_until(party: Party, done: Any, limit: float = 900.0) -> None:
    """Repeat `terrine party status` until it has a text."""
    end = time.monotonic() + limit
    while not done(status := party.run("status", "--config", str(party.config))):
        if time.monotonic() > end:
            raise SystemExit(f"{party.name} waits in vain: {status[-800:]}")
        time.sleep(5)


def finish(parties: dict[str, Party]) -> float:
    """Student, evaluation and export everywhere, and one accuracy; return it as it is printed."""
    uni = parties["uni"]

    def run(party: Party, *options: str) -> str:
        return party.run("finish", "--config", str(party.config), *options)

    run(uni)
    archive = next(uni.home.rglob("student.zip"))
    for name in HOSPITALS:
        send(archive, parties[name])
        run(parties[name], "--student", "student.zip", "--export", "exported")
        assert next((parties[name].home / "exported").rglob("*.onnx"), None), f"{name} exported no student"
    send(archive, parties["trust"])
    price = ["--epsilon", f"{PRICE:g}"]
    run(parties["trust"], "--student", "student.zip", *price)
    run(uni, *price)
    for name in HOSPITALS:
        run(parties[name], "--student", "student.zip", *price)
    wait_until(uni, lambda _: any((uni.home / "uni" / "answers" / "accuracy").rglob("answers.npz")))
    return float(run(uni, *price).partition("Accuracy over all parties, which may be published: ")[2].split()[0])


def check(parties: dict[str, Party]) -> None:
    """Compare answers, ε, charges and accuracy with the plaintext mechanisms."""

    from tasks.parties.accuracy_terms import AccuracyTerms
    from tasks.parties.answers import read_arrays, stored_answers
    from tasks.parties.config import read_party
    from terrine.aggregation.votes import count_votes
    from terrine.privacy.accounting.events import RepeatedEvent, vote_answer
    from terrine.privacy.accounting.gaussian import round_up
    from terrine.privacy.accounting.pricing import price
    from terrine.privacy.ledger.ledger import Ledger, load_or_create_key
    from terrine.privacy.noise import ReplayNoise
    from terrine.privacy.noised_accuracy import NoisedAccuracy

    student = read_party(parties["uni"].config)
    terms, counted = student.terms, HOSPITALS[:-1]
    votes = np.concatenate([np.load(next(parties[name].home.rglob("votes/votes.npy"))) for name in counted], axis=1)[
        : terms.queried
    ]
    counts = count_votes(votes, terms.classes)
    noise = ReplayNoise(SEED).gaussian(counts.shape, terms.sigma)
    np.testing.assert_array_equal(read_arrays(student)["result"], counts + np.floor(noise + 0.5).astype(np.int64))
    about = stored_answers(student)
    assert about is not None
    record = about["guardian"]
    cost = round_up(price(RepeatedEvent(vote_answer(terms.sigma), terms.queried), terms.delta))
    assert (record["epsilon"], record["counted"]) == (cost, list(counted))
    place = parties["trust"].home / "ledger-trust"
    ledger = Ledger(f"sqlite:///{place / 'ledger.db'}", place / "releases", load_or_create_key(place / "key"))
    assert [row.kind for row in ledger.rows()].count("commit") == 2, "more or less than two charges"
    (folder,) = (parties["uni"].home / "uni" / "answers" / "accuracy").iterdir()
    manifest = json.loads(next((parties["uni"].home / "uni" / "work" / "data").rglob("accuracy.json")).read_text())
    tested = manifest["parties"]  # those that met the deadline of this release
    figures = [json.loads(next(parties[name].home.rglob("evaluation.json")).read_text()) for name in tested]
    right = [round(figure["accuracy"] * figure["images"]) for figure in figures]
    every = np.concatenate(
        [np.repeat([1.0, 0.0], [one, figure["images"] - one]) for one, figure in zip(right, figures, strict=True)]
    )
    measured = AccuracyTerms.of(terms, PRICE, manifest["measured"])
    mechanism = NoisedAccuracy(measured.sigma)
    expected = mechanism.estimate(mechanism.release(every, ReplayNoise(SEED))).accuracy
    assert manifest["accuracy"] == expected, (manifest["accuracy"], expected)
    print(f"one charge of ε = {cost:g} and one of ε = {PRICE:g}; answers and accuracy ({expected:.4f}, without noise")
    print(f"{every.mean():.4f}) are exactly those of the plaintext mechanisms. {folder.name[:8]}")


def others_can_run() -> bool:
    """Return whether another user can run this interpreter; it may be in the home folder of root."""
    try:
        return subprocess.run([sys.executable, "-c", ""], user=61_000, check=False).returncode == 0
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="writes at which each service is killed, at each start")
    kills, start = parser.parse_args().kills, time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        place.chmod(0o711)
        first = 61_000 if others_can_run() else None
        names = (*HOSPITALS, *SERVICES)
        parties = {name: Party(place, name, first and first + number) for number, name in enumerate(names)}
        write_data(parties)
        agree(parties)
        services = {name: Service(parties[name], kills) for name in SERVICES}
        try:
            report(parties, services, kills)
            finish(parties)
        finally:
            for service in services.values():
                service.end()
        check(parties)
        killed = {name: service.killed for name, service in services.items()}
    users = "Seven users" if first else "One user with seven homes"
    print(f"{users}. Killed at writes, since the last restoration: {killed}. {time.monotonic() - start:.0f} s.")


if __name__ == "__main__":
    main()
