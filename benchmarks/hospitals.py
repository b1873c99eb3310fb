"""A rehearsal: five hospitals, a guardian and a student party, from the proposal to five exported students.

    python benchmarks/hospitals.py [--folder FOLDER] [--deadline 120] [--teachers linear]

Each party has a folder of its own, which nobody else may read, and each runs as an operating-system user of its own
where this is run by root (`setpriv`). Everything is a command of docs/hospitals.md; what would be mailed is copied. The
student party proposes, an authority enrols, all accept; `west` has its classes in another order. On the way

- the hospital `east` comes with a certificate of another authority, is told so, and comes again with its own;
- `south` is killed while it waits, and is started again;
- the guardian's machine is lost when it has drawn the noise: its folder comes back at another place and address;
- `centre` comes when the round is closed, and is told that it was late.

`--teachers` plays it with teachers of another kind: `averaged`, which learn from one another in rounds before they
vote, `prompt` or `finetune`, on a network that was not pretrained.

Then the student party makes the student and sends it to all, each hospital tests it on its own test split, releases one
accuracy with noise, and exports it. Printed is what each step took; the script fails where a step does not end as it
should, where the ledger has charged anything twice, or where the students are not one and the same.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from tasks.parties.trial import free_endpoints
from tasks.runtime.store import read_json
from terrine.collaboration.transport.credentials import create_authority, issue
from terrine.data.source import load_dataset
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key

REPOSITORY = Path(__file__).resolve().parents[1]
HOSPITALS = ("north", "south", "east", "west", "centre")
LATE, RESTARTED, STRANGE, TURNED = "centre", "south", "east", "west"
EACH = 20
"""Teachers of a hospital."""
BUDGET = 16.0
FIRST_USER = 20_001
PRESET = "hospitals"
SETTINGS = {
    "description": "scikit-learn's digits, dealt to five hospitals",
    "queries": {"count": 2000, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "backbone": {"kind": "scattering", "projection": 80, "invariance": True},
    "teachers": {"optimiser": "ridge", "ridge": 0.1},
    "aggregation": {"mechanism": "histogram", "sigma": 39, "epsilon": 8},
    "student": {"l2": 0.3},
}
KINDS: dict[str, dict[str, Any]] = {
    "linear": {},
    "averaged": {
        "teachers": {"kind": "averaged", "statistics": "original", "centre": "shared", "rounds": 4, "steps": 5}
        | {"learning_rate": 5.0, "step_decay": 0.65, "batch": 32, "clip": 3.0, "budget_share": 0.5},
        "aggregation": {"mechanism": "histogram", "sigma": 55, "epsilon": 8},
    },
    "prompt": {
        "backbone": {"kind": "resnet10", "weights": "initial"},
        "teachers": {"kind": "prompt", "prompt": {"epochs": 2}},
    },
    "finetune": {
        "backbone": {"kind": "resnet10", "weights": "initial"},
        "teachers": {"kind": "finetune", "trainable": 50, "epochs": 2},
    },
}
"""What another kind of teachers changes of the settings."""


class Rehearsal:
    """The folders of all parties below one, and their processes."""

    def __init__(self, folder: Path, teachers: str) -> None:
        self.folder, self.settings = folder, SETTINGS | KINDS[teachers]
        self.users = {
            name: FIRST_USER + place for place, name in enumerate(("guardian", "student", *HOSPITALS, "authority"))
        }
        self.apart = os.geteuid() == 0 and shutil.which("setpriv") is not None
        self._running: list[subprocess.Popen[bytes]] = []
        self._start = time.monotonic()

    def own(self, name: str) -> None:
        """Give a party's folder to its user, and to nobody else."""
        place = self.folder / name
        for path in [place, *place.rglob("*")] if self.apart else []:
            os.chown(path.resolve() if path.is_symlink() else path, self.users[name], self.users[name])
        place.chmod(0o700)

    def start(self, name: str, *arguments: str, within: str = "") -> subprocess.Popen[bytes]:
        """Start `terrine party …` as a party's user, in its folder or one below; what it says goes to log.txt there."""
        place = (self.folder / name).resolve()
        user = str(self.users[name])
        above = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if self.apart else []
        environment = os.environ | {
            "HOME": str(place),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        with open(place / "log.txt", "ab") as log:
            words = [*above, sys.executable, "-m", "flows", "party", *arguments]
            process = subprocess.Popen(words, cwd=place / within, env=environment, stdout=log, stderr=log, stdin=log)
        self._running.append(process)
        return process

    def run(self, name: str, *arguments: str, fails: str | None = None, within: str = "") -> None:
        """Run a command of a party to its end, which is a failure with these words where `fails` says so."""
        self.wait(self.start(name, *arguments, within=within), name, fails=fails)

    def mail(self, source: str, sender: str, receiver: str, target: str) -> None:
        """Bring a file of one party to another."""
        place = self.folder / receiver / target
        place.parent.mkdir(exist_ok=True)
        shutil.copy(self.folder / sender / source, place)
        self.own(receiver)

    def wait(
        self, process: subprocess.Popen[bytes], name: str, *, fails: str | None = None, limit: float = 600
    ) -> None:
        """Wait for a party's command."""
        code = process.wait(limit)
        if bool(code) != (fails is not None) or (fails is not None and fails not in self.words(name)):
            raise SystemExit(f"{name} ended with {code}, and said:\n{self.words(name)[-3000:]}")

    def words(self, name: str) -> str:
        """What a party has said."""
        path = self.folder / name / "log.txt"
        return path.read_text(errors="replace") if path.is_file() else ""

    def until(self, name: str, words: str, limit: float = 300) -> None:
        """Wait until a party has said something."""
        end = time.monotonic() + limit
        while words not in self.words(name):
            if time.monotonic() > end:
                raise SystemExit(f"{name} never said {words!r}, but:\n{self.words(name)[-3000:]}")
            time.sleep(0.02)

    def change(self, name: str, **values: Any) -> None:
        """Set something in a party's party.yaml, as its engineer would."""
        path = self.folder / name / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values, sort_keys=False))

    def say(self, what: str) -> None:
        """Print what is done, and when."""
        print(f"{time.monotonic() - self._start:6.0f} s  {what}", flush=True)

    def end(self) -> None:
        """End what still runs."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(10)


@contextlib.contextmanager
def rehearsal(folder: Path, teachers: str) -> Iterator[Rehearsal]:
    """A rehearsal whose processes end with it."""
    scene = Rehearsal(folder, teachers)
    try:
        yield scene
    finally:
        scene.end()


def agree(scene: Rehearsal, deadline: float) -> None:
    """From the invitation to seven parties that have signed the same terms."""
    for name in scene.users:
        (scene.folder / name).mkdir()
    dataset = load_dataset("digits")
    for place, hospital in enumerate(HOSPITALS):
        chosen = slice(place, None, len(HOSPITALS))
        own = scene.folder / hospital
        _write_records(dataset.train_images[chosen], dataset.train_labels[chosen], own, turned=hospital == TURNED)
    for name in scene.users:
        scene.own(name)
    digest = _propose(scene, deadline)
    scene.say("the student party has proposed, from public inputs alone")
    _enrol(scene)
    scene.say("seven parties have their certificates, by files that were mailed")
    accepting = {}
    for name in ("guardian", "student", *HOSPITALS):
        scene.mail("project/lungs.zip", "student", name, "lungs.zip")
        more = ["--account", "hospitals", "--budget", f"{BUDGET:g}"] if name == "guardian" else []
        more = ["--data", "records.npz" if name == TURNED else "images"] if name in HOSPITALS else more
        words = ("accept", "lungs.zip", "--as", name, "--folder", ".", "--expect", digest, "--yes", *more)
        accepting[name] = scene.start(name, *words)
    for name, process in accepting.items():
        scene.wait(process, name)
        if name != "guardian":
            scene.mail("acceptance.json", name, "guardian", f"accepted/{name}.json")
    for name in accepting:
        scene.change(name, patience="10min")
        if name in HOSPITALS:
            scene.change(name, ledger={"account": f"patients of {name}", "epsilon": BUDGET})
        scene.own(name)
    scene.say("all have read the terms, had their own data checked, and signed")


def _propose(scene: Rehearsal, deadline: float) -> str:
    """Propose from a project of the student party's; return the digest that is told by telephone."""
    project = scene.folder / "student" / "project"
    subprocess.run([sys.executable, "-m", "flows", "init", str(project)], cwd=REPOSITORY, check=True)
    preset = project / "experiments" / f"{PRESET}.yaml"
    preset.write_text(yaml.safe_dump(scene.settings))
    scene.own("student")
    endpoints = free_endpoints()
    scene.run(
        "student", "propose", "lungs", "--preset", PRESET, "--set", "data.name=folder",
        *(word for name in HOSPITALS for word in ("--teacher", f"{name}={EACH}")),
        "--guardian", f"guardian@{endpoints.guardian}", "--student", f"student@{endpoints.student}",
        "--classes", ",".join(map(str, range(10))), "--minimum", str(3 * EACH), "--deadline", f"{deadline:g}s",
        "--archive", within="project",
    )  # fmt: skip
    found = re.findall(r"by another way: ([0-9a-f-]+)", scene.words("student"))
    return str(found[-1])


