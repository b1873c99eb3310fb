"""Small trials with real processes, and processes that kill themselves at a chosen moment.

Processes are forked from a server that has loaded what they need, so that a trial of five takes a second.
"""

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml

from tasks.parties.agreement.terms import Terms
from tasks.parties.trial import CONFIG, PartyProcess, free_endpoints, lay_out, teachers_of_parties
from terrine.aggregation.records import STEP, Records, on_grid, row_type
from terrine.aggregation.votes import histograms_of
from tests.processes import CONTEXT

SEED = 11
CLASSES = 4


def terms_of(parties=3, held=2, queries=20, **changes):
    """Terms of a small confident vote that most queries pass."""
    teachers = teachers_of_parties(parties * held, parties)
    values = {"mechanism": "confident", "threshold": parties * held / 2, "sigma1": 4.0, "sigma2": 3.0}
    values |= {"teachers": teachers, "minimum": (parties - 1) * held, "queries": queries, "asked": queries}
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
    "control_release": "released",
    "rounds": 3,
    "steps": 2,
    "learning_rate": 0.5,
    "batch": 8,
    "clip": 2.0,
    "budget_share": 0.5,
}


def terms_of_averages(**changes):
    """Terms of a centre, two averages of five numbers with their control variates, and then votes."""
    values = {"sigma": 4.0, "threshold": None, "sigma1": None, "sigma2": None, "mechanism": "histogram"}
    values |= {"teaching": {"seed": 3, "teachers": AVERAGED}, "noise_multiplier": 2.0, "weights": 5, "features": 3}
    return terms_of(**(values | changes))


class ToyTeachers:
    """Teachers that move to where they want to be, and vote by where they are: what a party of averages shares."""

    def __init__(self, terms, wanted):
        self.terms, self.shared, self.wanted = terms, terms.averages, wanted

    def vectors(self, number, question):
        """What each of them adds in a round: [teachers, length] for every vector of it."""
        if number == 0:
            return [self.wanted[:, :3]]
        start = self.shared.start(question, number)
        value = np.zeros(5) if start.average is None else start.average.value
        moved = self.wanted - value + start.centre.sum()
        return [moved, moved / 3 + number]

    def votes(self, question):
        """Their votes at what the last average led to: whole numbers [asked, teachers]."""
        start = self.shared.start(question, self.shared.passes)
        place = (self.wanted + start.average.value + start.average.control) @ np.arange(1, 6)
        queries = np.arange(self.terms.asked)[:, None]
        return np.floor(place + queries / 7 + start.centre.sum()).astype(np.int64) % self.terms.classes

    def __call__(self, number, question):
        if number == self.shared.passes:
            return self.votes(question)
        return self.shared.shared(self.vectors(number, question), number)[:, None]


def votes_on(terms, seed=0):
    """Votes of each party, by name; teachers mostly agree. Of sums: those of each party, or its records; of averages
    where its teachers want to be."""
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


def trial(folder, terms=None, votes=None, *, deadline=30.0, patience=40.0, guardian=None):
    """Lay out a trial with replayed noise, and write the votes; return the terms and the votes."""
    terms = terms or terms_of()
    votes = votes or votes_on(terms)
    settings = {"ledger": {"account": "trial", "epsilon": None}, "noise": "replay", "replay_seed": SEED}
    lay_out(
        folder,
        terms,
        free_endpoints(),
        guardian=guardian or settings,
        teachers=dict.fromkeys(terms.teachers, _given(terms)),
        common={"deadline": deadline, "patience": patience},
    )
    for name, own in votes.items():
        np.save(folder / name / "votes.npy", own)
    return terms, votes


def _given(terms):
    if terms.averages is None:
        return {"votes": "votes.npy", "unit": terms.unit}
    return {"own": {"params": {}, "images": "queries", "backbone": "backbone"}}


def _plain_averages(terms, wanted, noise, gone):
    """The votes after averages that one place makes of all teachers' vectors: nothing here knows of shares."""
    averaging, clips = terms.averages.averaging, []
    toys = {name: ToyTeachers(terms, own) for name, own in wanted.items()}
    value, control, question = np.zeros(5), np.zeros(5), None
    for number in range(terms.averages.passes):
        there = [toy for name, toy in toys.items() if number < gone.get(name, number + 1)]
        vectors = zip(*(toy.vectors(number, question) for toy in there), strict=True)
        clips = [averaging.centre_mechanism] if number == 0 else averaging.mechanisms(number - 1)
        means = [clip.release(own, noise) / terms.total for clip, own in zip(clips, vectors, strict=True)]
        if number == 0:
            centre = question = means[0]
            continue
        value, control = value + means[0], control + means[1]
        question = np.concatenate([centre, value, control])
    return {name: toy.votes(question) for name, toy in toys.items() if name not in gone}


