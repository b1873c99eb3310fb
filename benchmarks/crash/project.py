"""A small project, and commands in it: processes that are forked from one that has loaded what they need.

A command that is started as a user does spends ten seconds on imports; kills would fall into these.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = {
    "description": "digits with few teachers and few queries",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 12},
    "queries": {"count": 120, "batch": 20},
    "backbone": {"projection": 60},
    "teachers": {"per_task": 5},
    "aggregation": {"mechanism": "histogram", "sigma": 6, "epsilon": 8},
    "tracking": {"register_student": False},
}
TRANSCRIBED = {
    "description": "digits transcribed by few clients",
    "data": {"name": "digits", "size": 8},
    "partition": {"teachers": 4},
    "tracking": {"register_student": False},
    "transcription": {
        "iterations": 2,
        "batch": 8,
        "federated": True,
        "per_task": 2,
        "annotation": {"sigma": 6, "beta": 1.0, "limit": "clip", "distillation": "classic", "gradient_of": "scores"},
        "teacher": {"architecture": "cryptonet", "epochs": 1},
        "student": {"architecture": "cryptonet", "learning_rate": 0.01},
        "generator": {"width": 4, "latent": 4, "inputs": "fresh"},
    },
}
PATIENCE = 900.0
"""Seconds after which a command counts as wedged."""


def small_project(folder: Path) -> Path:
    """Lay out a project as a fresh clone has it, with small presets; tests of flows begin with it, too."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(REPOSITORY / name, folder)
    (folder / ".dvc").mkdir()
    for name in ("config", ".gitignore"):
        shutil.copy(REPOSITORY / ".dvc" / name, folder / ".dvc")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "transcribed.yaml").write_text(yaml.safe_dump(TRANSCRIBED))
    set_default(folder, "small", SMALL)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def set_default(folder: Path, name: str, preset: dict[str, Any]) -> None:
    """Make a run of this preset the default one of a project."""
    from tasks.config.presets import complete

    path = folder / "experiments" / f"{name}.yaml"
    (folder / "params.yaml").write_text(f"run: {name}\n")
    path.write_text(yaml.safe_dump(preset))
    text = complete(folder, name)
    path.unlink()
    (folder / "params.yaml").write_text(text)


def environment(project: Path) -> dict[str, str]:
    """Return the environment of a command in a project, without a Prefect server of the user's."""
    clean = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    modules = f"{REPOSITORY}{os.pathsep}{clean.get('PYTHONPATH', '')}"
    return clean | {"TERRINE_ROOT": str(project), "PYTHONPATH": modules, "PATH": path}


STARTED: "list[Command]" = []
"""Commands that have not been reaped yet."""


class Command:
    """A `terrine` command in a separate process and session; its output is in `said`.

    fresh: start a new process, as from a shell, instead of forking this one. log: file for its output.
    """

    def __init__(self, project: Path, words: Sequence[str], *, fresh: bool = False, log: Path | None = None) -> None:
        self._log = log or project.with_name(f"{project.name}-{time.monotonic_ns()}.log")
        self.status: int | None = None
        if fresh:
            with open(self._log, "wb") as log:
                own = {"cwd": project, "env": environment(project), "start_new_session": True}
                program = [sys.executable, "-m", "flows", *words]
                self.pid = subprocess.Popen(program, stdout=log, stderr=log, **own).pid
        else:
            self.pid = os.fork()
            if self.pid == 0:
                _be(project, lambda: _terrine(words), self._log)
        STARTED.append(self)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self, seconds: float) -> int | None:
        """Wait for its end for so long; return its status, or None."""
        end = time.monotonic() + seconds
        while self.status is None and time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.status = os.waitstatus_to_exitcode(status)
                STARTED.remove(self)
            else:
                time.sleep(0.02)
        return self.status

    def kill(self, *, everything: bool) -> None:
        """Kill it, alone or with all that it started."""
        victims = self.processes() if everything else [psutil.Process(self.pid)]
        for victim in victims:
            with suppress(psutil.Error):
                victim.kill()
        self.wait(PATIENCE)

    def processes(self) -> list[psutil.Process]:
        """Return it and what it started, as far as they live."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _terrine(words: Sequence[str]) -> None:
    from flows.__main__ import main

    sys.argv = ["terrine", *words]
    main()


def _be(project: Path, work: Callable[[], None], log: Path) -> None:
    """In a forked child: do the work in the project, and end."""
    status = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(output, number)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.pop("PREFECT_API_URL", None)
        os.environ["TERRINE_ROOT"] = str(project)
        os.chdir(project)
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def answer_in(project: Path, work: Callable[[], Any]) -> Any:
    """Return what a function returns that is called in a forked process, in the project, as JSON values."""
    place = Path(tempfile.mkdtemp(prefix="terrine-crash-"), "answer.json")
    log = place.with_suffix(".log")
    pid = os.fork()
    if pid == 0:
        _be(project, lambda: (place.write_text(json.dumps(work())), None)[1], log)
    _, status = os.waitpid(pid, 0)
    said = log.read_text(errors="replace")
    if status:
        raise RuntimeError(f"What {project} came to could not be seen:\n{said}")
    answer = json.loads(place.read_text())
    shutil.rmtree(place.parent)
    return answer


def empty_tables(folder: Path) -> Path:
    """Return an MLflow database with empty tables, since creating them takes longer than a small run."""
    tables = folder / "mlflow.db"

    def lay_out() -> None:
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{tables}").search_experiments()

    answer_in(folder, lay_out)
    return tables


def preload(project: Path, words: Sequence[str]) -> None:
    """Make a run in a project to its end, and load what it loaded."""
    seen = project.with_name("modules.json")

    def make() -> None:
        try:
            _terrine(words)
        finally:
            seen.write_text(json.dumps([name for name in sys.modules if not name.startswith(("__", "encodings"))]))

    pid = os.fork()
    log = project.with_name("whole.log")
    if pid == 0:
        _be(project, make, log)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"A run that nobody disturbs fails:\n{log.read_text()}")
    for name in json.loads(seen.read_text()):
        with suppress(Exception):
            importlib.import_module(name)


def removed(project: Path) -> None:
    """Remove a project and its logs."""
    shutil.rmtree(project)
    for path in project.parent.glob(f"{project.name}-*.log"):
        path.unlink()