def _enrol(scene: Rehearsal) -> None:
    """Give every party a certificate: a token by telephone, a request and its answer by mail."""
    roles = {"guardian": "guardian", "student": "student", **dict.fromkeys(HOSPITALS, "teacher")}
    scene.run("authority", "enrol", "authority", "authority")
    named = (word for name, role in roles.items() for word in ("--party", f"{name}={role}"))
    scene.run("authority", "enrol", "token", "authority", *named)
    tokens = dict(re.findall(r"^(\w+) \(\w+\), until \S+: ([0-9a-f-]+)", scene.words("authority"), re.M))
    for name, role in roles.items():
        own, token = ("credentials", "--token"), tokens[name]
        scene.run(name, "enrol", "request", own[0], "--name", name, "--role", role, own[1], token)
        scene.mail("credentials/request.json", name, "authority", f"{name}.json")
        scene.run("authority", "enrol", "sign", "authority", f"{name}.json")
        scene.mail(f"authority/tokens/{name}.enrolment.json", "authority", name, "answer.json")
        scene.run(name, "enrol", "install", own[0], "answer.json", own[1], token)


def _write_records(images: np.ndarray, labels: np.ndarray, folder: Path, *, turned: bool) -> None:
    """Write a hospital's records as class folders; or as arrays whose classes are in another order."""
    if turned:
        names = np.array([str(label) for label in reversed(range(10))])
        np.savez(folder / "records.npz", images=images, labels=9 - labels, class_names=names)
        return
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "images" / str(label) / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(path)