def _summing(terms, own):
    if terms.rounds is None:
        return lambda question: own
    return terms.fixed_point.course.summing(Records.of(own["vector"], own["label"], own["unit"], terms.classes))


def plain_answers(terms, votes, seed=SEED, gone=None):
    """What the plaintext mechanism answers on these votes and the guardian's noise, in whole votes on the counts.

    gone: by name, from which round on a party was away.
    """
    from terrine.privacy.clipped_sum import add_noise
    from terrine.privacy.noise import ReplayNoise

    if (sums := terms.fixed_point) is not None:
        noise, descent, opened = ReplayNoise(seed), sums.course.descent(sums.length), []
        summing = {name: _summing(terms, own) for name, own in votes.items()}
        for number in range(sums.course.passes):
            there = [own for name, own in summing.items() if number < (gone or {}).get(name, number + 1)]
            total = sum(summed(descent.question) for summed in there)
            parts, drawn = sums.parts(number), []
            for part, (_, sigma) in zip(
                np.split(total, np.cumsum([count for count, _ in parts])[:-1]), parts, strict=True
            ):
                drawn.append(add_noise(part, sigma, noise, STEP))
            descent.take(np.concatenate(drawn))
            opened.append(np.concatenate(drawn) / sums.step(number))
        return np.ones(sums.numbers, bool), np.concatenate(opened)[:, None]
    noise = ReplayNoise(seed)
    if terms.averages is not None:
        votes = _plain_averages(terms, votes, noise, gone or {})
    counts = histograms_of(np.concatenate(list(votes.values()), axis=1)[: terms.asked], terms.classes)
    if terms.mechanism == "confident":
        passed = counts.max(axis=1) + noise.gaussian(len(counts), terms.sigma1) >= terms.threshold
        noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma2) + 0.5)
    else:
        passed = np.ones(len(counts), bool)
        noisy = counts + np.floor(noise.gaussian(counts.shape, terms.sigma) + 0.5)
    if terms.mechanism == "histogram":
        return passed, noisy.astype(np.int64)
    return passed, np.where(passed, noisy.argmax(axis=1), -1)


def _run(config, kill, epsilon, alone):
    log = open(Path(config).parent / "log.txt", "a")  # noqa: SIM115
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    logging.getLogger("terrine.party").handlers.clear()
    _close_without_the_gone(Path(config).parent.parent)
    if (Path(config).parent / "votes.npy").is_file():
        _learn_as_toys()
    if kill == "spoil":
        _spoil_frames()
    elif kill == "cheat":
        _hide_different_bits()
    elif kill == "hold":
        _hold_guardian()
    elif kill == "stay":
        _stay()
    elif kill is not None:
        arm(*kill)
    from tasks.parties import host, process

    if alone:
        host._FLUSH = 0.0
    if epsilon is not None:
        process.run_party = lambda path: _measure(path, epsilon)
    sys.argv = ["party", str(config)]
    process.main()


def _measure(path, epsilon):
    """Take part in the release of one accuracy; a teacher party's own figures lie in its folder."""
    from tasks.parties.agreement.accuracy import AccuracyTerms
    from tasks.parties.config import read_party
    from tasks.parties.measuring import measure

    config, own = read_party(path), path.parent / "shares.npy"
    measure(config, AccuracyTerms.of(config.terms, epsilon, "d" * 64), np.load(own) if own.exists() else None)


def _learn_as_toys():
    """Have a party of averages that was given a file teach toys; nothing of it needs torch."""
    from tasks.parties import teacher

    plain = teacher.given_by

    def given_by(config, name):
        if config.terms.averages is None:
            return plain(config, name)
        return ToyTeachers(config.terms, np.load(config.own.work.parent / "votes.npy"))

    teacher.given_by = given_by


def _spoil_frames():
    """Have this process send frames in which one bit is wrong."""
    from terrine.collaboration.transport.wire import Wire

    plain = Wire.send
    Wire.send = lambda wire, to, frame: plain(wire, to, frame[:-1] + bytes([frame[-1] ^ 1]))


def _hide_different_bits():
    """Have this student party hide different bits in different columns of its transfers."""
    from terrine.collaboration.protocol import student
    from tests.collaboration_transfers import Cheater, flips_of

    class Spread(Cheater):
        def extend(self, bits):
            self.flips = flips_of(bits.size, [(column, column) for column in range(1, 128)])
            return super().extend(bits)

    student.ExtensionReceiver = Spread


def gone(folder, name):
    """Say of a teacher party that it will not come (again), so that a guardian's deadline need not pass."""
    (folder / f"{name}.gone").touch()


