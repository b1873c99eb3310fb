"""A trial: all parties of a collaboration on one machine, each a process with a folder and credentials of its own.

    trial/
      authority/            the trial's certificate authority; no party has it
      terms.yaml            what all agreed on
      guardian/             party.yaml, terms.yaml, credentials/, state/, ledger/
      student/              party.yaml, terms.yaml, credentials/, state/, answers/
      party-01/ ...         party.yaml, terms.yaml, credentials/, state/, votes.npy

A folder of a party holds all that the party needs: copied to another host, with the addresses in its party.yaml
changed, it takes part from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.config.values import as_document
from tasks.parties.agreement.terms import Terms
from tasks.parties.config import TERMS
from tasks.parties.process import LOG
from terrine.collaboration.transport.credentials import KEY, Role, create_authority, issue
from terrine.errors import SettingError, TerrineError
from terrine.files import atomic_file
from terrine.ports import HOST, free_ports

CONFIG = "party.yaml"
AUTHORITY = "authority"


class TrialError(TerrineError):
    """A party of a trial ended without having done its part; the message has its own words."""


@dataclass(frozen=True)
class Endpoints:
    """Where the two parties that listen are to be found: host:port."""

    guardian: str
    student: str


def free_endpoints() -> Endpoints:
    """Two addresses of this machine that nobody listens at now."""
    return Endpoints(*(f"{HOST}:{port}" for port in free_ports(2)))


def teachers_of_parties(teachers: int, parties: int) -> dict[str, int]:
    """Deal N teachers to parties in order, as evenly as can be.

    >>> teachers_of_parties(7, 3)
    {'party-1': 3, 'party-2': 2, 'party-3': 2}
    """
    if not 1 <= parties <= teachers:
        raise SettingError(f"{teachers} teachers cannot be dealt to {parties} parties: each holds at least one.")
    digits = len(str(parties))
    least, more = divmod(teachers, parties)
    return {f"party-{number + 1:0{digits}d}": least + (number < more) for number in range(parties)}


def lay_out(
    folder: Path,
    terms: Terms,
    endpoints: Endpoints,
    *,
    guardian: Mapping[str, Any],
    teachers: Mapping[str, Mapping[str, Any]],
    student: Mapping[str, Any] | None = None,
    common: Mapping[str, Any] | None = None,
    days: float = 90,
) -> None:
    """Make the folders of all parties, with credentials (good for so many days) of a new authority where there are
    none.

    guardian, student, teachers (by name): what their configuration says beside the addresses: ledger and noise; how the
    student is made; votes, or own teachers. common: settings of all parties: deadline, patience.
    """
    authority = folder / AUTHORITY
    if not (authority / KEY).exists():
        create_authority(authority, days=days)
    own: dict[str, dict[str, Any]] = {
        terms.guardian: {"listen": endpoints.guardian, **guardian},
        terms.student: {
            "listen": endpoints.student,
            "guardian": endpoints.guardian,
            "answers": "answers",
            **dict(student or {}),
        },
        **{
            name: {"guardian": endpoints.guardian, "student": endpoints.student, **teachers[name]}
            for name in terms.teachers
        },
    }
    terms_text = as_document(terms.public())
    _write(folder / TERMS, terms_text)
    for name, role in terms.roles().items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        os.chmod(place, 0o700)
        if not (place / "credentials" / KEY).exists():
            issue(authority, place / "credentials", name, role, days=days)
        _write(place / TERMS, terms_text)
        config = {"role": role, **dict(common or {}), **own[name]}
        _write(place / CONFIG, as_document(config))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, owner_only=True) as file:
        file.write(text.encode())


def configs_in(folder: Path) -> list[Path]:
    """The configurations of a trial's parties, those that listen first.

    Raises SettingError where there are none.
    """
    found = sorted(folder.glob(f"*/{CONFIG}"))
    if not found:
        raise SettingError(f"{folder} holds no party. Make a trial first: terrine party init {folder}.")

    def late(path: Path) -> tuple[int, str]:
        role: Role = yaml.safe_load(path.read_text(encoding="utf-8")).get("role", "teacher")
        return ("guardian", "student", "teacher").index(role), str(path)

    return sorted(found, key=late)


@dataclass
class PartyProcess:
    """A party that runs in a process of its own; its words are in `log`."""

    config: Path
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        """The name of its folder, which is its own."""
        return self.config.parent.name

    def words(self) -> str:
        """The last thing it said."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("Error: ") if lines else "it said nothing"


def start_party(config: Path, *more: Path) -> PartyProcess:
    """Start one party's process, or one that forks a process for each of several.

    It is asked to end when this one does.
    """
    log = config.parent / LOG
    environment = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    with open(log, "ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.parties.process", *(str(path.resolve()) for path in (config, *more))],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            cwd=config.parent,
            env=environment,
        )
    return PartyProcess(config, process, log)


def run_trial(folder: Path, *, limit: float) -> None:
    """Run every party of a trial in a process of its own, and wait for the guardian and the student party; after
    `limit` seconds everything is ended.

    Teacher parties that were left out, or that do not end by themselves afterwards, are no failure of the trial. Raises
    TrialError where the guardian or the student party failed, in its own words.
    """
    guardian, student, *teachers = configs_in(folder)
    needed = [start_party(guardian), start_party(student)]
    # Nobody asks how each of the others ended, so that they may share a start; forks are safe on Linux alone.
    groups = [teachers] if sys.platform == "linux" else [[config] for config in teachers]
    others = [start_party(*group) for group in groups]
    try:
        wait_for(needed, limit)
        wait_for(others, 10.0, strict=False)
    finally:
        end_all([*needed, *others])
    failed = [party for party in needed if party.process.returncode != 0]
    if failed:
        # A party that says why is told before one that only heard of it.
        failed.sort(key=lambda party: "ended the session" in party.words())
        raise TrialError(f"{failed[0].name}: {failed[0].words()} (What each party said: log.txt in its folder.)")


def wait_for(parties: Sequence[PartyProcess], limit: float, *, strict: bool = True) -> None:
    """Wait until all have ended, or one has failed; raise TrialError after `limit` seconds."""
    end = time.monotonic() + limit
    while any(party.process.poll() is None for party in parties):
        if strict and any(party.process.poll() not in (None, 0) for party in parties):
            # What it did not do, the others will wait for in vain; they get a moment to say so.
            end = min(end, time.monotonic() + 5.0)
            strict = False
        if time.monotonic() > end:
            if strict:
                waiting = ", ".join(party.name for party in parties if party.process.poll() is None)
                raise TrialError(f"The trial took more than {limit:g} s, and {waiting} had not ended.")
            return
        time.sleep(0.02)


def end_all(parties: Sequence[PartyProcess]) -> None:
    """End what still runs: those very processes."""
    for party in parties:
        if party.process.poll() is None:
            party.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 5.0
    for party in parties:
        try:
            party.process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            party.process.kill()
            party.process.wait(5.0)
