"""A rehearsal: five hospitals, a guardian and a student party, from the terms to five exported students.

    python benchmarks/hospitals.py [--folder FOLDER] [--deadline 120]

Each party has a folder of its own, which nobody else may read, and each runs as an operating-system user of its own
where this is run by root (`setpriv`). They meet by the commands of docs/collaboration.md alone. On the way

- the hospital `east` comes with a certificate of another authority, is told so, and comes again with its own;
- `south` is killed while it waits, and is started again;
- the guardian's machine is lost when it has drawn the noise: its folder comes back at another place and address;
- `centre` comes when the round is closed, and is told that it was late.

Then the student party makes the student and sends it to all, each hospital tests it on its own test split, releases one
accuracy with noise, and exports it. Printed is what each step took; the script fails where a step does not end as it
should, where the ledger has charged anything twice, or where the students are not one and the same.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from flows.stages import run_stage
from tasks.parties.init import init_from_run
from tasks.parties.trial import free_endpoints
from tasks.pipeline.dataset import read_dataset
from tasks.runtime.run import open_run
from tasks.runtime.store import read_json
from terrine.collaboration.transport.credentials import create_authority, issue
from terrine.privacy.ledger.ledger import Ledger, load_or_create_key

REPOSITORY = Path(__file__).resolve().parents[1]
HOSPITALS = ("north", "south", "east", "west", "centre")
LATE, RESTARTED, STRANGE = "centre", "south", "east"
FIRST_USER = 20_001
PRESET = "hospitals"
SETTINGS = {
    "description": "scikit-learn's digits, dealt to five hospitals",
    "partition": {"teachers": 100},
    "queries": {"count": 2000, "sources": {"dead_leaves": 1, "stylegan": 1}},
    "backbone": {"kind": "scattering", "projection": 80, "invariance": True},
    "teachers": {"optimiser": "ridge", "ridge": 0.1},
    "aggregation": {"mechanism": "histogram", "sigma": 39, "epsilon": 8},
    "student": {"l2": 0.3},
}


class Rehearsal:
    """The folders of all parties below one, and their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users = {name: FIRST_USER + place for place, name in enumerate(("guardian", "student", *HOSPITALS))}
        self.apart = os.geteuid() == 0 and shutil.which("setpriv") is not None
        self._running: list[subprocess.Popen[bytes]] = []
        self._start = time.monotonic()

    def own(self, name: str) -> None:
        """Give a party's folder to its user, and to nobody else."""
        place = self.folder / name
        for path in [place, *place.rglob("*")] if self.apart else []:
            os.chown(path.resolve() if path.is_symlink() else path, self.users[name], self.users[name])
        place.chmod(0o700)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `terrine party …` as a party's user, in its folder; what it says goes to log.txt there."""
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
            process = subprocess.Popen(words, cwd=place, env=environment, stdout=log, stderr=log, stdin=log)
        self._running.append(process)
        return process

    def run(self, name: str, *arguments: str, fails: str | None = None) -> None:
        """Run a command of a party to its end, which is a failure with these words where `fails` says so."""
        self.wait(self.start(name, *arguments), name, fails=fails)

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
def rehearsal(folder: Path) -> Iterator[Rehearsal]:
    """A rehearsal whose processes end with it."""
    scene = Rehearsal(folder)
    try:
        yield scene
    finally:
        scene.end()