def meet(scene: Rehearsal) -> None:
    """The session, with all that goes wrong in it."""
    config = ("--config", "party.yaml")
    teaching = {name: scene.start(name, "teach", *config) for name in HOSPITALS}
    for name, process in teaching.items():
        scene.wait(process, name)
    scene.say("five hospitals have taught their teachers, each when it suited")
    right, other = scene.folder / STRANGE / "credentials", scene.folder / "other"
    right.rename(scene.folder / STRANGE / "kept")
    create_authority(other, days=1)
    issue(other, right, STRANGE, "teacher", days=1)
    scene.own(STRANGE)
    # Whoever is there waits for the others; the order does not matter.
    voting = {name: scene.start(name, "vote", *config) for name in ("west", "student", RESTARTED, "guardian")}
    scene.until("guardian", "Here:")
    scene.run(STRANGE, "vote", *config, fails="certificate")
    scene.say(f"{STRANGE} came with a certificate of another authority, and was told: {_last(scene, STRANGE)}")
    shutil.rmtree(right)
    (scene.folder / STRANGE / "kept").rename(right)
    scene.until(RESTARTED, "frames of shares are on their way")
    voting[RESTARTED].kill()
    voting[RESTARTED].wait()
    for name in (RESTARTED, STRANGE, "north"):
        voting[name] = scene.start(name, "vote", *config)
    scene.say(f"{RESTARTED} was killed and started again; {LATE} stays away")
    scene.until("guardian", "parties are counted")
    voting["guardian"].kill()
    voting["guardian"].wait()
    place = scene.folder / "another machine"
    shutil.copytree(scene.folder / "guardian", place)
    (scene.folder / "guardian").rename(scene.folder / "lost")
    place.rename(scene.folder / "guardian")
    scene.users["guardian"] = max(scene.users.values()) + 1
    scene.own("guardian")
    endpoint = free_endpoints().guardian
    scene.change("guardian", listen=endpoint)
    for name in ("student", *HOSPITALS):
        scene.change(name, guardian=endpoint)
    for name in ("student", "north", RESTARTED, STRANGE, "west"):
        if voting[name].poll() is None:  # who had heard that all is over has gone home
            voting[name].send_signal(signal.SIGINT)
            voting[name].wait()
            voting[name] = scene.start(name, "vote", *config)
    guardian = scene.start("guardian", "vote", *config)
    scene.wait(voting["student"], "student")
    scene.say("the guardian was lost with its machine after it had drawn noise, and went on from its backup elsewhere")
    scene.run(LATE, "vote", *config, fails="was late")
    scene.wait(guardian, "guardian")
    scene.say(f"{LATE} came when all was over, and was told: {_last(scene, LATE)}")
    for name in ("north", RESTARTED, STRANGE, "west"):
        scene.wait(voting[name], name)


