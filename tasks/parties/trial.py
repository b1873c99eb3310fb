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
from tasks.parties.submit import Given, submit
from tasks.parties.terms import Terms
from terrine.errors import SettingError, TerrineError
from terrine.files import atomic_file, private_folder
from terrine.ports import HOST, free_ports

LOG = "log.txt"
GUARDIAN: Literal["guardian"] = "guardian"
STUDENT: Literal["student"] = "student"


class TrialError(TerrineError):
    """A service of a trial stopped; the message has its reason."""


def teachers_of_parties(teachers: int, parties: int) -> dict[str, int]:
    """Deal N teachers to parties in order, as evenly as possible.

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
    places: dict[str, str | None] = dict.fromkeys((GUARDIAN, STUDENT), f"https://{HOST}:1")
    lines = {
        name: create_key(folder / name, name, url) for name, url in (places | dict.fromkeys(teachers, None)).items()
    }
    services = {name: {"url": lines[name].url, "certificate": lines[name].certificate} for name in places}
    return {"keys": {name: line.key for name, line in lines.items()}, "services": services}


def lay_out(
    folder: Path,
    terms: Terms,
    *,
    guardian: Mapping[str, Any],
    teachers: Mapping[str, Mapping[str, Any]],
    student: Mapping[str, Any] | None = None,
) -> None:
    """Write terms and settings into the folders of a trial's parties, whose keys are there (`with_keys`)."""
    own: dict[str, Mapping[str, Any]] = {
        terms.guardian: {"listen": f"{HOST}:1", **guardian},
        terms.student: {"listen": f"{HOST}:1", "answers": "answers", **dict(student or {})},
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
        student: The student party's.
    """
    first, second = (f"{HOST}:{port}" for port in free_ports(2))
    running = []
    try:
        for arguments in ((guardian, first), (student, second, f"https://{first}")):
            config = arguments[0]
            with open(config.parent / LOG, "ab") as stream:
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


def run_trial(folder: Path, given_by: Callable[[PartyConfig], Given], *, limit: float = 1800.0) -> dict[str, Any]:
    """Run a collaboration whose parties' folders are in `folder`; return what is known about its answers.

    Args:
        folder: Folders of all parties.
        given_by: Returns what a teacher party reports.
        limit: Seconds after which it is stopped.

    Raises:
        TrialError: A service stopped, in its own words, or the time is over.
        SettingError: The folder holds no such parties.
    """
    found = {path: read_yaml(path).get("role") for path in sorted(folder.glob(f"*/{CONFIG}"))}
    roles = {role: [path for path, other in found.items() if other == role] for role in found.values()}
    if [len(roles.get(role, [])) for role in (GUARDIAN, STUDENT)] != [1, 1] or not roles.get("teacher"):
        raise SettingError(f"{folder} needs the folders of one guardian, one student party and teacher parties.")
    (guardian,), (student,), teachers = roles[GUARDIAN], roles[STUDENT], roles["teacher"]
    with services(guardian, student) as urls:
        configs = [read_party(path).model_copy(update={"urls": urls}) for path in teachers]
        _submit_all(configs, given_by, (guardian, student), limit)
    about = stored_answers(read_party(student))
    assert about is not None
    return about


def _submit_all(
    configs: Sequence[PartyConfig], given_by: Callable[[PartyConfig], Given], services: Sequence[Path], limit: float
) -> None:
    watcher, end, done = ServiceClient(configs[0], STUDENT), time.monotonic() + limit, -1
    while True:
        try:
            status = watcher.json("GET", "status")
            if status["state"] == "complete":
                return
            if status["state"] == "stopped":
                raise TrialError(f"The student party stopped: {status['problem']}")
            if status["state"] == "open" and status["round"] > done:
                done = status["round"]
                for config in configs:
                    submit(config, given_by)
                continue
        except TerrineError as error:
            raise TrialError(f"{error} {_last_words(services)}".strip()) from error
        if time.monotonic() > end:
            raise TrialError(f"The trial took more than {limit:g} s.")
        time.sleep(0.05)


def _last_words(services: Sequence[Path]) -> str:
    """Return the errors with which services ended."""
    said = []
    for path in services:
        lines = (path.parent / LOG).read_text(errors="replace").splitlines()
        said += [line.removeprefix("Error: ") for line in lines[-1:] if line.startswith("Error: ")]
    return " ".join(said)
