"""All parties of a collaboration on one machine: the two services on loopback, and every teacher party's upload.

    trial/
      guardian/     party.yaml, terms.yaml, key.pem, certificate.pem, state/, ledger/
      student/      party.yaml, terms.yaml, key.pem, certificate.pem, state/, answers/
      party-1/ ...  party.yaml, terms.yaml, key.pem, state/

A run with `aggregation.where: parties` makes such a trial in its aggregate stage (`tasks.parties.release`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tasks.config.values import as_document, read_yaml
from tasks.parties.answers import stored_answers
from tasks.parties.client import ServiceClient
from tasks.parties.config import CONFIG, TERMS, PartyConfig, read_party
from tasks.parties.keys import create_key
from tasks.parties.submit import Report, submit
from tasks.parties.terms import Terms
from terrine.errors import SettingError, TerrineError
from terrine.files import atomic_file, private_folder
from terrine.ports import HOST, free_ports

LOG = "log.txt"
GUARDIAN: Literal["guardian"] = "guardian"
STUDENT: Literal["student"] = "student"


class TrialError(TerrineError):
    """A service of a trial stopped; the message contains its reason."""


def teachers_of_parties(teachers: int, parties: int) -> dict[str, int]:
    """Distribute N teachers to parties in order, as evenly as possible.

    >>> teachers_of_parties(7, 3)
    {'party-1': 3, 'party-2': 2, 'party-3': 2}
    """
    if not 1 <= parties <= teachers:
        raise SettingError(f"{teachers} teachers cannot be dealt to {parties} parties: each holds at least one.")
    digits = len(str(parties))
    least, more = divmod(teachers, parties)
    return {f"party-{number + 1:0{digits}d}": least + (number < more) for number in range(parties)}


def with_keys(folder: Path, teachers: Sequence[str]) -> dict[str, Any]:
    """Create keys and folders of a trial's parties; return `keys` and `services` of its terms."""
    urls = dict.fromkeys((GUARDIAN, STUDENT), f"https://{HOST}:1")
    lines = {name: create_key(folder / name, name, urls.get(name)) for name in (*urls, *teachers)}
    services = {name: {"url": lines[name].url, "certificate": lines[name].certificate} for name in urls}
    return {"keys": {name: line.key for name, line in lines.items()}, "services": services}


def lay_out(
    folder: Path,
    terms: Terms,
    *,
    guardian: Mapping[str, Any],
    teachers: Mapping[str, Mapping[str, Any]],
    student: Mapping[str, Any] | None = None,
) -> None:
    """Write terms and settings into the folders of a trial's parties, which contain the keys (`with_keys`)."""
    own: dict[str, Mapping[str, Any]] = {
        terms.guardian: {"listen": f"{HOST}:1", **guardian},
        terms.student: {"listen": f"{HOST}:1", "answers": "answers", **(student or {})},
        **teachers,
    }
    text = as_document(terms.public())
    for name, role in terms.roles().items():
        private_folder(folder / name)
        for file, content in ((TERMS, text), (CONFIG, as_document({"role": role, **own[name]}))):
            with atomic_file(folder / name / file, "w", owner_only=True) as stream:
                stream.write(content)


@contextmanager
def services(guardian: Path, student: Path) -> Iterator[dict[Literal["guardian", "student"], str]]:
    """Run both services of a trial on free ports; yield their URLs.

    Args:
        guardian: The guardian's party.yaml.
        student: The student party's party.yaml.
    """
    first, second = (f"{HOST}:{port}" for port in free_ports(2))
    running = []
    try:
        for arguments in ((guardian, first), (student, second, f"https://{first}")):
            with open(arguments[0].parent / LOG, "ab") as stream:
                command = [sys.executable, "-m", "tasks.parties.serve", *map(str, arguments)]
                running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream))
        yield {"guardian": f"https://{first}", "student": f"https://{second}"}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_trial(folder: Path, report_source: Callable[[PartyConfig], Report], *, limit: float = 1800.0) -> dict[str, Any]:
    """Run a collaboration whose parties' folders are in `folder`; return the facts about its answers.

    Args:
        folder: Folders of all parties.
        report_source: Returns the reports of a teacher party.
        limit: Seconds after which the trial is stopped.

    Raises:
        TrialError: A service stopped, or the time limit is exceeded.
        SettingError: The folder does not contain one guardian, one student party and teacher parties.
    """
    paths = sorted(folder.glob(f"*/{CONFIG}"))
    roles: dict[str, list[Path]] = {}
    for path in paths:
        roles.setdefault(str(read_yaml(path).get("role")), []).append(path)
    if [len(roles.get(role, [])) for role in (GUARDIAN, STUDENT)] != [1, 1] or not roles.get("teacher"):
        raise SettingError(f"{folder} needs the folders of one guardian, one student party and teacher parties.")
    (guardian,), (student,) = roles[GUARDIAN], roles[STUDENT]
    with services(guardian, student) as urls:
        configs = [read_party(path).model_copy(update={"urls": urls}) for path in roles["teacher"]]
        try:
            _submit_all(configs, report_source, limit)
        except TerrineError as error:
            raise TrialError(f"{error} {_last_errors(guardian, student)}".strip()) from error
    about = stored_answers(read_party(student))
    assert about is not None
    return about


def _submit_all(configs: Sequence[PartyConfig], report_source: Callable[[PartyConfig], Report], limit: float) -> None:
    watcher, end, done = ServiceClient(configs[0], STUDENT), time.monotonic() + limit, -1
    while (status := watcher.json("GET", "status"))["state"] != "complete":
        if status["state"] == "stopped":
            raise TrialError(f"The student party stopped: {status['problem']}")
        if time.monotonic() > end:
            raise TrialError(f"The trial took more than {limit:g} s.")
        if status["state"] == "open" and status["round"] > done:
            done = status["round"]
            for config in configs:
                submit(config, report_source)
        else:
            time.sleep(0.05)


def _last_errors(*configs: Path) -> str:
    """Return the errors with which the services ended."""
    last = [(path.parent / LOG).read_text(errors="replace").splitlines()[-1:] for path in configs]
    return " ".join(line.removeprefix("Error: ") for lines in last for line in lines if line.startswith("Error: "))