def finish(scene: Rehearsal) -> dict[str, float]:
    """What comes after the session; returns accuracies by hospital, which only a rehearsal may look at."""
    config = ("--config", "party.yaml")
    scene.run("student", "finish", *config)
    scene.say("the student party has made the student")
    price, finishing = ("--epsilon", "2"), {}
    for name in ("guardian", *HOSPITALS):
        shutil.copy(scene.folder / "student" / "work" / "student.zip", scene.folder / name)
        scene.own(name)
        export = () if name == "guardian" else ("--export", "export")
        finishing[name] = scene.start(name, "finish", *config, "--student", "student.zip", *price, *export)
    finishing["student"] = scene.start("student", "finish", *config, *price)
    for name, process in finishing.items():
        scene.wait(process, name)
    exports = [(scene.folder / name / "export" / "student" / "manifest.json").read_bytes() for name in HOSPITALS]
    if len(set(exports)) != 1:
        raise SystemExit("The hospitals have exported different students.")
    scene.say(
        "each hospital has tested the student on its own records, and exported it; one accuracy of all is released"
    )
    for name in ("student", "guardian", "north", LATE):
        scene.run(name, "status", *config, "--html", "status.html")
    scene.run("guardian", "again", *config, "--edition", "2", "--yes")
    found = {}
    for name in HOSPITALS:
        figures = read_json(scene.folder / name / "work" / "data" / "private" / "own" / "evaluation.json")
        found[name] = figures["accuracy"]
    return found


def check(scene: Rehearsal) -> None:
    """Nothing was charged twice, and each hospital that shared has charged its own account once."""
    for name in ("guardian", *HOSPITALS):
        place = scene.folder / name / "ledger"
        ledger = Ledger(f"sqlite:///{place}/ledger.db", place / "releases", load_or_create_key(place / "key"))
        kinds = [row.kind for row in ledger.rows()]
        # One accuracy was released besides the answers; the hospital that was late has shared nothing for those.
        expected = 1 if name == LATE else 2
        if kinds.count("reserve") != expected or kinds.count("commit") != expected:
            raise SystemExit(f"The ledger of {name} has {kinds}.")


def _last(scene: Rehearsal, name: str) -> str:
    lines = [line for line in scene.words(name).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line or "late" in line), lines[-1])[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where it is played; default: a folder that is removed")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds that hospitals are waited for")
    parser.add_argument("--teachers", choices=KINDS, default="linear", help="the kind of all hospitals' teachers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hospitals-") as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        with rehearsal(folder, options.teachers) as scene:
            users = "each under a user of its own" if scene.apart else "under one user: this is not run by root"
            scene.say(f"seven parties and an authority, {users}")
            agree(scene, options.deadline)
            meet(scene)
            accuracies = finish(scene)
            check(scene)
            about = json.loads((scene.folder / "student" / "work/data/release/student/privacy.json").read_text())
            scene.say("done: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracies.items()))
            print(f"exact ε {about['epsilon']:.4f}, {about['answered']} answers, one charge; five exported students")


if __name__ == "__main__":
    main()