def lay_out(scene: Rehearsal, deadline: float) -> None:
    """Agree on the terms, and give each hospital its folder with its own images; no two have one of them in common."""
    project = scene.folder / "project"
    (project / "experiments").mkdir(parents=True)
    (project / "experiments" / f"{PRESET}.yaml").write_text(yaml.safe_dump(SETTINGS))
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(REPOSITORY / name, project)
    for stage in ("parameters", "dataset", "synthesize", "pretrain"):
        run_stage(project, PRESET, stage)
    run = open_run(project, PRESET)
    os.chdir(project)
    trial = scene.folder / "trial"
    parties = len(HOSPITALS)
    held = run.params.partition.teachers // parties
    init_from_run(
        trial,
        PRESET,
        parties=parties,
        minimum=3 * held,
        guardian="127.0.0.1:0",
        student="127.0.0.1:0",
        account="hospitals",
        epsilon=2 * run.params.aggregation.epsilon,
        edition="",
        days=1,
    )
    dataset = read_dataset(run.folders)
    names = dict(zip(sorted(path.name for path in trial.glob("party-*")), HOSPITALS, strict=True))
    terms = yaml.safe_load((trial / "terms.yaml").read_text())
    terms["teachers"] = {names[party]: count for party, count in terms["teachers"].items()}
    for name in ("guardian", "student", *names):
        hospital = names.get(name, name)
        (trial / name).rename(scene.folder / hospital)
        (scene.folder / hospital / "terms.yaml").write_text(yaml.safe_dump(terms, sort_keys=False))
    public = scene.folder / "student"
    for place, hospital in enumerate(HOSPITALS):
        folder = scene.folder / hospital
        shutil.rmtree(folder / "credentials")
        issue(trial / "authority", folder / "credentials", hospital, "teacher", days=1)
        for name in ("queries", "backbone"):
            shutil.copytree(public / name, folder / name)
        _write_images(dataset, place, folder / "images")
        values = yaml.safe_load((folder / "party.yaml").read_text())
        del values["votes"], values["unit"]
        data = {"name": "folder", "path": str(folder / "images"), "size": run.params.data.size, "channels": 1}
        values["own"] = {
            "params": {"data": data, "teachers": run.params.teachers.model_dump(mode="json", exclude_defaults=True)},
            "images": "queries",
            "backbone": "backbone",
        }
        values["ledger"] = {"account": f"patients of {hospital}", "epsilon": 2 * run.params.aggregation.epsilon}
        (folder / "party.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    for name in scene.users:
        scene.change(name, deadline=deadline, patience="10min")
        scene.own(name)


def _write_images(dataset: Any, place: int, folder: Path) -> None:
    images, labels = dataset.train_images[place :: len(HOSPITALS)], dataset.train_labels[place :: len(HOSPITALS)]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / dataset.class_names[label] / f"{number:05d}.png"
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
    config, exports = ("--config", "party.yaml"), []
    scene.run("student", "finish", *config)
    scene.say("the student party has made the student")
    own = ("--student", "student.zip", "--epsilon", "2", "--export", "export")
    finishing, accuracies = {}, []
    for name in HOSPITALS:
        shutil.copy(scene.folder / "student" / "work" / "student.zip", scene.folder / name)
        scene.own(name)
        finishing[name] = scene.start(name, "finish", *config, *own)
    for name, process in finishing.items():
        scene.wait(process, name)
        exports.append((scene.folder / name / "export" / "student" / "manifest.json").read_bytes())
        released = scene.folder / name / "work" / "data" / "release" / "own" / "accuracy.json"
        shutil.copy(released, scene.folder / "student" / f"{name}.json")
        accuracies += ["--accuracy", f"{name}.json"]
    if len(set(exports)) != 1:
        raise SystemExit("The hospitals have exported different students.")
    scene.say("each hospital has tested the student on its own records, and exported it")
    scene.own("student")
    scene.run("student", "finish", *config, *accuracies)
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
        # A hospital has released an accuracy besides, and the one that was late has shared nothing.
        expected = 1 if name in ("guardian", LATE) else 2
        if kinds.count("reserve") != expected or kinds.count("commit") != expected:
            raise SystemExit(f"The ledger of {name} has {kinds}.")


def _last(scene: Rehearsal, name: str) -> str:
    lines = [line for line in scene.words(name).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line or "late" in line), lines[-1])[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where it is played; default: a folder that is removed")
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds that hospitals are waited for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hospitals-") as temporary:
        folder = Path(options.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        with rehearsal(folder) as scene:
            lay_out(scene, options.deadline)
            users = "each under a user of its own" if scene.apart else "under one user: this is not run by root"
            scene.say(f"the terms, and a folder for each of seven parties, {users}")
            meet(scene)
            accuracies = finish(scene)
            check(scene)
            about = json.loads((scene.folder / "student" / "work/data/release/student/privacy.json").read_text())
            scene.say("done: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in accuracies.items()))
            print(f"exact ε {about['epsilon']:.4f}, {about['answered']} answers, one charge; five exported students")


if __name__ == "__main__":
    main()