def _close_without_the_gone(folder):
    """Have a guardian's deadline be past as soon as each teacher party has shared, was refused by guardian and student
    party, or is gone: no test waits for a deadline, and none is missed where a machine is slow."""
    from tasks.parties.guardian import GuardianHost

    plain = GuardianHost.look_at_the_clock

    def look_at_the_clock(self):
        if self._guardian is not None and not self._guardian.closed:
            without = {name for name in self._awaited if (folder / f"{name}.gone").exists()}
            without |= {name for name in self._refused if f"from '{name}' was refused" in words(folder, "student")}
            if without and self._awaited <= without.union(self._guardian.complete):
                self._closing_at = 0.0
        plain(self)

    GuardianHost.look_at_the_clock = look_at_the_clock


def _stay():
    """Have the guardian stay for parties that are late, as `terrine party vote` does."""
    from tasks.parties import process

    plain = process.run_party
    process.run_party = lambda config: plain(config, stay=True)


def _hold_guardian():
    """Have the guardian wait, once, before it announces who is there, for the next process of the student."""
    from tasks.parties.guardian import GuardianHost

    plain, held = GuardianHost.deliver, []

    def deliver(self, sends):
        if self.party is not None and self.party.closed and not held:
            held.append(True)
            links, end = self.wire._node.links, time.monotonic() + 30
            # It may not have been met yet.
            while ("student" not in links or links["student"].instance is None) and time.monotonic() < end:
                time.sleep(0.002)
            print("held", flush=True)
            while not links["student"].restarted and time.monotonic() < end:
                time.sleep(0.002)
        return plain(self, sends)

    GuardianHost.deliver = deliver


def arm(module, qualified, when, count):
    """Have this process kill itself before or after the so-manyth call of a function."""
    owner = importlib.import_module(module)
    *path, name = qualified.split(".")
    for part in path:
        owner = getattr(owner, part)
    plain, calls = getattr(owner, name), []

    def armed(*arguments, **options):
        calls.append(name)
        if when == "before" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if when == "after" and len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)


def start(folder, name, kill=None, epsilon=None, alone=False):
    """Start one party of a trial: for its vote, or for the accuracy that is released at this price.

    alone: nobody else is there, so that its last word is not given the time to arrive.
    """
    process = CONTEXT.Process(target=_run, args=(str(folder / name / CONFIG), kill, epsilon, alone), daemon=True)
    process.start()
    return process


def until(condition, limit=60.0):
    """Return what a condition gives once that is true; fail where it never is."""
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def change(path, **values):
    """Give a YAML file other values, and none of those that are None."""
    content = yaml.safe_load(path.read_text()) | values
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return path


class Forked:
    """A forked process with the ways of one that was started with a program."""

    def __init__(self, process):
        self._process, self.pid = process, process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()

    def wait(self, timeout):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)


def start_forked(config, *more):
    """What `tasks.parties.trial.start_party` does, with processes that have loaded what they need."""
    for other in more:
        start(other.parent.parent, other.parent.name)
    return PartyProcess(config, Forked(start(config.parent.parent, config.parent.name)), config.parent / "log.txt")


def words(folder, name):
    """What a party said."""
    path = folder / name / "log.txt"
    return path.read_text() if path.exists() else ""


def run(folder, names, *, victim=None, kill=None, again=True, limit=120.0, epsilon=None):
    """Run parties of a trial, one of which kills itself and is started again; return the exit codes by name.

    again: "nobody": it is not started again, and the others, who would wait for it, are ended as soon as each has
    noticed, or nobody else is left, with all that it said before.

    Where teacher parties are among them, those that do not run are `gone`.
    """
    before = {name: words(folder, name) for name in names}
    together, again = again == "nobody", again is True
    alone = len(names) == 1
    teachers = {path.parent.name for path in folder.glob("party-*/party.yaml")}
    for name in teachers:
        (folder / f"{name}.gone").unlink(missing_ok=True)
    processes = {name: start(folder, name, kill if name == victim else None, epsilon, alone) for name in names}
    try:
        end = time.monotonic() + limit
        while time.monotonic() < end:
            ended = {name for name, process in processes.items() if process.exitcode is not None}
            if victim in ended and processes[victim].exitcode == -signal.SIGKILL and again:
                processes[victim] = start(folder, victim, None, epsilon)
                ended.remove(victim)
                again = False
            if teachers.intersection(names):
                for name in teachers - (processes.keys() - ended):
                    gone(folder, name)
            if together and victim in ended:
                for name, process in processes.items():
                    noticed = f"{victim}: the connection ended" in words(folder, name).removeprefix(before[name])
                    if noticed or len(ended) == len(processes) - 1:
                        process.kill()
            if len(ended) == len(processes):
                break
            time.sleep(0.02)
        assert not (again and isinstance(kill, tuple | list)), f"{victim} never came to the moment it was to die at"
        codes = {name: process.exitcode for name, process in processes.items()}
        assert None not in codes.values(), f"{codes} after {limit} s\n" + "\n".join(
            words(folder, name)[-1500:] for name in names
        )
        return codes
    finally:
        for process in processes.values():
            if process.exitcode is None:
                process.kill()
            process.join(5)
